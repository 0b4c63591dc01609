"""Tokenizers: folders load as transformers loads them."""

import json

import pytest

from specjax.engine.text.tokenizer import load_generation_config, load_tokenizer
from tests.engine.text.backends import SPECIAL, byte_level


def test_encode_and_decode_are_inverse_and_count_added_tokens(kinds):
    tokenizer = kinds["byte_level"]
    text = "def f(x): 你好<|im_end|> 🤗"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.decode(ids) == text.replace("<|im_end|>", "")
    assert tokenizer.decode([10**6]) == ""
    assert tokenizer.vocab_size == 300


def test_a_lone_surrogate_is_refused_with_its_position(kinds):
    with pytest.raises(ValueError, match=r"lone surrogate .* at position 2"):
        kinds["byte_level"].encode("ab\ud83e")


def test_every_eos_id_is_collected_the_tokenizer_s_first(load):
    tokenizer = load(
        byte_level(),
        tokenizer_config={"eos_token": {"content": "<|im_end|>"}},
        generation_config={"eos_token_id": [0, 2], "temperature": 0.6, "do_sample": True},
        config={"eos_token_id": 1},
    )
    assert tokenizer.eos_ids == (2, 0, 1)


def test_generation_config_gives_the_defaults_that_are_set(tmp_path):
    assert load_generation_config(tmp_path) == {}
    values = {"temperature": 0.6, "top_p": 0.95, "top_k": None, "eos_token_id": 3, "max_length": 9}
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    expected = {"temperature": 0.6, "top_p": 0.95, "eos_token_id": [3]}
    assert load_generation_config(tmp_path) == expected
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "x"}')
    with pytest.raises(ValueError, match=r"eos_token_id in generation_config\.json .* got 'x'"):
        load_generation_config(tmp_path)


@pytest.mark.parametrize("flag", [True, False])
def test_add_bos_token_decides_over_the_file(load, flag):
    config = {"bos_token": "<|endoftext|>", "add_bos_token": flag}
    tokenizer = load(byte_level(), tokenizer_config=config)
    plain = tokenizer.encode("the", add_special_tokens=False)
    assert tokenizer.encode("the") == ([0, *plain] if flag else plain)


def test_a_folder_without_or_with_a_broken_tokenizer_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"need tokenizer\.json, or vocab\.json and merges\.txt"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="cannot read the tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[" * 200_000)
    with pytest.raises(ValueError, match=r"tokenizer_config\.json is not valid JSON"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json is not valid JSON"):
        load_tokenizer(tmp_path)


def test_special_tokens_that_are_no_list_are_an_error(load):
    with pytest.raises(ValueError, match=r"additional_special_tokens in .* must be a list, got 5"):
        load(byte_level(), tokenizer_config={"additional_special_tokens": 5})


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "Qwen2Tokenizer"])
def test_vocab_and_merges_load_as_in_transformers(tmp_path, name):
    transformers = pytest.importorskip("transformers")
    byte_level().model.save(str(tmp_path))
    config = {
        "tokenizer_class": name,
        "add_bos_token": name == "GPT2Tokenizer",
        **dict.fromkeys(["bos_token", "eos_token", "pad_token", "unk_token"], "<|endoftext|>"),
        "added_tokens_decoder": {
            str(i): {"content": text, "special": True, "lstrip": False, "rstrip": False,
                     "normalized": False, "single_word": False}
            for i, text in enumerate(SPECIAL)
        },
    }  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = getattr(transformers, name).from_pretrained(str(tmp_path))
    ours = load_tokenizer(tmp_path)
    assert ours.vocab_size == len(theirs) == 300
    for text in (
        "the future's 123",
        "  def f(x):\n\n  return<|im_end|> x",
        "de\u0301ja\u0300 🤗",
        "",
    ):
        assert ours.encode(text) == theirs(text)["input_ids"]
        ids = ours.encode(text)
        assert ours.decode(ids) == theirs.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

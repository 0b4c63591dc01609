"""Tokenizers: folders load as transformers loads them, streams equal the whole text."""

import json
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from specjax.engine.tokenizer import (
    Detokenizer,
    StopChecker,
    feed,
    finish,
    load_generation_config,
    load_tokenizer,
)

CORPUS = [
    "def f(x):\n    return x + 1\n",
    "the future of AI is bright, you're right",
    "你好 déjà 🤗",
] * 4
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT = (
    "{%- for message in messages %}\n"
    "    {%- if loop.first and message.role != 'system' %}\n"
    "        {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}\n"
    "    {%- endif %}\n"
    "    {%- if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if tools %}{{ tools | tojson }}{% endif %}\n"
    "    {% if add_generation_prompt %}\n"
    "    {% endif %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "    {%- if enable_thinking is false %}{{ '<think>' }}{% endif %}\n"
    "{%- endif %}\n"
)


def byte_level():
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet)
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def unigram():
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=80, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def byte_fallback():
    """Llama 2's shape: pieces with a leading underscore, bytes for everything else."""
    words = ["▁", "▁the", "▁a", "b", "c", "▁▁", "."]
    vocab = ["<unk>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *words]
    backend = tokenizers.Tokenizer(
        models.BPE({w: i for i, w in enumerate(vocab)}, [], unk_token="<unk>", byte_fallback=True)
    )
    backend.add_special_tokens(["<unk>", "</s>"])
    replace, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    backend.decoder = decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse(), strip])
    return backend


def word_level():
    backend = tokenizers.Tokenizer(
        models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return backend


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Save a backend and the given JSON files into a new folder and load it."""

    def save_and_load(backend, **files):
        folder = tmp_path_factory.mktemp("model")
        backend.save(str(folder / "tokenizer.json"))
        for name, value in files.items():
            (folder / f"{name}.json").write_text(json.dumps(value))
        return load_tokenizer(folder)

    return save_and_load


@pytest.fixture(scope="module")
def kinds(load):
    config = {"eos_token": "</s>"}
    return {
        "byte_level": load(byte_level(), tokenizer_config={"eos_token": "<|im_end|>"}),
        "unigram": load(unigram(), tokenizer_config=config),
        "byte_fallback": load(byte_fallback(), tokenizer_config=config),
        "word_level": load(word_level()),
    }


def stream(tokenizer, ids, **kwargs):
    detokenizer = Detokenizer(tokenizer, **kwargs)
    deltas = [detokenizer.push(i) for i in ids]
    return [*deltas, detokenizer.flush()]


IDS = st.lists(st.integers(0, 305), max_size=24)


@pytest.mark.parametrize("kind", ["byte_level", "unigram", "word_level"])
@pytest.mark.parametrize("skip", [True, False])
@given(ids=IDS)
@settings(max_examples=150, deadline=None)
def test_streamed_text_is_the_whole_text_for_any_ids(kinds, kind, skip, ids):
    deltas = stream(kinds[kind], ids, skip_special_tokens=skip)
    assert "".join(deltas) == kinds[kind].decode(ids, skip_special_tokens=skip)


@given(raw=st.one_of(st.binary(max_size=16), st.text(max_size=8).map(lambda s: s.encode())))
@settings(max_examples=200, deadline=None)
def test_any_bytes_stream_to_their_lossy_text_and_nothing_broken_comes_early(kinds, raw):
    tokenizer = kinds["byte_level"]
    alphabet = dict(zip(range(256), _byte_characters(), strict=True))
    ids = [tokenizer.backend.token_to_id(alphabet[byte]) for byte in raw]
    deltas = stream(tokenizer, ids)
    assert "".join(deltas) == tokenizer.decode(ids) == raw.decode("utf-8", errors="replace")
    assert not any(delta.endswith("\ufffd") for delta in deltas[:-1])


def _byte_characters():
    """Return the character that stands for each byte in byte-level BPE."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = iter(range(256, 512))
    return [chr(b) if b in kept else chr(next(moved)) for b in range(256)]


@given(
    parts=st.lists(st.sampled_from(["▁the", "▁a", "b", "▁", "你", "🤗", "\n", "</s>"]), max_size=12)
)
@settings(max_examples=150, deadline=None)
def test_byte_fallback_characters_stream_whole_and_at_once(kinds, parts):
    tokenizer = kinds["byte_fallback"]
    detokenizer, ids, text = Detokenizer(tokenizer), [], ""
    for part in parts:
        direct = tokenizer.backend.token_to_id(part)
        pieces = [direct] if direct is not None else [2 + b for b in part.encode()]
        ids += pieces
        text += "".join(detokenizer.push(i) for i in pieces)
        assert text == tokenizer.decode(ids)
    assert detokenizer.flush() == ""


def test_a_broken_byte_run_leaves_the_characters_before_it_standing(kinds):
    ids = [2 + b for b in "é".encode() + b"\xff"]
    assert "".join(stream(kinds["byte_fallback"], ids)) == "é\ufffd"


@pytest.mark.parametrize("kind", ["byte_level", "unigram", "byte_fallback"])
def test_after_a_prompt_the_stream_continues_its_text(kinds, kind):
    tokenizer = kinds[kind]
    backend = tokenizer.backend
    if kind == "byte_fallback":
        prompt = [2 + b for b in ("🤗" * 4).encode()]
        output = [backend.token_to_id(t) for t in ("▁the", "b", "▁a")]
    else:
        prompt = tokenizer.encode("the future of AI is bright, you're")
        output = tokenizer.encode("the future")
    expected = tokenizer.decode(prompt + output)
    streamed = "".join(stream(tokenizer, output, prompt_ids=prompt))
    assert tokenizer.decode(prompt) + streamed == expected
    assert streamed.startswith(" ") == (kind != "byte_level")


def test_a_special_token_between_words_does_not_eat_the_space(kinds):
    tokenizer = kinds["unigram"]
    ids = [*tokenizer.encode("the"), *tokenizer.eos_ids, *tokenizer.encode("future")]
    assert "".join(stream(tokenizer, ids)) == "the future"


# Stop strings


def push_all(checker, pieces):
    out = [checker.push(piece) for piece in pieces]
    return [*out, checker.flush()]


@given(
    text=st.text("abc", max_size=12),
    cuts=st.one_of(st.just(range(13)), st.lists(st.integers(0, 12), max_size=6)),
    stops=st.lists(st.text("abc", min_size=1, max_size=3), max_size=3),
    include=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_a_stop_is_found_whatever_way_the_text_is_cut(text, cuts, stops, include):
    bounds = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    checker = StopChecker(stops, include)
    out = "".join(push_all(checker, pieces))
    matches = [(i + len(s), i, s) for s in stops for i in range(len(text)) if text.startswith(s, i)]
    if not matches:
        assert (out, checker.hit) == (text, None)
        assert checker.num_tokens == len(pieces)
        return
    end, start, stop = min(matches)
    assert (out, checker.hit) == (text[: end if include else start], stop)
    assert checker.num_tokens == next(i for i, b in enumerate(bounds[1:], 1) if b >= end)


@given(st.text("ab", max_size=10), st.lists(st.text("ab", min_size=1, max_size=4), max_size=2))
@settings(deadline=None)
def test_only_a_possible_start_of_a_stop_is_held_back(text, stops):
    checker, out = StopChecker(stops), ""
    for end, character in enumerate(text, 1):
        out += checker.push(character)
        if checker.hit is not None:
            break
        held = text[:end].removeprefix(out)
        assert not held or any(s != held and s.startswith(held) for s in stops)


def test_a_stop_within_the_first_min_tokens_does_not_count():
    checker = StopChecker(["x"], min_tokens=2)
    assert "".join(push_all(checker, ["x", "x", "a", "x", "b"])) == "xxa"
    assert (checker.hit, checker.num_tokens) == ("x", 4)


def test_a_stop_that_begins_within_min_tokens_and_ends_after_counts():
    checker = StopChecker(["ab"], min_tokens=1)
    assert "".join(push_all(checker, ["-a", "b", "c"])) == "-"
    assert (checker.hit, checker.num_tokens) == ("ab", 2)


def test_feed_cuts_the_ids_at_the_token_that_completes_the_stop(kinds):
    tokenizer = kinds["byte_level"]
    ids = tokenizer.encode("return x + 1\n🤗 and more")
    stops, detokenizer = StopChecker(["\n🤗"]), Detokenizer(tokenizer)
    assert feed(detokenizer, stops, ids) + finish(detokenizer, stops) == "return x + 1"
    assert "\n🤗" in tokenizer.decode(ids[: stops.num_tokens])
    assert "\n🤗" not in tokenizer.decode(ids[: stops.num_tokens - 1])


def test_feed_without_a_stop_is_the_whole_text(kinds):
    tokenizer = kinds["byte_level"]
    ids = tokenizer.encode("你好 🤗")[:-1]
    stops, detokenizer = StopChecker([]), Detokenizer(tokenizer)
    out = feed(detokenizer, stops, ids[:2]) + feed(detokenizer, stops, ids[2:])
    assert out + finish(detokenizer, stops) == tokenizer.decode(ids)
    assert stops.num_tokens == len(ids)


# Folders


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
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json is not valid JSON"):
        load_tokenizer(tmp_path)


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


# Chat


@pytest.fixture(scope="module")
def chat(load):
    return load(byte_level(), tokenizer_config={"eos_token": "<|im_end|>", "chat_template": CHAT})


MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <b> & é?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Why?"},
]


@pytest.mark.parametrize("messages", [MESSAGES, MESSAGES[1:2]])
@pytest.mark.parametrize("kwargs", [{}, {"enable_thinking": False}, {"tools": [{"a": "é<"}]}])
@pytest.mark.parametrize("prompt", [True, False])
def test_chat_renders_as_in_transformers(chat, messages, kwargs, prompt):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_level(), eos_token="<|im_end|>", chat_template=CHAT
    )
    expected = theirs.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=prompt, **kwargs
    )
    assert chat.apply_chat_template(messages, prompt, **kwargs) == expected


def test_text_parts_are_their_joined_text(chat):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    plain = [{"role": "user", "content": "a\nb"}]
    assert chat.apply_chat_template([{"role": "user", "content": parts}]) == (
        chat.apply_chat_template(plain)
    )


def test_templates_come_from_a_list_or_a_file_or_the_caller(load, tmp_path):
    listed = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    tokenizer = load(byte_level(), tokenizer_config={"chat_template": listed})
    assert tokenizer.apply_chat_template(MESSAGES) == "D"
    assert tokenizer.apply_chat_template(MESSAGES, tools=[{"name": "f"}]) == "T"
    assert tokenizer.apply_chat_template(MESSAGES, chat_template="C") == "C"
    byte_level().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "old"}))
    (tmp_path / "chat_template.jinja").write_text(
        "{% generation %}{{ eos_token }}{% endgeneration %}{{ strftime_now('%Y')|length }}"
    )
    assert load_tokenizer(tmp_path).apply_chat_template(MESSAGES) == "4"


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "non-empty list"),
        ([{"role": "robot", "content": "a"}], "role must be one of .* got 'robot'"),
        ([{"content": "a"}], "role must be one of .* got None"),
        ([{"role": "user"}], "the user message has no content"),
        (
            [{"role": "user", "content": 3}],
            "content must be a string or a list of text parts, got 3",
        ),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "specjax reads text only"),
        ([{"role": "tool", "content": "a"}], "chat template refused the messages: no tools"),
    ],
)
def test_a_malformed_chat_is_one_clear_error(chat, messages, words):
    with pytest.raises(ValueError, match=words):
        chat.apply_chat_template(messages)


@pytest.mark.parametrize(
    ("template", "words"),
    [("{% if %}", "not valid jinja"), ("{{ messages.__class__.__mro__ }}", "unsafe")],
)
def test_a_broken_or_hostile_template_is_an_error(chat, template, words):
    with pytest.raises(ValueError, match=words):
        chat.apply_chat_template(MESSAGES, chat_template=template)


def test_without_a_template_the_error_says_what_to_do(kinds):
    with pytest.raises(ValueError, match="no chat template: use generate"):
        kinds["word_level"].apply_chat_template(MESSAGES)

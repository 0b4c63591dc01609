"""Laws of the training data: what is read, what is held out, which step sees what."""

import hashlib
import json
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from specjax.host.files import write_atomically
from specjax.train.batches import crop, measure
from specjax.train.data import (
    fingerprint,
    is_held_out,
    load_corpus,
    manifest,
    read_documents,
)
from specjax.train.tokenizer import (
    CHAT_TEMPLATE,
    end_of_text,
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
)

AWKWARD = (
    "def f(x):\n\treturn  x\r\n\n\n    # naïve café 漢字 🙂 \x00\x7f _a.b(c)  \n" + "\n" * 5 + " "
)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Return a folder of 120 small files, so that the split has both sides."""
    folder = tmp_path_factory.mktemp("source")
    for number in range(120):
        lines = "".join(f"    value_{i} = {number} * {i} + len(str({i}))\n" for i in range(9))
        body = f"def function_{number}(argument):\n{lines}    return argument\n"
        path = folder / f"package_{number % 3}" / f"module_{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(body)
    return folder


@pytest.fixture(scope="module")
def documents(source):
    return read_documents(str(source))


@pytest.fixture(scope="module")
def tokenizer(documents):
    return train_tokenizer([d.text for d in documents], 300)


def test_the_standard_library_is_read_without_installed_packages():
    documents = read_documents()
    paths = [d.path for d in documents]
    assert "heapq.py" in paths
    assert any(path.startswith("test/") for path in paths) or "abc.py" in paths
    assert not any("site-packages" in path or "__pycache__" in path for path in paths)
    assert paths == sorted(paths)
    share = sum(d.held_out for d in documents) / len(documents)
    assert 0.01 < share < 0.04
    heapq = documents[paths.index("heapq.py")]
    data = Path(sysconfig.get_paths()["stdlib"], "heapq.py").read_bytes()
    assert (heapq.num_bytes, heapq.sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_the_split_depends_on_the_path_alone(source, documents):
    told = manifest(documents)
    assert told["num_files"] == 120
    assert told["num_bytes"] == sum(path.stat().st_size for path in source.rglob("*.py"))
    for path, _, _, held_out in told["files"]:
        assert held_out == is_held_out(path)
    json.dumps(told)


def test_other_encodings_and_links_are_left_out(tmp_path, source):
    for number in range(120):
        (tmp_path / f"module_{number}.py").write_text("pass\n")
    before = [d.path for d in read_documents(str(tmp_path))]
    (tmp_path / "latin.py").write_bytes("# caf\xe9\n".encode("latin-1"))
    (tmp_path / "link.py").symlink_to(source / "package_0" / "module_0.py")
    (tmp_path / "notes.txt").write_text("not Python")
    assert [d.path for d in read_documents(str(tmp_path))] == before


@pytest.mark.parametrize("make", [lambda p: p / "absent", lambda p: p])
def test_a_folder_without_text_is_one_clear_error(make, tmp_path):
    with pytest.raises(ValueError, match=str(tmp_path)):
        read_documents(str(make(tmp_path)))


def test_the_tokenizer_loses_no_byte(tokenizer):
    ids = tokenizer.encode(AWKWARD).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == AWKWARD
    assert end_of_text(tokenizer) == 0


def test_the_tokenizer_is_the_same_every_time(documents, tokenizer):
    again = train_tokenizer([d.text for d in documents], 300)
    assert again.to_str() == tokenizer.to_str()


def test_a_prompt_cut_at_a_line_end_is_cut_between_tokens(tokenizer):
    text = "def f(x):\n    if x:\n        return x\n"
    whole = tokenizer.encode(text).tokens
    for cut in [text.index("\n") + 1, text.index("if"), text.index("return")]:
        assert (
            whole[: len(tokenizer.encode(text[:cut]).tokens)] == tokenizer.encode(text[:cut]).tokens
        )


def test_too_little_text_for_the_vocabulary_is_an_error():
    with pytest.raises(ValueError, match="asked for 2048"):
        train_tokenizer(["x = 1\n"], 2048)


def test_transformers_loads_the_tokenizer_as_it_is(tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    save_tokenizer(tokenizer, tmp_path, 64)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(AWKWARD)["input_ids"] == tokenizer.encode(AWKWARD).ids
    assert (theirs.eos_token_id, theirs.model_max_length) == (0, 64)
    said = theirs.apply_chat_template([{"role": "user", "content": "x = 1"}], tokenize=False)
    assert said == "x = 1\n"
    assert theirs.chat_template == CHAT_TEMPLATE


def test_a_reused_tokenizer_must_fit(tokenizer, tmp_path):
    save_tokenizer(tokenizer, tmp_path, 64)
    assert load_tokenizer(tmp_path, 300).to_str() == tokenizer.to_str()
    with pytest.raises(ValueError, match="300 tokens, vocab_size is 400"):
        load_tokenizer(tmp_path, 400)
    with pytest.raises(ValueError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path / "absent", 300)


def test_the_cached_tokens_are_the_encoded_documents(documents, tokenizer, tmp_path):
    cache = tmp_path / "corpus.npz"
    corpus = load_corpus(documents, tokenizer, 0, cache)
    again = load_corpus(documents, tokenizer, 0, cache)
    for side, held_out in (("train", False), ("held_out", True)):
        tokens = getattr(corpus, side)
        np.testing.assert_array_equal(tokens, getattr(again, side))
        assert tokens.dtype == np.uint16
        texts = tokenizer.decode(tokens.tolist(), skip_special_tokens=False)
        expected = [d.text for d in documents if d.held_out == held_out]
        assert texts.split("<|endoftext|>")[:-1] == expected


def test_a_stale_or_damaged_cache_is_made_again(documents, tokenizer, tmp_path):
    cache = tmp_path / "corpus.npz"
    whole = load_corpus(documents, tokenizer, 0, cache)
    fewer = load_corpus(documents[1:], tokenizer, 0, cache)
    assert len(fewer.train) + len(fewer.held_out) < len(whole.train) + len(whole.held_out)
    cache.write_bytes(cache.read_bytes()[:100])
    np.testing.assert_array_equal(load_corpus(documents, tokenizer, 0, cache).train, whole.train)


def test_the_fingerprint_sees_text_split_and_tokenizer(documents, tokenizer):
    other = Tokenizer.from_str(tokenizer.to_str().replace('"content":"<|end', '"content":"<|fin'))
    changed = [documents[0]._replace(sha256="0"), *documents[1:]]
    moved = [documents[0]._replace(held_out=not documents[0].held_out), *documents[1:]]
    prints = {fingerprint(d, tokenizer) for d in (documents, changed, moved)}
    assert len({*prints, fingerprint(documents, other)}) == 4


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def interrupted():
        with write_atomically(path) as file:
            file.write(b"half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("length", [18, 31, 32, 33, 100, 1000, 1007])
def test_every_window_of_an_epoch_comes_once(length):
    tokens, context = np.arange(length, dtype=np.uint16), 16
    per_epoch = max((length - context) // context, 1)
    for epoch in range(3):
        steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        rows = np.concatenate([crop(tokens, 5, step, 1, context) for step in steps])
        assert len(set(rows[:, 0].tolist())) == per_epoch
        assert (np.diff(rows, axis=1) == 1).all()
        firsts = np.sort(rows[:, 0])
        assert (np.diff(firsts) >= context).all()


def test_a_step_sees_the_same_text_whatever_came_before():
    tokens = np.arange(5000, dtype=np.uint16)
    forwards = [crop(tokens, 3, step, 4, 32) for step in range(60)]
    backwards = [crop(tokens, 3, step, 4, 32) for step in reversed(range(60))]
    for a, b in zip(forwards, reversed(backwards), strict=True):
        np.testing.assert_array_equal(a, b)
    assert forwards[0].shape == (4, 33)
    assert forwards[0].dtype == np.int32
    assert (crop(tokens, 4, 0, 4, 32) != forwards[0]).any()


def test_held_out_batches_cover_the_text_from_end_to_end():
    tokens = np.arange(1000, dtype=np.uint16)
    batches = measure(tokens, 2, 16, 3)
    rows = np.concatenate(batches)
    assert rows.shape == (6, 17)
    assert (rows[0, 0], rows[-1, -1]) == (0, 999)


@pytest.mark.parametrize("read", [lambda t: crop(t, 0, 0, 1, 16), lambda t: measure(t, 1, 16, 1)])
def test_text_shorter_than_a_window_is_an_error(read):
    with pytest.raises(ValueError, match="the text has 16 tokens"):
        read(np.zeros(16, np.uint16))

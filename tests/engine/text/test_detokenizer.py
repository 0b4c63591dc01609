"""Streams equal the whole text; stop strings are found however tokens cut them."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specjax.engine.text.detokenizer import Detokenizer, StopChecker


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


def test_a_stop_across_tokens_counts_the_ids_up_to_the_one_that_completes_it(kinds):
    tokenizer = kinds["byte_level"]
    ids = tokenizer.encode("return x + 1\n🤗 and more")
    checker = StopChecker(["\n🤗"])
    assert "".join(push_all(checker, stream(tokenizer, ids))) == "return x + 1"
    assert "\n🤗" in tokenizer.decode(ids[: checker.num_tokens])
    assert "\n🤗" not in tokenizer.decode(ids[: checker.num_tokens - 1])


def test_without_a_stop_a_broken_end_comes_out_last(kinds):
    tokenizer = kinds["byte_level"]
    ids = tokenizer.encode("你好 🤗")[:-1]
    *deltas, late = stream(tokenizer, ids)
    checker = StopChecker([])
    out = [checker.push(delta) for delta in deltas]
    assert "".join([*out, checker.flush(late)]) == tokenizer.decode(ids)
    assert checker.num_tokens == len(ids)

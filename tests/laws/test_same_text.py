"""Law 1: same seed, same text, and the same bits of every logit. Law 9: in any company."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core import ops
from specjax.core.types import STOPPED
from specjax.drafters import suffix_index
from specjax.drafters.suffix import suffix
from specjax.testing.laws import assert_bitwise
from tests.laws import harness as h

CHUNKS = {"ngram": 16, "suffix": 16, "draft_model greedy": 16, "draft_model coupled": 8}


def only(result: h.Result, some: slice) -> h.Result:
    """Return what a run said in some of its rows."""
    return result._replace(
        tokens=result.tokens[some], logprobs=result.logprobs[some], reason=result.reason[some]
    )


@pytest.mark.parametrize("name", h.CHAINS)
def test_in_one_program_no_chain_drafter_changes_text_or_logits(name):
    """1(a): plain is max_draft 0 in the same program; ids and logits are equal bitwise."""
    rows = h.random_rows(4, seed=1)
    plain = h.run(h.CHAINS[name], [row._replace(max_draft=0) for row in rows])
    drafted = h.run(h.CHAINS[name], rows)
    assert_bitwise(drafted, plain)
    assert drafted.infos.num_accepted.sum() > 0
    assert plain.infos.num_drafted.sum() == 0


def test_in_one_program_neither_slot_nor_mates_change_text_or_logits():
    """1(a) and 9: four other mates, and the row in every slot."""
    rows = h.random_rows(4, seed=2)
    drafter = h.CHAINS["draft_model coupled"]
    alone = h.run(drafter, rows)
    for shift in range(1, 4):
        turned = h.run(drafter, rows[shift:] + rows[:shift])
        for b in range(4):
            assert turned.tokens[b] == alone.tokens[(b + shift) % 4]
            np.testing.assert_array_equal(turned.logprobs[b], alone.logprobs[(b + shift) % 4])
    mates = h.run(drafter, [rows[0], *h.random_rows(3, seed=99)])
    assert mates.tokens[0] == alone.tokens[0]
    np.testing.assert_array_equal(mates.logprobs[0], alone.logprobs[0])


@pytest.mark.parametrize("name", h.TREES)
def test_no_tree_changes_the_text(name):
    """For trees, with a drafter that knows the answer and is wrong now and then: bit for bit."""
    rows = h.random_rows(4, seed=3)
    plain = h.run(h.PLAIN, rows)
    for skill in (0.5, 0.95):
        drafted = h.run(h.guided(h.TREES[name]), rows, params=h.knowing(plain, rows, skill))
        assert_bitwise(drafted, plain)
        assert drafted.infos.num_accepted.sum() > 10


@pytest.mark.parametrize("name", h.GROWN)
def test_no_grown_tree_changes_text_or_logits(name):
    rows = h.random_rows(4, seed=3)
    assert_bitwise(h.run(h.GROWN[name], rows), h.run(h.PLAIN, rows))


def test_across_shapes_ids_and_logits_are_equal_bitwise_over_10_000_tokens():
    """Other N, B, chunk: sixteen rows plain, and four by four drafted."""
    tokens = 0
    for seed in range(5):
        rows = h.random_rows(16, seed=100 + seed)
        rows = [row._replace(stop_ids=(), max_tokens=50) for row in rows]
        plain = h.run(h.PLAIN, rows)
        for (name, chunk), four in itertools.product(CHUNKS.items(), range(0, 16, 4)):
            some = slice(four, four + 4)
            drafted = h.run(h.CHAINS[name], rows[some], chunk=chunk)
            tokens += sum(map(len, drafted.tokens))
            assert_bitwise(drafted, only(plain, some))
    assert tokens >= 10_000


@pytest.mark.parametrize("size", [1, 2, 3, 24])
def test_a_batch_of_any_size_and_a_window_of_any_width_give_the_same_bits(size):
    """9 across shapes: B = 1, 2, 3, 24 against 5; windows of 128, 112 and 104 positions."""
    rows = h.random_rows(24, seed=7)
    expected = h.run(h.PLAIN, rows[:5])
    for window in (h.CAPACITY, 112, 104):
        found = h.run(h.PLAIN, rows[:size], window=window)
        least = slice(0, min(size, 5))
        assert_bitwise(only(found, least), only(expected, least))


def test_the_law_sees_a_product_whose_order_depends_on_its_shape(monkeypatch):
    """The mutation: XLA's float32 product sums up in another order for other numbers of rows."""
    rows = h.random_rows(4, seed=7)

    def plain_product(x, weight):
        return jnp.einsum("ni,oi->no", x, weight)

    monkeypatch.setattr(ops, "product", plain_product)
    jax.clear_caches()
    try:
        together = h.run(h.PLAIN, rows)
        alone = h.run(h.PLAIN, rows[:1])
        drafted = h.run(h.CHAINS["ngram"], rows)
    finally:
        monkeypatch.undo()
        jax.clear_caches()
    differ = [one != other for one, other in zip(drafted.tokens, together.tokens, strict=True)]
    differ += [
        (ours != theirs).any()
        for found, expected in ((alone, together), (drafted, together))
        for ours, theirs in zip(found.logprobs, expected.logprobs, strict=False)
    ]
    assert any(differ)


def test_what_others_said_never_changes_the_text():
    """1(a) for suffix decoding: no index of responses, an empty one, or one full of nonsense."""
    rows = h.random_rows(4, seed=8)
    params, drafter = h.weights(), suffix(4, 8)
    noise = jax.random.randint(jax.random.key(3), (1, 400), 0, 5, jnp.int32)
    empty = suffix_index.empty(1, 8, 400)
    full = jax.jit(suffix_index.extend)(empty, noise, jnp.full(1, 400, jnp.int32))
    plain = h.run(drafter, [row._replace(max_draft=0) for row in rows], params=with_(params, full))
    for index in (None, empty, full):
        assert_bitwise(h.run(drafter, rows, params=with_(params, index)), plain)


def test_trees_of_what_was_said_never_change_the_text():
    """Suffix decoding's trees: several branches, and a node that is never used."""
    rows = h.random_rows(4, seed=3)
    drafted = h.run(h.alone(suffix(4, 8, 2.0, 0.05, 1.0, use_tree_spec=True)), rows)
    assert_bitwise(drafted, h.run(h.PLAIN, rows))
    assert drafted.infos.num_accepted.sum() > 4
    assert drafted.infos.num_drafted.max() == 4


def with_(params, index):
    return params._replace(draft=index)


def test_the_law_sees_a_window_that_is_too_small():
    """Text alone is a blind test; the logits show attention that misses the last slots."""
    rows = [h.Row(tuple(range(1, 36)), 12, seed=0)] * 4
    plain = h.run(h.PLAIN, rows)

    def short_sighted(params, tokens, positions, visible, cache, window, *rest):
        return h.TARGET.forward(params, tokens, positions, visible, cache, 40, *rest)

    broken = h.run(h.PLAIN, rows, target=h.TARGET._replace(forward=short_sighted))
    with pytest.raises(AssertionError):
        assert_bitwise(broken, plain)


def test_stops_limits_and_min_tokens_hold_in_the_middle_of_a_draft():
    """The oracle drafts far past every stop; the text still ends where plain decoding ends."""
    rows = [row._replace(stop_ids=(5, 11), max_tokens=50) for row in h.random_rows(8, seed=11)]
    rows += [row._replace(max_tokens=n) for n, row in enumerate(h.random_rows(8, 12), start=1)]
    plain = h.run(h.PLAIN, rows)
    assert plain.reason.count(STOPPED) >= 3
    free = h.run(h.PLAIN, [row._replace(stop_ids=(), max_tokens=60) for row in rows])
    drafted = h.run(h.guided(h.CHAIN), rows, params=h.knowing(free, rows, 1.0))
    assert drafted.tokens == plain.tokens
    assert drafted.reason == plain.reason
    for row, tokens in zip(rows, drafted.tokens, strict=True):
        assert not set(tokens[: row.min_tokens]) & set(row.stop_ids)
        assert not set(tokens[:-1]) & set(row.stop_ids)

"""The laws for rings: a sliding-window layer that holds its window writes the same bits."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core import cache, ops
from specjax.core.types import Engine, Params, Ring, Slots
from specjax.drafters.draft_model import draft_model
from specjax.drafters.feature import feature
from specjax.engine.loop import Loop
from specjax.models.build import build_feature_head, build_target, cache_of, init_params
from specjax.models.config import AttentionKind, FeatureConfig
from specjax.testing.harness import CAPACITY, TINY, VOCAB, Row
from specjax.verify.walk import walk
from tests.laws import harness as h
from tests.laws import test_churn as churn

WINDOW, CHUNK = 9, 16
SLIDING = AttentionKind(window=WINDOW, rope=TINY.rope)
CHUNKED = dataclasses.replace(SLIDING, chunked=True)
CONFIG = dataclasses.replace(
    TINY, num_layers=3, layers=(SLIDING, AttentionKind(rope=TINY.rope), CHUNKED), sinks=True
)
ROOM = CHUNK  # a draft model reads a chunk and one position more
HELD = WINDOW + ROOM
RING, WHOLE = build_target(CONFIG, ring_room=ROOM), build_target(CONFIG)
MTP = FeatureConfig(kind="mtp", block=CONFIG.block(2), target_size=CONFIG.hidden_size)
HEAD = build_feature_head(MTP)._replace(
    init_cache=functools.partial(cache_of, MTP.block, ring_room=ROOM)
)
ROWS = [*h.random_rows(3, seed=3, plain=True), *h.random_rows(2, seed=4)]
ROWS = [row._replace(max_tokens=60) for row in ROWS]
DRAFTERS = {
    "ngram": h.CHAINS["ngram"],
    "draft_model": draft_model(RING, h.K, "coupled"),
    "pard": draft_model(RING, h.K, mask_token_id=5),
    "draft_model bush": draft_model(RING, h.BUSH, "coupled"),
    "draft_model best": draft_model(RING, h.BEST, "greedy"),
    "mtp": feature(HEAD, h.K, "greedy"),
    "mtp best": feature(HEAD, h.BEST, "greedy"),
}


@functools.cache
def weights(drafter=None):
    """The target's weights, none at rest, and those of a drafter: a head's, or noisy ones."""

    def noisy(params, share, key):
        leaves, tree = jax.tree.flatten(params)
        keys = jax.random.split(jax.random.key(key), len(leaves))
        pairs = zip(leaves, keys, strict=True)
        drawn = [x + share * jax.random.normal(k, x.shape) for x, k in pairs]
        return jax.tree.unflatten(tree, drawn)

    target = noisy(init_params(CONFIG, jax.random.key(0)), 0.1, 1)
    if drafter in (DRAFTERS["mtp"], DRAFTERS["mtp best"]):
        return Params(target, init_params(MTP, jax.random.key(1)))
    return Params(target, noisy(target, 0.02, 2))


def run(drafter, rows=ROWS, *, target=RING, params=None, chunk=CHUNK, **shape):
    """Complete a batch; the drafter's weights are its usual ones."""
    params = params or weights(drafter)
    return h.run(drafter, rows, target=target, params=params, chunk=chunk, **shape)


def assert_same(found, expected):
    """Text and every bit of every log probability are the same."""
    assert found.tokens == expected.tokens
    for ours, theirs in zip(found.logprobs, expected.logprobs, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.fixture(scope="module")
def whole():
    """Plain decoding with caches of all positions."""
    found = run(h.PLAIN, target=WHOLE)
    assert all(isinstance(one, Slots) for one in found.state.cache.layers)
    assert min(found.state.text.lengths) > 2 * HELD  # all go round, some four times
    return found


def test_a_ring_holds_the_last_positions(whole):
    found = run(h.PLAIN)
    lengths = np.asarray(found.state.cache.lengths)
    kinds = [type(one) for one in found.state.cache.layers]
    assert kinds == [Ring, Slots, Ring]
    for ring, all_of_it in zip(found.state.cache.layers, whole.state.cache.layers, strict=True):
        for ours, theirs in zip(ring, all_of_it, strict=True):
            for b, length in enumerate(lengths):
                last = np.arange(length - WINDOW + 1, length)
                at = last % HELD if isinstance(ring, Ring) else last
                found, expected = np.asarray(ours)[b, :, at], np.asarray(theirs)[b, :, last]
                np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", DRAFTERS)
def test_speculation_over_rings_never_changes_a_bit(name, whole):
    drafter = DRAFTERS[name]
    found = run(drafter)
    assert found.infos.num_accepted.sum() < found.infos.num_drafted.sum()
    assert found.infos.num_accepted.sum() > 0 or name == "mtp"  # a chain of a head at random
    assert_same(found, whole)


@pytest.mark.parametrize("name", h.TREES)
def test_accepted_branches_move_around_the_end(name, whole):
    params = h.knowing(whole, ROWS, 0.8)._replace(target=weights().target)
    found = run(h.guided(h.TREES[name]), params=params)
    assert found.infos.num_accepted.sum() > 30
    assert_same(found, whole)


@pytest.mark.parametrize("chunk", [1, 5])
def test_a_prompt_is_read_in_chunks_of_any_size(chunk, whole):
    assert_same(run(h.PLAIN, chunk=chunk), whole)


def test_neither_batch_nor_slot_nor_window_changes_a_bit(whole):
    turned = run(DRAFTERS["ngram"], ROWS[1:] + ROWS[:1], window=112)
    assert turned.tokens == whole.tokens[1:] + whole.tokens[:1]
    for b, row in enumerate(ROWS):
        one = run(h.PLAIN, [row])
        assert one.tokens == [whole.tokens[b]]
        np.testing.assert_array_equal(one.logprobs[0], whole.logprobs[b])
        np.testing.assert_array_equal(turned.logprobs[b - 1], whole.logprobs[b])


def test_rows_come_and_go_in_batches_and_windows_of_any_size():
    """1(a): batches of 1, 2 and 4, caches that grow beside rings that stay."""
    asked, drafter = churn.some(12, seed=3), DRAFTERS["draft_model"]

    def loop(target, sizes, windows):
        return Loop(
            Engine(target, drafter, walk, 0),
            weights(drafter),
            churn.plan(sizes, windows),
            alternate=True,
        )

    expected = churn.alone(loop(WHOLE, (1,), (CAPACITY,)), asked)
    done = churn.churned(loop(RING, (1, 2, 4), (64, CAPACITY)), asked, seed=4)
    for one, other in zip(done, expected, strict=True):
        assert one.tokens == other.tokens[: len(one.tokens)]
        np.testing.assert_array_equal(churn.logprobs(one), churn.logprobs(other)[: len(one.tokens)])
        assert one.finish_reason in ("abort", other.finish_reason)
    assert sum(len(one.tokens) for one in done) > 150


def test_a_prompt_goes_on_where_another_has_read(whole):
    """As long as what it must see of the other's is in the ring."""
    prompt, drafter = ROWS[0].prompt * 3, DRAFTERS["draft_model"]
    before = Row((*prompt[:50], 1, 2, 3), 4, seed=1)
    row = Row((*prompt[:50], 7, 8, 9, 10), 40, seed=2, temperature=0.9)
    params = weights(drafter)
    engine = Engine(RING, drafter, walk, CAPACITY, num_logprobs=VOCAB)

    def read(row, saved=(), known=0):
        state = h.init_state(engine, params, *h.pack([row], CAPACITY, False))
        if saved:
            state = cache.resume(state, list(saved), jnp.int32(known))
        for start in range(known, len(row.prompt), CHUNK):
            state, *_ = h.prefill(engine, params, state, start, CHUNK)
        return state

    def texts(state):
        state, infos, _ = h.generate(engine, params, state, 40, 1, 40)
        return state.text.tokens, infos.logprobs.values

    saved = cache.all_slots(read(before))
    assert {type(one) for one in saved} == {Ring, Slots}
    again = texts(read(row, saved, 49))
    jax.tree.map(np.testing.assert_array_equal, again, texts(read(row)))


def test_a_pass_that_would_overwrite_what_it_sees_is_refused():
    small = build_target(CONFIG, ring_room=CHUNK - 2)
    with pytest.raises(ValueError, match="read at most 15 at once"):
        run(h.PLAIN, target=small)
    run(h.PLAIN, ROWS[:1], target=small, chunk=CHUNK - 1)


def test_the_law_sees_a_ring_that_is_one_position_too_small(whole, monkeypatch):
    """The mutation: without the check, what is drafted overwrites what is still seen."""
    import specjax.models.decoder as decoder

    small = build_target(CONFIG, ring_room=h.K - 1)  # of K + 1 nodes
    right = decoder.ring_mask

    def unchecked(lengths, visible, positions, window, *rest):
        return right(lengths, visible, positions, window - 1, *rest)

    params = h.knowing(whole, ROWS, 0.5)._replace(target=weights().target)
    monkeypatch.setattr(decoder, "ring_mask", unchecked)
    found = run(h.guided(h.CHAIN), target=small, params=params, chunk=1)
    assert any(
        len(ours) != len(theirs) or (ours != theirs).any()
        for ours, theirs in zip(found.logprobs, whole.logprobs, strict=True)
    )


def test_the_law_sees_the_order_of_a_sum(whole, monkeypatch):
    """The mutation: positions are added up in the order of their slots."""
    right = ops.ring_attention
    monkeypatch.setattr(
        ops, "ring_attention", lambda q, k, v, m, first, s: right(q, k, v, m, 0 * first, s)
    )
    found = run(h.PLAIN, target=build_target(CONFIG, ring_room=ROOM + 1))
    assert any(
        (ours[: len(theirs)] != theirs[: len(ours)]).any()
        for ours, theirs in zip(found.logprobs, whole.logprobs, strict=True)
    )

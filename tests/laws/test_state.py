"""Laws 5, 6, 8 and 10: what the state holds between rounds, traces, and the counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core.topology import causal
from specjax.core.types import RUNNING, Engine
from specjax.drafters import suffix_index
from specjax.models.build import build_block_head, build_feature_head
from specjax.models.config import BlockConfig
from specjax.testing.laws import one_trace
from specjax.testing.subject import long_rows, of_drafter
from specjax.verify.walk import walk
from tests.laws import harness as h
from tests.shapes import assert_shapes

HEADS = [
    ("eagle", 4),
    ("eagle3", 16),
    ("mtp", 16),
    ("deepseek_mtp", 16),
    ("peagle", 4),
]  # and chunk
TWICE = (
    "ngram", "suffix", "draft_model coupled", "draft_model best", "pard", "eagle3", "mtp",
    "deepseek_mtp", "medusa", "mlp_speculator", "peagle", "dflash", "dspark",
)  # fmt: skip


def one_pass(params, tokens):
    """Read whole texts [B, T] from an empty cache."""
    cache = h.TARGET.init_cache(*tokens.shape)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1])[None], tokens.shape)
    return h.TARGET.forward(params, tokens, positions, causal(h.CAPACITY), cache, h.CAPACITY)


def assert_cache_holds(cache, fresh, lengths):
    for ours, theirs in zip(*map(jax.tree.leaves, (cache.layers, fresh.layers)), strict=True):
        for b, length in enumerate(lengths):
            np.testing.assert_allclose(ours[b, :, :length], theirs[b, :, :length], atol=2e-5)


@pytest.mark.parametrize("name", ["chain", "bush", "binary"])
def test_the_cache_lags_the_text_by_the_root_and_holds_what_one_pass_would(name):
    """5, along chains and along tree paths that had to move."""
    rows = h.random_rows(4, seed=3)
    truth = h.run(h.PLAIN, rows, lean=True)
    tree = h.TREES.get(name, h.CHAIN)
    result = h.run(h.guided(tree), rows, params=h.knowing(truth, rows, 0.8), lean=True)
    text, cache = result.state.text, result.state.cache
    np.testing.assert_array_equal(cache.lengths, text.lengths - 1)
    _, fresh = jax.jit(one_pass)(h.weights().target, text.tokens)
    assert_cache_holds(cache, fresh, np.asarray(cache.lengths))


@pytest.mark.parametrize(("name", "chunk"), [("draft_model greedy", 4), ("pard", 16)])
def test_observe_leaves_the_drafter_where_one_long_pass_would(name, chunk):
    """6: after ragged prefill chunks, partial acceptance and rows that ended early."""
    rows = h.random_rows(4, seed=31)
    result = h.run(h.CHAINS[name], rows, chunk=chunk, lean=True)
    text, drafter = result.state.text, result.state.drafter
    np.testing.assert_array_equal(drafter.cache.lengths, text.lengths)
    output, fresh = jax.jit(one_pass)(h.weights().draft, text.tokens)
    assert_cache_holds(drafter.cache, fresh, np.asarray(text.lengths))
    last = np.asarray(output.hidden)[np.arange(4), np.asarray(text.lengths) - 1]
    np.testing.assert_allclose(drafter.hidden, last, atol=1e-4)


@pytest.mark.parametrize(("name", "chunk"), HEADS)
def test_a_head_is_where_one_pass_over_all_pairs_would_leave_it(name, chunk):
    """6: pair i is token i + 1 with the target's feature of position i, at position i."""
    drafter, (config, _) = h.CHAINS[name], h.HEADS[name]
    rows = h.random_rows(4, seed=31)
    result = h.run(drafter, rows, chunk=chunk, lean=True)
    text, after = result.state.text, result.state.drafter
    params, head = h.weights(drafter), build_feature_head(config)

    @jax.jit
    def one_pass_of_pairs():
        shown, _ = one_pass(params.target, text.tokens)
        pairs = text.tokens.shape[1] - 1
        positions = jnp.broadcast_to(jnp.arange(pairs)[None], (4, pairs))
        features = head.fuse(params.draft, shown.hidden, shown.taps)[:, :-1]
        cache = head.init_cache(4, h.CAPACITY)
        shape = positions, causal(pairs), cache, h.CAPACITY
        return head.forward(params.draft, text.tokens[:, 1:], features, *shape)

    features, fresh = one_pass_of_pairs()
    np.testing.assert_array_equal(after.cache.lengths, text.lengths - 1)
    assert_cache_holds(after.cache, fresh, np.asarray(after.cache.lengths))
    last = np.asarray(features)[np.arange(4), np.asarray(text.lengths) - 2]
    np.testing.assert_allclose(after.feature, last, atol=1e-4)


@pytest.mark.parametrize(("name", "chunk"), [("dflash", 4), ("dspark", 16)])
def test_a_block_head_remembers_what_one_pass_would(name, chunk):
    """6: keys and values of the target's hidden states, and none of a block's own."""
    drafter, (config, _) = h.CHAINS[name], h.HEADS[name]
    assert isinstance(config, BlockConfig)
    result = h.run(drafter, h.random_rows(4, seed=31), chunk=chunk, lean=True)
    text, after = result.state.text, result.state.drafter
    params, head = h.weights(drafter), build_block_head(config)

    @jax.jit
    def one_pass_of_taps():
        shown, _ = one_pass(params.target, text.tokens)
        positions = jnp.broadcast_to(jnp.arange(h.CAPACITY)[None], text.tokens.shape)
        cache = head.init_cache(4, h.CAPACITY)
        return head.remember(params.draft, shown.taps, positions, cache)

    np.testing.assert_array_equal(after.lengths, text.lengths - 1)
    assert_cache_holds(after, one_pass_of_taps(), np.asarray(after.lengths))


@pytest.mark.parametrize("name", ["medusa", "mlp_speculator"])
def test_stages_remember_the_hidden_state_before_the_last_token(name):
    """6, for drafters without a cache."""
    result = h.run(h.CHAINS[name], h.random_rows(4, seed=31), lean=True)
    text = result.state.text
    shown, _ = jax.jit(one_pass)(h.weights().target, text.tokens)
    last = np.asarray(shown.hidden)[np.arange(4), np.asarray(text.lengths) - 2]
    np.testing.assert_allclose(result.state.drafter, last, atol=1e-4)


@pytest.mark.parametrize("chunk", [4, 16])
def test_observe_leaves_the_suffix_index_where_one_long_read_would(chunk):
    """6 for suffix decoding: the same nodes in the same places, whatever was drafted."""
    result = h.run(h.CHAINS["suffix"], h.random_rows(4, seed=31), chunk=chunk, lean=True)
    text, index = result.state.text, result.state.drafter
    empty = suffix_index.empty(4, 8, h.CAPACITY)
    fresh = jax.jit(suffix_index.extend)(empty, text.tokens, text.lengths)
    jax.tree.map(np.testing.assert_array_equal, index, fresh)
    seen = h.decode.Observation(
        tokens=jnp.zeros((4, 3), jnp.int32),
        hidden=jnp.zeros((4, 3, 32)),
        taps=jnp.zeros((4, 3, 0, 32)),
        start=jnp.maximum(text.lengths - 2, 0),
        count=jnp.ones(4, jnp.int32),
    )
    observe = jax.jit(h.CHAINS["suffix"].observe, static_argnums=4)
    again = observe(None, index, text, seen, h.CAPACITY)
    jax.tree.map(np.testing.assert_array_equal, again, fresh)


def test_a_listener_writes_down_what_one_pass_would_and_leaves_the_text():
    """6 and 1: the taps of every token but the last, and nothing past them."""
    rows = h.random_rows(4, seed=31)
    result = h.run(h.LISTENER, rows, lean=True)
    assert result.tokens == h.run(h.PLAIN, rows, lean=True).tokens
    text, heard = result.state.text, np.asarray(result.state.drafter)
    shown, _ = jax.jit(one_pass)(h.weights().target, text.tokens)
    for b, length in enumerate(np.asarray(text.lengths)):
        expected = np.asarray(shown.taps)[b, : length - 1]
        np.testing.assert_allclose(heard[b, : length - 1], expected, atol=2e-5)
        assert not heard[b, length - 1 :].any()


def test_observing_twice_changes_nothing():
    """6: observe sets its length from what it is told, so it is idempotent."""
    rows = h.random_rows(4, seed=32)
    engine = Engine(h.TARGET, h.CHAINS["draft_model greedy"], walk, h.CAPACITY)
    params = h.weights()
    state = h.init_state(engine, params, *h.pack(rows, lean=True))
    for start in range(0, 40, 16):
        state, _, _ = h.prefill(engine, params, state, start, 16)
    text, drafter = state.text, state.drafter
    seen = h.decode.Observation(
        tokens=jnp.zeros((4, 3), jnp.int32),
        hidden=jnp.zeros((4, 3, 32)),
        taps=jnp.zeros((4, 3, 0, 32)),
        start=jnp.maximum(text.lengths - 2, 0),
        count=jnp.where(text.lengths > 1, 1, 0),
    )
    observe = jax.jit(engine.drafter.observe, static_argnums=4)
    once = observe(params.draft, drafter, text, seen, h.CAPACITY)
    twice = observe(params.draft, once, text, seen, h.CAPACITY)
    jax.tree.map(np.testing.assert_array_equal, once, twice)
    np.testing.assert_allclose(once.hidden, drafter.hidden, atol=1e-5)


def test_one_trace_per_engine_and_shape():
    """8: other prompts, seeds, temperatures and limits are other numbers, not other programs."""
    one_trace(of_drafter(h.CHAINS["ngram"]))


@pytest.mark.parametrize("name", ["ngram", "suffix", "draft_model greedy", "eagle", "bush"])
def test_every_token_is_counted_once(name):
    """10: rows + rounds + accepted - emitted = tokens cut off, 0 to K per row."""
    rows = [row._replace(stop_ids=(3, 7)) for row in h.random_rows(4, seed=51)]
    drafter = h.CHAINS.get(name)
    params = h.weights(drafter)
    if drafter is None:
        drafter = h.guided(h.TREES[name])
        params = h.knowing(h.run(h.PLAIN, rows, lean=True), rows, 0.9)
    result = h.run(drafter, rows, params=params, lean=True)
    infos, text = jax.device_get((result.infos, result.state.text))
    assert (text.reason != RUNNING).all()
    rounds = (infos.num_emitted > 0).sum(axis=0)
    emitted = text.lengths - text.starts
    cut = 1 + rounds + infos.num_accepted.sum(axis=0) - emitted
    assert ((cut >= 0) & (cut <= drafter.depth)).all()
    assert (infos.num_accepted <= infos.num_drafted).all()
    done = slice(result.rounds)  # past the last round the stacked infos are zeros
    assert ((infos.drafted[done] >= 0).sum(axis=-1) == infos.num_drafted[done]).all()
    assert (infos.num_emitted <= infos.num_accepted + 1).all()
    idle = infos.num_emitted == 0
    assert (infos.num_drafted[idle] == 0).all()
    assert (infos.num_accepted[idle] == 0).all()
    assert emitted.tolist() == [len(tokens) for tokens in result.tokens]


@pytest.mark.parametrize("name", ["ngram", "suffix", "draft_model coupled", "eagle3", "bush"])
def test_every_record_has_the_shapes_it_declares(name):
    """B, T, N, K and the rest mean the same in every type that meets in a round."""
    rows = h.random_rows(4, seed=51)
    drafter = h.CHAINS.get(name)
    params = h.weights(drafter)
    if drafter is None:
        drafter = h.guided(h.TREES[name])
        params = h.knowing(h.run(h.PLAIN, rows, lean=True), rows, 0.9)
    engine = Engine(h.TARGET, drafter, walk, h.CAPACITY, num_logprobs=3)

    def first_rounds(params):
        state = h.init_state(engine, params, *h.pack(rows))
        for start in range(0, 40, 16):
            state, _, _ = h.prefill(engine, params, state, start, 16)
        draft, _ = drafter.propose(
            params.draft, state.drafter, state.text, state.sampling, state.keys, h.CAPACITY
        )
        after, info = h.step(engine, params, state)
        for one in (state, after):
            sampling = one.sampling
            assert_shapes(
                one.text,
                one.cache,
                *one.cache.layers,
                sampling,
                sampling.penalties,
                draft,
                info,
                one,
            )
        assert_shapes(info, info.logprobs)
        return info

    assert jax.eval_shape(first_rounds, params).num_emitted.shape == (len(rows),)


def test_a_wrong_shape_is_seen():
    text, _, _ = h.pack(h.random_rows(4, seed=1))
    with pytest.raises(AssertionError, match=r"Text\.limits"):
        assert_shapes(text._replace(limits=text.limits[:2]))
    with pytest.raises(AssertionError, match=r"Text\.lengths"):
        assert_shapes(text._replace(lengths=text.lengths.astype(jnp.float32)))


@pytest.mark.parametrize("name", TWICE)
def test_a_draft_that_is_made_twice_leaves_no_trace(name):
    """The server begins a round ahead, and again if a request joins before it goes on."""
    drafter = h.CHAINS.get(name) or h.GROWN[name]

    def propose(params, state, *rest):
        return drafter.propose(params, drafter.propose(params, state, *rest)[1], *rest)

    rows = long_rows()
    once, twice = (
        h.run(one, rows, params=h.weights(drafter), lean=True)
        for one in (drafter, drafter._replace(propose=propose))
    )
    assert twice.tokens == once.tokens
    assert twice.rounds == once.rounds
    np.testing.assert_array_equal(twice.infos.drafted, once.infos.drafted)

"""The toy targets keep the Target contract: what is cached, read and shown."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core import cache as kv
from specjax.core.topology import causal, place
from specjax.core.types import Cache, Draft, Slots
from specjax.models.toy import markov_target
from tests.models.history import history_target

V, R, CAPACITY = 5, 64, 32
TARGETS = {"markov": (markov_target, V), "history": (history_target, R)}
PREFIX = np.random.default_rng(0).integers(0, V, (3, 11)).astype(np.int32)


def table(rows):
    return jax.random.normal(jax.random.key(rows), (rows, V), jnp.float32)


def row_after(name, tokens):
    """Say which row of the table a prefix picks, with Python integers."""
    if name == "markov":
        return int(tokens[-1])
    total = 0
    for position, token in enumerate(tokens):
        word = (int(token) + 1) * 0x9E3779B1 % 2**32 ^ (position + 1) * 0x85EBCA77 % 2**32
        word = (word ^ word >> 15) * 0xC2B2AE3D % 2**32
        total += word ^ word >> 13
    return total % 2**32 % R


def read(target, params, tokens, cache, window=CAPACITY):
    """Read a chunk, and keep it."""
    nodes = tokens.shape[1]
    positions = cache.lengths[:, None] + jnp.arange(nodes)[None]
    output, cache = target.forward(
        params, jnp.asarray(tokens), positions, causal(nodes), cache, window
    )
    return target.logits(params, output.hidden), kv.keep(cache, None, jnp.full(len(tokens), nodes))


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(("chunk", "window"), [(1, CAPACITY), (4, CAPACITY), (11, 11)])
def test_any_chunking_and_any_window_give_the_table_bitwise(name, chunk, window):
    builder, rows = TARGETS[name]
    target, params = builder(V), table(rows)
    cache, parts = target.init_cache(3, CAPACITY), []
    for start in range(0, PREFIX.shape[1], chunk):
        part = PREFIX[:, start : start + chunk]
        logits, cache = read(target, params, part, cache, window)
        parts.append(logits)
    expected = [
        [params[row_after(name, row[: i + 1])] for i in range(PREFIX.shape[1])] for row in PREFIX
    ]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), np.array(expected))


@pytest.mark.parametrize("name", TARGETS)
def test_a_tree_node_sees_the_prefix_and_its_own_ancestors_only(name):
    builder, rows = TARGETS[name]
    target, params = builder(V), table(rows)
    _, cache = read(target, params, PREFIX, target.init_cache(3, CAPACITY))
    tokens = jnp.asarray([[1, 2, 3, 4, 0]] * 3, jnp.int32)
    parents = jnp.asarray([[0, 0, 0, 1, 2]] * 3, jnp.int32)
    draft = Draft(tokens, parents, jnp.ones_like(tokens, dtype=bool), None)
    positions, visible = place(draft, cache.lengths)
    output, cache = target.forward(params, tokens, positions, visible, cache, CAPACITY)
    paths = [[1], [1, 2], [1, 3], [1, 2, 4], [1, 3, 0]]
    expected = [[params[row_after(name, [*row, *path])] for path in paths] for row in PREFIX]
    np.testing.assert_array_equal(output.hidden, np.array(expected))

    path = jnp.asarray([[0, 2, 4]] * 3, jnp.int32)
    cache = kv.keep(cache, path, jnp.full(3, 3, jnp.int32))
    logits, _ = read(target, params, np.full((3, 1), 2, np.int32), cache)
    expected = [[params[row_after(name, [*row, 1, 3, 0, 2])]] for row in PREFIX]
    np.testing.assert_array_equal(logits, np.array(expected))


def test_the_history_target_notices_a_wrong_token_slot_position_and_length():
    target, params = history_target(V), table(4096)  # few rows would hide some by chance
    _, good = read(target, params, PREFIX, target.init_cache(3, CAPACITY))
    one = np.full((3, 1), 2, np.int32)
    told, _ = read(target, params, one, good)

    (keys, values), lengths = good.layers[0], good.lengths
    swapped = Cache((Slots(keys.at[:, 0, 4].set(V - keys[:, 0, 4]), values),), lengths)
    short = good._replace(lengths=good.lengths - 1)
    moved = Cache((Slots(keys, values.at[:, 0, 4].add(1)),), lengths)
    for broken in (swapped, short, moved):
        logits, _ = read(target, params, one, broken)
        assert (np.asarray(logits) != np.asarray(told)).any(axis=-1).all()
    narrow, _ = read(target, params, one, good, window=8)
    assert (np.asarray(narrow) != np.asarray(told)).any(axis=-1).all()


@pytest.mark.parametrize("name", TARGETS)
def test_builders_are_cached_and_forward_does_not_advance(name):
    builder, rows = TARGETS[name]
    assert builder(V) is builder(V)
    target, params = builder(V), table(rows)
    cache = target.init_cache(3, CAPACITY)
    visible, start = causal(11), jnp.zeros((3, 11), jnp.int32)
    output, after = target.forward(params, jnp.asarray(PREFIX), start, visible, cache, CAPACITY)
    np.testing.assert_array_equal(after.lengths, 0)
    assert output.hidden.shape == (3, 11, V)
    assert output.taps.shape == (3, 11, 0, V)
    assert target.vocab_size == target.hidden_size == V

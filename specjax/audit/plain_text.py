"""Plain decoding of one request: where ``joint`` starts, and the law that it compares with."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from specjax.audit import noise_table as table
from specjax.audit.one_round import pick
from specjax.audit.prefixes import num_contexts, spell
from specjax.audit.request import Request
from specjax.core import decode
from specjax.core.topology import causal
from specjax.core.types import RUNNING, Engine, Params, PyTree, Sampling, State, Target, Text
from specjax.theory.arrays import Value

init_state = jax.jit(decode.init_state, static_argnums=0)
prefill = jax.jit(decode.prefill, static_argnums=(0, 4))


def plain_sampling(size: int, K: int) -> Sampling:
    """Return one row's parameters: temperature 1, no stop id, drafts of K tokens."""
    one = jnp.ones(1, jnp.int32)
    return Sampling(jnp.ones(1), one * K, jnp.full((1, 1), size, jnp.int32))


def after_prompt(
    engine: Engine, params: Params, prompt: tuple[int, ...], sampling: Sampling, capacity: int
) -> State:
    """Return the state [1] after prefill, whose token is sampled with noise of its own."""
    tokens = jnp.zeros((1, capacity), jnp.int32).at[0, : len(prompt)].set(jnp.asarray(prompt))
    start = jnp.full(1, len(prompt), jnp.int32)
    text = Text(tokens, start, start, jnp.full(1, capacity, jnp.int32), start * 0 + RUNNING)
    keys = table.recording_keys(1)
    state = init_state(engine, params, text, sampling, keys)
    state, _, _ = prefill(engine, params, state, jnp.zeros((), jnp.int32), len(prompt))
    return jax.device_get(state._replace(keys=None))  # pyright: ignore


def plain_text(target: Target, params: Params, states: State, width: int) -> Request:
    """Return the request that plain decoding of a target continues by up to ``width`` tokens.

    Its logits are those after one pass over each whole text, from an empty cache.
    """
    begin = int(states.text.lengths[0])
    words = spell(target.vocab_size, width - 1)
    before = np.repeat(states.text.tokens[:1, :begin], len(words), axis=0)
    tokens = np.concatenate([before, np.maximum(words, 0)], axis=1).astype(np.int32)
    lengths = begin + (words >= 0).sum(axis=1)
    logits = last_logits(target, params.target, tokens, lengths.astype(np.int32))
    text, sampling = pick((states.text, states.sampling), np.zeros(1, int))
    return Request(np.asarray(logits, float)[None], text, sampling)


@functools.partial(jax.jit, static_argnums=0)
def last_logits(target: Target, params: PyTree, tokens: Value, lengths: Value) -> jax.Array:
    """Return the logits [R, V] after texts [R, T], read in one pass."""
    rows, columns = tokens.shape
    places = jnp.tile(jnp.arange(columns)[None], (rows, 1))
    output, _ = target.forward(
        params, tokens, places, causal(columns), target.init_cache(rows, columns), columns,
        lengths - 1, places < lengths[:, None], "text",
    )  # fmt: skip
    return target.logits(params, output.hidden)[:, 0]


def absorbing(p_tree: np.ndarray, stop_ids: np.ndarray) -> np.ndarray:
    """Return the tree in which only token 0 follows a stop id: texts that ended go on like that."""
    size = p_tree.shape[-1]
    depth = next(k for k in range(len(p_tree[0])) if num_contexts(size, k) == len(p_tree[0]))
    ended = np.isin(spell(size, depth), stop_ids).any(axis=1)
    return np.where(ended[None, :, None], np.arange(size) == 0, p_tree)

"""Against loops: make the model's own repetitions unlikely.

A small model completes greedily into loops, which no cross-entropy punishes: the training
text has none. Sequence-level unlikelihood (Welleck et al. 2020) does: let the model continue
a text, and lower the probability of every token that ends an n-gram it has just written.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.decode import generate, init_state, prefill
from specjax.drafters.none import none
from specjax.sampling import Sampling, row_key
from specjax.types import RUNNING, Engine, Params, PyTree, Target, Text
from specjax.verify.walk import walk

NGRAM = 5


def continue_greedily(
    target: Target, params: PyTree, prefix: Int[Array, "B P"], num_tokens: int
) -> Int[Array, "B T"]:
    """Append the ``num_tokens`` tokens that plain greedy decoding writes after a prefix."""
    batch, start = prefix.shape
    room = ((0, 0), (0, num_tokens + 1))
    lengths, ends = (jnp.full(batch, n, jnp.int32) for n in (start, start + num_tokens))
    running = jnp.full(batch, RUNNING, jnp.int32)
    text = Text(jnp.pad(prefix, room), lengths, lengths, ends, running)
    sampling = Sampling(
        temperature=jnp.zeros(batch),
        max_draft=jnp.zeros(batch, jnp.int32),
        stop_ids=jnp.full((batch, 1), target.vocab_size, jnp.int32),
    )
    engine = Engine(target, none, walk, window=start + num_tokens + 1)
    keys = jnp.stack([row_key(i) for i in range(batch)])
    state = init_state(engine, Params(params, None), text, sampling, keys)
    state, _, _ = prefill(engine, Params(params, None), state, jnp.zeros((), jnp.int32), start)
    rounds, least = jnp.asarray(num_tokens, jnp.int32), jnp.ones((), jnp.int32)
    state, _, _ = generate(engine, Params(params, None), state, rounds, least, num_tokens)
    return state.text.tokens[:, :-1]


def repeated(tokens: Int[Array, "B T"], n: int = NGRAM) -> Bool[Array, "B T"]:
    """Mark the tokens that end an n-gram which the same row has had before."""
    length = tokens.shape[1]
    same = tokens[:, :, None] == tokens[:, None, :]  # [B, here, there]
    runs = same
    for back in range(1, n):
        runs &= jnp.pad(same, ((0, 0), (back, 0), (back, 0)))[:, :length, :length]
    return (runs & jnp.tri(length, k=-1, dtype=bool)[None]).any(axis=-1)


def unlikelihood(
    logits: Float[Array, "B T V"], tokens: Int[Array, "B T"], marked: Bool[Array, "B T"]
) -> Float[Array, ""]:
    """Average -log(1 - p(token)) over all tokens, counting the marked ones."""
    chosen = jax.nn.one_hot(tokens, logits.shape[-1], dtype=bool)
    others = jax.nn.logsumexp(jnp.where(chosen, -jnp.inf, logits), axis=-1)
    return jnp.mean(marked * (jax.nn.logsumexp(logits, axis=-1) - others))

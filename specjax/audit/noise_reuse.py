"""Measure whether a verification rule uses any random number twice.

``exact`` enumerates one round with independent noise. This module runs two consecutive rounds with
the noise that the rule itself draws. A number *decides* the first round if replacing it changes the
verdict. Such a number must not decide a second time in the same round, and must not
be drawn again in the next round. Numbers that decided nothing may be drawn again: a rule that
addresses its noise by token index meets those after its rejection.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.audit.exact import judge, reads_gumbel_noise
from specjax.audit.noise_partition import LAST, NEVER, SOON, path_to
from specjax.audit.request import plain_request, repeat
from specjax.core import sampling as s
from specjax.core.types import Draft, PyTree, Rule, Sampling, Text
from specjax.theory.arrays import Value


class RoundNoise(NamedTuple):
    """The noise of one round."""

    uniforms: np.ndarray  # [R N]
    exponentials: np.ndarray  # [R N V]


@functools.cache
def noise_reuse_rate(
    rule: Rule, *, parents: tuple[int, ...] = (0, 0, 1, 2), size: int = 4, rounds: int = 256
) -> float:
    """Return the share of rounds in which a number that decides the verdict is used twice.

    Twice: for two nodes of the same round, or in the next round as well. 0 for a sound rule.

    Args:
        rule: the rule under test.
        parents: shape of the drafts.
        size: vocabulary size of the random targets and drafts.
        rounds: number of random rounds.
    """
    rng, nodes = np.random.default_rng(0), len(parents)
    K = max(len(path_to(node, parents)) - 1 for node in range(nodes))
    walks = reads_gumbel_noise(rule, size)
    shape = jnp.tile(jnp.asarray(parents, jnp.int32), (rounds, 1))
    tokens = jnp.asarray(rng.integers(size, size=shape.shape), jnp.int32)
    probs = jnp.asarray(rng.dirichlet(np.ones(size), shape.shape), jnp.float32)
    draft = Draft(tokens, shape, jnp.ones(shape.shape, bool), probs)
    logits = jnp.asarray(rng.normal(size=probs.shape), jnp.float32)
    request = plain_request(np.ones((1, 1, size)), K)
    text, sampling = repeat(request.text, rounds), repeat(request.sampling, rounds)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(s.row_key(0), jnp.arange(rounds))

    def emit(given: RoundNoise) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens emitted under V noises [V, R, K + 1], -1 past them, and the counts."""
        noise = (jnp.asarray(leaf, jnp.float32) for leaf in given)
        verdict = jax.device_get(judge(rule, K, walks, *noise, draft, logits, text, sampling))
        emitted = np.arange(K + 1) <= verdict.num_accepted[..., None]
        return np.where(emitted, verdict.tokens, -1), verdict.num_accepted

    first = address(rule.draw_noise, walks, keys, text, draft, sampling)
    same = RoundNoise(*(np.repeat(leaf[None], size, axis=0) for leaf in first))
    emitted, count = emit(same)
    after = text._replace(lengths=text.lengths + count[0] + 1)
    later = address(rule.draw_noise, walks, keys, after, draft, sampling)
    extremes = RoundNoise(
        np.resize([0.0, LAST], (size, 1)), np.where(np.eye(size, dtype=bool), SOON, NEVER)[:, None]
    )
    reused = np.zeros(rounds, bool)
    for kind in ("exponentials",) if walks else RoundNoise._fields:
        decides = np.zeros((rounds, nodes), bool)
        for node in range(nodes):
            changed = getattr(same, kind).copy()
            changed[:, :, node] = getattr(extremes, kind)
            other, _ = emit(same._replace(**{kind: changed}))
            decides[:, node] = (other != emitted).any(axis=(0, 2))
        now, then = getattr(first, kind), getattr(later, kind)
        read = np.arange(nodes) > 0 if kind == "uniforms" else True  # the root's is never read
        twice = equal(now, now) & decides[:, None] & ~np.eye(nodes, dtype=bool)
        reused |= (decides[:, :, None] & (equal(now, then) & read | twice)).any(axis=(1, 2))
    return float(reused.mean())


def equal(now: np.ndarray, then: np.ndarray) -> np.ndarray:
    """Return [R, N, N]: whether node i's number in ``now`` equals node j's in ``then``."""
    same = now[:, :, None] == then[:, None]
    return np.all(same.reshape(*same.shape[:3], -1), axis=-1)


def address(
    draw: Callable[..., PyTree],
    walks: bool,
    keys: Value,
    text: Text,
    draft: Draft,
    sampling: Sampling,
) -> RoundNoise:
    """Return a round's noise as the rule draws it, Gumbel noise as the exponentials behind it."""
    noise = draw_noise(draw, keys, text, draft, sampling)
    if walks:
        return RoundNoise(np.zeros(draft.tokens.shape), np.exp(-np.asarray(noise, float)))
    return RoundNoise(*(np.asarray(leaf) for leaf in noise))


@functools.partial(jax.jit, static_argnums=0)
def draw_noise(
    draw: Callable[..., PyTree], keys: Value, text: Text, draft: Draft, sampling: Sampling
) -> PyTree:
    """Return the noise of a rule's ``draw_noise``, compiled once for all rules that share it."""
    assert draft.probs is not None
    return draw(keys, text, draft, sampling, draft.probs.shape[-1])

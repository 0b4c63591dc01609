"""Whether a rule takes new noise for every round.

Enumeration sees one round, with noise as independent as it should be. Here two rounds run with
the noise that a rule addresses itself. A number has decided the first round if another one in
its place changes the verdict; then it must decide nothing else in it, and the second round
must not see it again. That may see numbers that decided nothing: a rule addressed by token
index meets those past its refusal.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling as s
from specjax.audit.boxes import LAST, NEVER, SOON, path_to
from specjax.audit.exact import judge, reads_races_only
from specjax.audit.request import plain_request, repeat
from specjax.types import Draft, Rule


class Numbers(NamedTuple):
    """The noise of one round."""

    uniforms: np.ndarray  # [R N]
    clocks: np.ndarray  # [R N V]


@functools.cache
def reused(
    rule: Rule, *, parents: tuple[int, ...] = (0, 0, 1, 2), size: int = 4, rounds: int = 256
) -> float:
    """Return the share of rounds decided by a number that decides twice, or that comes again."""
    rng, nodes = np.random.default_rng(0), len(parents)
    K = max(len(path_to(node, parents)) - 1 for node in range(nodes))
    walks = reads_races_only(rule, size)
    shape = jnp.tile(jnp.asarray(parents, jnp.int32), (rounds, 1))
    tokens = jnp.asarray(rng.integers(size, size=shape.shape), jnp.int32)
    probs = jnp.asarray(rng.dirichlet(np.ones(size), shape.shape), jnp.float32)
    draft = Draft(tokens, shape, jnp.ones(shape.shape, bool), probs)
    logits = jnp.asarray(rng.normal(size=probs.shape), jnp.float32)
    request = plain_request(np.ones((1, 1, size)), K)
    text, sampling = repeat(request.text, rounds), repeat(request.sampling, rounds)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(s.row_key(0), jnp.arange(rounds))

    def say(numbers: Numbers) -> tuple[np.ndarray, np.ndarray]:
        """Return what is said to V noises, [V, R, K + 1] without garbage, and the counts."""
        noise = (jnp.asarray(leaf, jnp.float32) for leaf in numbers)
        said = jax.device_get(judge(rule, K, walks, *noise, draft, logits, text, sampling))
        spoken = np.arange(K + 1) <= said.num_accepted[..., None]
        return np.where(spoken, said.tokens, -1), said.num_accepted

    first = address(rule.address, walks, keys, text, draft, sampling)
    same = Numbers(*(np.repeat(leaf[None], size, axis=0) for leaf in first))
    said, count = say(same)
    after = text._replace(lengths=text.lengths + count[0] + 1)
    later = address(rule.address, walks, keys, after, draft, sampling)
    extremes = Numbers(
        np.resize([0.0, LAST], (size, 1)), np.where(np.eye(size, dtype=bool), SOON, NEVER)[:, None]
    )
    seen = np.zeros(rounds, bool)
    for kind in ("clocks",) if walks else Numbers._fields:
        decided = np.zeros((rounds, nodes), bool)
        for node in range(nodes):
            changed = getattr(same, kind).copy()
            changed[:, :, node] = getattr(extremes, kind)
            other, _ = say(same._replace(**{kind: changed}))
            decided[:, node] = (other != said).any(axis=(0, 2))
        mine, theirs = getattr(first, kind), getattr(later, kind)
        read = np.arange(nodes) > 0 if kind == "uniforms" else True  # nobody asks the root's
        twice = equal(mine, mine) & decided[:, None] & ~np.eye(nodes, dtype=bool)
        seen |= (decided[:, :, None] & (equal(mine, theirs) & read | twice)).any(axis=(1, 2))
    return float(seen.mean())


def equal(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Compare the number of every node with that of every other, [R, N, N]."""
    same = mine[:, :, None] == theirs[:, None]
    return np.all(same.reshape(*same.shape[:3], -1), axis=-1)


def address(draw: Callable, walks: bool, keys, text, draft: Draft, sampling) -> Numbers:
    """Draw a round's noise as the rule does; Gumbel noise as the clocks it is made of."""
    noise = draw_noise(draw, keys, text, draft, sampling)
    if walks:
        return Numbers(np.zeros(draft.tokens.shape), np.exp(-np.asarray(noise, float)))
    return Numbers(*(np.asarray(leaf) for leaf in noise))


@functools.partial(jax.jit, static_argnums=0)
def draw_noise(draw: Callable, keys, text, draft: Draft, sampling):
    """Call a rule's ``address``, compiled once for all rules that share it."""
    assert draft.probs is not None
    return draw(keys, text, draft, sampling, draft.probs.shape[-1])

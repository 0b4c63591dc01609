"""Whether a rule takes new noise for every round.

Enumeration sees one round, with noise as independent as it should be. Here two rounds run with
the noise that a rule addresses itself. A number has decided the first round if another one in
its place changes the verdict; then the second round must not see it again. It may see numbers
that decided nothing: a rule addressed by token index meets those past its refusal.
"""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling as s
from specjax.audit.boxes import LAST, NEVER, SOON
from specjax.audit.request import plain_request, repeat
from specjax.topology import ancestors, depths
from specjax.types import Draft, Rule, Verdict
from specjax.verify.noise import Noise


@functools.cache
def reused(
    rule: Rule, *, parents: tuple[int, ...] = (0, 0, 1, 2), size: int = 5, rounds: int = 256
) -> float:
    """Return the share of rounds decided by a number that decides twice, or that comes again."""
    rng = np.random.default_rng(0)
    shape = jnp.tile(jnp.asarray(parents, jnp.int32), (rounds, 1))
    K = int(depths(ancestors(shape)).max())
    probs = jnp.asarray(rng.dirichlet(np.ones(size), shape.shape), jnp.float32)
    tokens = jnp.asarray(rng.integers(size, size=shape.shape), jnp.int32)
    draft = Draft(tokens, shape, jnp.ones(shape.shape, bool), probs)
    logits = jnp.asarray(rng.normal(size=probs.shape), jnp.float32)
    request = plain_request(np.ones((1, 1, size)), 2 * K + 2)
    text, sampling = repeat(request.text, rounds), repeat(request.sampling, rounds)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(s.row_key(0), jnp.arange(rounds))

    @jax.jit
    def verify(noise) -> Verdict:
        said = rule.verify(noise, draft, logits, text, sampling, K)
        spoken = jnp.arange(K + 1)[None] <= said.num_accepted[:, None]
        return said._replace(tokens=jnp.where(spoken, said.tokens, -1))

    noise = rule.address(keys, text, draft, sampling, size)
    said = verify(noise)
    after = text._replace(lengths=text.lengths + said.num_accepted + 1)
    later = rule.address(keys, after, draft, sampling, size)
    seen = np.zeros(rounds, bool)
    for kind, (mine, theirs) in enumerate(zip(*map(jax.tree.leaves, (noise, later)), strict=True)):
        decided = np.zeros(shape.shape, bool)
        for node in range(len(parents)):
            for other in instead(noise, kind, node):
                decided[:, node] |= np.asarray((verify(other).tokens != said.tokens).any(axis=1))
        read = np.arange(len(parents)) > 0 if mine.ndim == 2 else True  # nobody asks the root's u
        again = equal(mine, theirs) & read
        twice = equal(mine, mine) & decided[:, None] & ~np.eye(len(parents), dtype=bool)
        seen |= (decided[:, :, None] & (again | twice)).any(axis=(1, 2))
    return float(seen.mean())


def equal(mine: jax.Array, theirs: jax.Array) -> np.ndarray:
    """Compare the noise of every node with that of every other, [B, N, N]."""
    same = np.asarray(mine[:, :, None] == theirs[:, None])
    return np.all(same.reshape(*same.shape[:3], -1), axis=-1)


def instead(noise, kind: int, node: int) -> Iterator:
    """Yield the noise with extreme numbers in one place: a uniform, or the clocks of a race."""
    leaves, tree = jax.tree.flatten(noise)
    leaf = leaves[kind]
    if leaf.ndim == 2:
        extremes = [jnp.asarray(end, jnp.float32) for end in (0.0, LAST)]
    else:
        clocks = jnp.where(jnp.eye(leaf.shape[-1], dtype=bool), SOON, NEVER)
        extremes = list(clocks if isinstance(noise, Noise) else -jnp.log(clocks))
    for extreme in extremes:
        changed = [*leaves[:kind], leaf.at[:, node].set(extreme), *leaves[kind + 1 :]]
        yield jax.tree.unflatten(tree, changed)

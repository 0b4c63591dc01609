"""Walk: sample the target's token at every node, and accept drafted nodes that carry it.

Lossless for any draft, any tree and any temperature: every emitted token is sampled from the
target, with random numbers that depend on the row's seed and the token's index only, so that the
draft only decides how many of them one forward pass emits. vLLM does so for greedy requests.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from specjax.core import sampling as s
from specjax.core.types import Draft, Rule, Sampling, Text, Verdict
from specjax.verify.noise import decided_positions


def draw_noise(
    keys: Key[Array, "B"], text: Text, draft: Draft, sampling: Sampling, vocab_size: int
) -> Float[Array, "B N V"]:
    """Return Gumbel noise for the token after each node; nodes at one depth share theirs."""
    return s.gumbel(keys, decided_positions(text, draft), s.CHOOSE, sampling, vocab_size)


def verify(
    noise: Float[Array, "B N V"],
    draft: Draft,
    logits: Float[Array, "B N V"],
    text: Text,
    sampling: Sampling,
    depth: int,
) -> Verdict:
    """Sample the target's token at every node, then follow these tokens down the tree."""
    path = s.drafted_path(draft, logits.shape[-1])
    return follow(
        draft, s.choose(s.constrain(logits, path, text, sampling), noise, sampling), depth
    )


def follow(draft: Draft, choice: Int[Array, "B N"], depth: int) -> Verdict:
    """Descend from the root while a valid child's token is the one ``choice`` has at its parent."""
    rows, nodes = jnp.arange(choice.shape[0]), jnp.arange(choice.shape[1])

    def descend(carry, _):
        node, alive = carry
        token = choice[rows, node]
        child = (draft.parents == node[:, None]) & (draft.tokens == token[:, None])
        child &= draft.valid & (nodes > 0)[None]
        accepted = alive & child.any(axis=1)
        onward = jnp.where(accepted, jnp.argmax(child, axis=1).astype(jnp.int32), node)
        return (onward, accepted), (node, token, accepted)

    start = (jnp.zeros_like(choice[:, 0]), jnp.ones(choice.shape[0], bool))
    _, (path, tokens, accepted) = jax.lax.scan(descend, start, length=depth + 1)
    return Verdict(path.T, tokens.T, accepted.sum(axis=0, dtype=jnp.int32))


walk = Rule(draw_noise, verify)

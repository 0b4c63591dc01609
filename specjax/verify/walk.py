"""Walk: the target chooses at every node; follow the child that carries its choice.

Lossless for any draft, any tree and any temperature: every emitted token is the target's
own choice, made with noise addressed by the token's index, so the draft only decides how
many of them one forward pass confirms.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax import sampling as s
from specjax.types import Draft, Rule, Text, Verdict
from specjax.verify.noise import decides


def address(keys, text: Text, draft: Draft, sampling: s.Sampling, vocab_size: int):
    """Draw the noise of the token each node decides: siblings' children share theirs."""
    return s.gumbel(keys, decides(text, draft), s.CHOOSE, sampling, vocab_size)


def verify(
    noise: Float[Array, "B N V"],
    draft: Draft,
    logits: Float[Array, "B N V"],
    text: Text,
    sampling: s.Sampling,
    depth: int,
) -> Verdict:
    """Let the target choose at every node, then follow its choices down the tree."""
    path = s.trail(draft, logits.shape[-1])
    return follow(
        draft, s.choose(s.constrain(logits, path, text, sampling), noise, sampling), depth
    )


def follow(draft: Draft, choice: Int[Array, "B N"], depth: int) -> Verdict:
    """Descend from the root while some valid child carries the choice made at its parent."""
    rows, nodes = jnp.arange(choice.shape[0]), jnp.arange(choice.shape[1])

    def descend(carry, _):
        node, alive = carry
        said = choice[rows, node]
        child = (draft.parents == node[:, None]) & (draft.tokens == said[:, None])
        child &= draft.valid & (nodes > 0)[None]
        accepted = alive & child.any(axis=1)
        onward = jnp.where(accepted, jnp.argmax(child, axis=1).astype(jnp.int32), node)
        return (onward, accepted), (node, said, accepted)

    start = (jnp.zeros_like(choice[:, 0]), jnp.ones(choice.shape[0], bool))
    _, (path, tokens, accepted) = jax.lax.scan(descend, start, length=depth + 1)
    return Verdict(path.T, tokens.T, accepted.sum(axis=0, dtype=jnp.int32))


walk = Rule(address, verify)

"""DeepSeek-V3.2's sparse attention (arXiv:2512.02556): a token attends to ``top_k`` positions.

The lightning indexer scores each position for each token, with small heads of its own that share
one cached key per position,

    score(n, s) = sum_h w_h(n) relu(q_h(n) . k(s)),

and the token attends to the ``top_k`` positions of the highest scores. Here that narrows the mask:
positions that are not chosen are masked like those of another branch. Of equal scores the earlier
position is chosen. A node's ancestors lie in ascending slots, in a draft tree too, so the choice is
the one that plain decoding makes.

DeepSeek's own code turns queries and keys by a Hadamard matrix, which leaves their products as they
are, and rounds both to FP8; as in transformers, neither is done here. It also scales the scores,
which changes no order.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Shaped

from specjax.core import ops
from specjax.models.config import Indexer, ModelConfig, Rope
from specjax.models.modules import Linear, Norm
from specjax.models.rope import Angles, turn


class LightningIndexer(nnx.Module):
    """The indexer of one layer, whose input has ``size`` features."""

    def __init__(self, config: ModelConfig, size: int, *, rngs: nnx.Rngs):
        latent, dtype = config.latent, config.dtype
        assert latent is not None
        assert latent.indexer is not None
        assert latent.q_lora_rank is not None
        self.facts: Indexer = latent.indexer
        # its halves are turned, where those of latent attention are pairs of neighbours
        self.rope = Rope(dim=latent.qk_rope_head_dim)
        heads, dim = self.facts.num_heads, self.facts.head_dim

        def linear(size_in: int, size_out: int) -> Linear:
            return Linear(size_in, size_out, bias=False, dtype=dtype, rngs=rngs)

        self.wq_b = linear(latent.q_lora_rank, heads * dim)
        self.wk = linear(size, dim)
        self.k_norm = Norm(dataclasses.replace(config, norm="layer", norm_offset=0.0), dim, 1e-6)
        self.weights_proj = linear(size, heads)

    def keys(self, x: Float[Array, "B N I"], angles: Angles) -> Float[Array, "B N 1 d"]:
        """Return the nodes' keys, which the cache holds."""
        return turn(self.rope, self.k_norm(self.wk(x))[:, :, None], angles)

    def choose(
        self,
        x: Float[Array, "B N I"],
        query: Float[Array, "B N R"],
        angles: Angles,
        mask: Bool[Array, "B N W"],
        keys: Shaped[Array, "B 1 W d"],
    ) -> Bool[Array, "B N W"]:
        """Return the mask of the positions that each node attends to.

        Args:
            x: the layer's input.
            query: of it, the low-rank queries that latent attention reads too.
            angles: of the nodes' positions.
            mask: what each node may attend to.
            keys: of the first W cache slots.
        """
        facts = self.facts
        if mask.shape[2] <= facts.top_k:
            return mask
        heads = self.wq_b(query).reshape(*x.shape[:2], facts.num_heads, facts.head_dim)
        scores = ops.index_scores(turn(self.rope, heads, angles), keys, self.weights_proj(x))
        return highest(scores, mask, facts.top_k)


def highest(
    scores: Float[Array, "B N W"], mask: Bool[Array, "B N W"], top_k: int
) -> Bool[Array, "B N W"]:
    """Return the mask of the ``top_k`` highest scores within a mask; of equal ones the first.

    Where the mask has no more than ``top_k``, it is returned as it is.
    """
    scores = jnp.where(mask, scores, -jnp.inf)
    least = jax.lax.top_k(scores, top_k)[0][..., -1:]
    above, level = scores > least, scores == least
    room = top_k - above.sum(axis=-1, keepdims=True, dtype=jnp.int32)
    first = jnp.cumsum(level, axis=-1, dtype=jnp.int32) <= room
    return mask & (above | (level & first))

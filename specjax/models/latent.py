"""Multi-head latent attention (MLA; DeepSeek-V2, arXiv:2405.04434), in its absorbed form.

A token's keys and values of all heads are linear in one short vector, its latent, plus one
rotated key that all heads share. The cache holds these two, as the one key head of a layer:
[latent ; rotated], 576 numbers per token in DeepSeek-V3 where the keys and values of all heads are
40,960. The up-projections are absorbed into queries and outputs,

    q . (U z) = (U^T q) . z        sum_i p_i (W z_i) = W (sum_i p_i z_i),

so that attention is one multi-query attention whose values are the first part of its keys. The
cache's leaves for values are empty, or hold the keys of an indexer (``models.indexer``), which
chooses the positions that a token attends to.
"""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from specjax.core import ops
from specjax.core.types import Ring, Slots
from specjax.models.config import Latent, ModelConfig
from specjax.models.indexer import LightningIndexer
from specjax.models.modules import Linear, Norm
from specjax.models.rope import Angles, softmax_scale, turn

EPSILON = 1e-6  # of the norms inside, whatever the decoder's is, as DeepSeek's own code has it


class LatentAttention(nnx.Module):
    """Attention over latents; queries may have a low-rank projection too (``q_lora_rank``).

    The input has ``inputs`` times the hidden size.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, inputs: int = 1, index: int = 0):
        facts = config.latent
        assert facts is not None
        self.facts: Latent = facts
        self.scale, self.rope = softmax_scale(config), config.kind(index).rope
        size, dtype, heads = inputs * config.hidden_size, config.dtype, config.num_heads
        wide = heads * (facts.qk_nope_head_dim + facts.qk_rope_head_dim)
        rank, query_rank = facts.kv_lora_rank, facts.q_lora_rank

        def linear(size_in: int, size_out: int) -> Linear:
            return Linear(size_in, size_out, bias=False, dtype=dtype, rngs=rngs)

        if query_rank is None:
            self.q_proj = linear(size, wide)
        else:
            self.q_a_proj = linear(size, query_rank)
            self.q_a_layernorm = Norm(config, query_rank, EPSILON)
            self.q_b_proj = linear(query_rank, wide)
        self.kv_a_proj_with_mqa = linear(size, rank + facts.qk_rope_head_dim)
        self.kv_a_layernorm = Norm(config, rank, EPSILON)
        self.kv_b_proj = linear(rank, heads * (facts.qk_nope_head_dim + facts.v_head_dim))
        self.o_proj = linear(heads * facts.v_head_dim, config.hidden_size)
        self.indexer = LightningIndexer(config, size, rngs=rngs) if facts.indexer else None

    def queries(
        self, x: Float[Array, "B N I"]
    ) -> tuple[Float[Array, "B N R"], Float[Array, "B N Q"]]:
        """Return low-rank queries, or the input, and those of all heads, not rotated yet."""
        if self.facts.q_lora_rank is None:
            return x, self.q_proj(x)
        low = self.q_a_layernorm(self.q_a_proj(x))
        return low, self.q_b_proj(low)

    def write(
        self,
        x: Float[Array, "B N I"],
        angles: Angles | None,
        cache: Slots | Ring,
        slots: Int[Array, "B N"],
    ) -> tuple[Slots | Ring, Float[Array, "B N I"]]:
        """Return the cache with the nodes' latents and rotated keys, and the input of ``read``."""
        assert angles is not None
        assert isinstance(cache, Slots)
        latent, position = jnp.split(self.kv_a_proj_with_mqa(x), [self.facts.kv_lora_rank], axis=-1)
        position = turn(self.rope, position[:, :, None], angles)
        latent = self.kv_a_layernorm(latent)[:, :, None]
        keys = jnp.concatenate([latent, position], axis=-1)
        cache = cache._replace(keys=ops.write_kv(cache.keys, keys, slots))
        if self.indexer is not None:
            indexed = ops.write_kv(cache.values, self.indexer.keys(x, angles), slots)
            cache = cache._replace(values=indexed)
        return cache, x

    def read(
        self,
        x: Float[Array, "B N I"],
        angles: Angles | None,
        mask: Bool[Array, "B N W"],
        cache: Slots | Ring,
        slots: Int[Array, "B M"],
    ) -> Float[Array, "B N D"]:
        """Return attention over the cache, projected back to the hidden size."""
        assert angles is not None
        facts, (batch, nodes, _) = self.facts, x.shape
        rank, plain = facts.kv_lora_rank, facts.qk_nope_head_dim
        up = self.kv_b_proj.weight[...].reshape(-1, plain + facts.v_head_dim, rank)
        low, query = self.queries(x)
        if self.indexer is not None:
            mask = self.indexer.choose(x, low, angles, mask, cache.values[:, :, : mask.shape[2]])
        query = query.reshape(batch, nodes, up.shape[0], -1)
        query, turned = jnp.split(query, [plain], axis=-1)
        query = ops.linear_each(query, up[:, :plain].transpose(0, 2, 1))
        query = jnp.concatenate([query, turn(self.rope, turned, angles)], axis=-1)
        query = query * (self.scale * query.shape[-1] ** 0.5)  # ops.attention divides by this root
        window = cache.keys[:, :, : mask.shape[2]]
        mixed = ops.attention(query, window, window[..., :rank], mask)
        mixed = ops.linear_each(mixed, up[:, plain:])
        return self.o_proj(mixed.reshape(batch, nodes, -1))

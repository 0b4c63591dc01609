"""Latent attention (DeepSeek-V2, arXiv:2405.04434), with what is cached kept small.

A token's keys and values of all heads are linear in one short vector, its latent, plus one
rotated key that all heads share. The cache holds these two and nothing else, as the one key
head of a layer: [latent ; rotated], 576 numbers per token in DeepSeek-V3 where expanded heads
would take 40,960. The up-projections are moved to the other side of the products instead,

    q . (U z) = (U^T q) . z        sum_i p_i (W z_i) = W (sum_i p_i z_i),

so that attention is one multi-query attention whose values are the first part of its keys; the
cache's leaves for values are empty.
"""

import jax.numpy as jnp
from flax import nnx

from specjax import ops
from specjax.config import Latent, ModelConfig
from specjax.models.parts import Linear, Norm
from specjax.models.rope import softmax_scale

EPSILON = 1e-6  # of the norms inside, whatever the decoder's is, as DeepSeek's own code has it


class LatentAttention(nnx.Module):
    """Attend through latents; queries may come through a short vector of their own."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        facts = config.latent
        assert facts is not None
        self.facts: Latent = facts
        self.scale = softmax_scale(config)
        size, dtype, heads = config.hidden_size, config.dtype, config.num_heads
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
        self.o_proj = linear(heads * facts.v_head_dim, size)

    def queries(self, x):
        if self.facts.q_lora_rank is None:
            return self.q_proj(x)
        return self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))

    def write(self, x, angles, keys, values, slots):
        """Put the nodes' latents and rotated keys into the cache; return what ``read`` needs."""
        latent, position = jnp.split(self.kv_a_proj_with_mqa(x), [self.facts.kv_lora_rank], axis=-1)
        position = ops.rotate(unpaired(position[:, :, None]), *angles)
        latent = self.kv_a_layernorm(latent)[:, :, None]
        return ops.write_kv(keys, jnp.concatenate([latent, position], axis=-1), slots), values, x

    def read(self, x, angles, mask, keys, values):
        """Let nodes look at what the cache holds."""
        facts, (batch, nodes, _) = self.facts, x.shape
        rank, plain = facts.kv_lora_rank, facts.qk_nope_head_dim
        up = self.kv_b_proj.weight[...].reshape(-1, plain + facts.v_head_dim, rank)
        query = self.queries(x).reshape(batch, nodes, up.shape[0], -1)
        query, turned = jnp.split(query, [plain], axis=-1)
        query = jnp.einsum("bnhe,her->bnhr", query, up[:, :plain])
        query = jnp.concatenate([query, ops.rotate(unpaired(turned), *angles)], axis=-1)
        query = query * (self.scale * query.shape[-1] ** 0.5)  # the seam divides by this root
        seen = keys[:, :, : mask.shape[2]]
        mixed = ops.attention(query, seen, seen[..., :rank], mask)
        mixed = jnp.einsum("bnhr,hvr->bnhv", mixed, up[:, plain:])
        return self.o_proj(mixed.reshape(batch, nodes, -1))


def unpaired(x):
    """Put the features of rotary pairs, stored as neighbours, into two halves [..., d]."""
    return jnp.concatenate([x[..., ::2], x[..., 1::2]], axis=-1)

"""First weights of a head: the target's own where a part has the same task, else random."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from specjax.config import MedusaConfig, ModelConfig, SpeculatorConfig
from specjax.models.build import HeadConfig, init_params
from specjax.types import PyTree
from specjax.weights.heads import lent, name, paths
from specjax.weights.names import Route

Flat = dict[str, jax.Array]  # weights that a head brings itself, by dotted path
BLOCKS = (("layers", 0), ("midlayer",), ("block",))  # of eagle, eagle3, mtp


def first_weights(
    head: HeadConfig, facts: ModelConfig, target: PyTree, kept: np.ndarray | None, seed: int
) -> Flat:
    """Start from the target where a part of the head has the same task, else at random.

    Embeddings, LM heads and final norms are the target's; a transformer block is its last
    layer; the joining matrix passes the last feature through. Medusa's blocks start at zero.
    """
    fresh = paths(init_params(head, jax.random.key(seed)))
    fixed = set() if isinstance(head, MedusaConfig) else set(lent(head, target))
    layer = paths(target["layers"][facts.num_layers - 1])
    own = {}
    for path, value in fresh.items():
        if path not in fixed and path != ("say",):
            block = next((b for b in BLOCKS if path[: len(b)] == b), None)
            if block is None:
                value = outside(path, value, target, kept)
            else:
                value = inside(path[len(block) :], value, layer, plain=not norms(fresh, block))
            own[name(path)] = value + 0  # arrays of its own: the state is donated
    tied = isinstance(head, SpeculatorConfig) and head.tied
    return drop_ties(own) if tied else own


def norms(fresh: dict[Route, jax.Array], block: Route) -> bool:
    """Say whether a block's attention normalises queries and keys."""
    return (*block, "self_attn", "q_norm", "weight") in fresh


def outside(path: Route, value: jax.Array, target: PyTree, kept: np.ndarray | None) -> jax.Array:
    """Return the first value of a weight outside a head's transformer block."""
    part, module = path[0], path[-2]
    embedding = target["embed_tokens"]["weight"]
    if part in ("lm_head", "lm_heads") or module == "head":
        lm_head = target["lm_head"]["weight"] if "lm_head" in target else embedding
        lm_head = lm_head if kept is None else lm_head[kept]
        return lm_head if lm_head.shape == value.shape else value
    if module == "emb":
        return embedding if embedding.shape == value.shape else value
    if path == ("norm", "weight"):
        return target["norm"]["weight"]
    if part == "blocks":
        return jnp.zeros_like(value)
    if part in ("fc", "eh_proj"):
        size, wide = value.shape
        first = 0 if part == "eh_proj" else wide - size  # MiMo's hidden state comes first
        return (value / 2).at[:, first : first + size].add(jnp.eye(size))
    return value


def inside(
    path: Route, value: jax.Array, layer: dict[Route, jax.Array], *, plain: bool
) -> jax.Array:
    """Return the first value of a block's weight: the target's last layer's, where it fits.

    EAGLE-3's attention reads the feature in its second half. A block without norms of queries
    and keys has their mean effect in its matrices.
    """
    if path == ("hidden_norm", "weight"):
        return layer["input_layernorm", "weight"]
    theirs = layer.get(path)
    if theirs is None or path[-1] == "bias" or theirs.ndim != value.ndim:
        return value
    norm = {"q_proj": "q_norm", "k_proj": "k_norm"}.get(str(path[-2]))
    if norm is not None and plain and ("self_attn", norm, "weight") in layer:
        theirs = absorb(theirs, layer["self_attn", norm, "weight"])
    if theirs.shape == value.shape:
        return theirs
    if value.ndim == 2 and value.shape == (theirs.shape[0], 2 * theirs.shape[1]):
        return jnp.concatenate([value[:, : theirs.shape[1]] / 2, theirs], axis=1)
    return value


def absorb(weight: Float[Array, "HD I"], norm: Float[Array, "D"]) -> Float[Array, "HD I"]:
    """Scale a projection's heads as a norm after them does to inputs of unit variance."""
    heads = weight.reshape(-1, norm.shape[0], weight.shape[1])
    size = jnp.sqrt((heads**2).sum(axis=2, keepdims=True).mean(axis=1, keepdims=True))
    return (heads / size * norm.reshape(1, -1, 1)).reshape(weight.shape)


def drop_ties(own: Flat) -> Flat:
    """Leave out what tied stages share with the first that has it."""

    def stays(stored):
        _, stage, part, _ = stored.split(".")
        return int(stage) == 0 or (int(stage) == 1 and part == "proj")

    return {stored: value for stored, value in own.items() if stays(stored)}

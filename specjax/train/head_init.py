"""Initial weights of a head: the target's where a part has the same role, else random."""

import jax
import jax.numpy as jnp
import numpy as np

from specjax.core.types import PyTree
from specjax.models.build import HeadConfig, init_params
from specjax.models.config import MedusaConfig, ModelConfig, SpeculatorConfig
from specjax.weights.heads import lent, name, paths
from specjax.weights.names import Route

Flat = dict[str, jax.Array]  # weights that a head brings itself, by dotted path
BLOCKS = (("midlayer",), ("block",))  # of eagle3 and mtp


def first_weights(
    head: HeadConfig, facts: ModelConfig, target: PyTree, kept: np.ndarray | None, seed: int
) -> Flat:
    """Return initial weights: the target's where a part has the same role, else random.

    Embeddings, LM heads and final norms are the target's; a transformer block is its last
    layer, and the joining matrix passes the last feature through. Not eagle's, whose features
    no norm tames: so it started worse than at random. Medusa's blocks start at zero.
    """
    fresh = paths(init_params(head, jax.random.key(seed)))
    fixed = set() if isinstance(head, MedusaConfig) else set(lent(head, target))
    layer = paths(target["layers"][facts.num_layers - 1])
    own = {}
    for path, value in fresh.items():
        if path not in fixed and path != ("vocab_rows",):
            block = next((b for b in BLOCKS if path[: len(b)] == b), None)
            if block is None:
                value = outside(path, value, target, kept)
            else:
                value = inside(path[len(block) :], value, layer)
            own[name(path)] = value + 0  # arrays of its own: the state is donated
    tied = isinstance(head, SpeculatorConfig) and head.tied
    return drop_ties(own) if tied else own


def outside(path: Route, value: jax.Array, target: PyTree, kept: np.ndarray | None) -> jax.Array:
    """Return the initial value of a weight outside a head's transformer block."""
    if path == ("mask_hidden",):
        return value
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
    size, wide = value.shape[0], value.shape[-1]
    if part in ("fc", "eh_proj") and not (part == "fc" and wide == 2 * size):
        first = 0 if part == "eh_proj" else wide - size  # MiMo's hidden state comes first
        return (value / 2).at[:, first : first + size].add(jnp.eye(size))
    return value


def inside(path: Route, value: jax.Array, layer: dict[Route, jax.Array]) -> jax.Array:
    """Return the initial value of a block's weight: the target's last layer's, where it fits.

    EAGLE-3's attention reads the feature in its second half.
    """
    if path == ("hidden_norm", "weight"):
        return layer["input_layernorm", "weight"]
    theirs = layer.get(path)
    if theirs is None or path[-1] == "bias" or theirs.ndim != value.ndim:
        return value
    if theirs.shape == value.shape:
        return theirs
    if value.ndim == 2 and value.shape == (theirs.shape[0], 2 * theirs.shape[1]):
        return jnp.concatenate([value[:, : theirs.shape[1]] / 2, theirs], axis=1)
    return value


def drop_ties(own: Flat) -> Flat:
    """Return the weights without those that tied stages share with an earlier one."""

    def stays(stored):
        _, stage, part, _ = stored.split(".")
        return int(stage) == 0 or (int(stage) == 1 and part == "proj")

    return {stored: value for stored, value in own.items() if stays(stored)}

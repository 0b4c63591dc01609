"""Load drafting heads in the formats that vLLM loads."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.core.types import PyTree
from specjax.models.build import HeadConfig, shapes
from specjax.models.config import (
    WITH_LAYERS,
    BlockConfig,
    LstmConfig,
    MedusaConfig,
    SpeculatorConfig,
)
from specjax.weights.head_configs import vocabulary
from specjax.weights.load import check_tensors, find_tensors, place, stored_leaf
from specjax.weights.mask_embedding import MASK, read_mask_embedding
from specjax.weights.names import Route, fused_part, head_name, members
from specjax.weights.quantization import Source
from specjax.weights.reader import Part, read_tensor
from specjax.weights.safetensors_file import Entry


def load_head(
    folder: Path,
    method: str,
    config: HeadConfig,
    target: PyTree,
    device: Any = None,
    *,
    keep_dtype: bool = False,
) -> PyTree:
    """Load a drafting head's weights, as a nested dict like ``shapes(config)``.

    Embeddings and LM head that the checkpoint leaves out are the target's own arrays.

    Args:
        folder: of the head.
        method: "eagle", "eagle3", "mtp", "medusa" or "mlp_speculator".
        config: from ``read_head_config``.
        target: the target's weights.
        device: a device, a sharding, or as ``load.load_params`` a function that returns one.
        keep_dtype: keep the checkpoint's dtype where ``load.load_params`` does.

    Raises:
        ValueError: as ``load.load_params``, or a reduced vocabulary's d2t is wrong.
    """
    own, kept = read_head(folder, method, config, target, device, keep_dtype=keep_dtype)
    vocab_rows = None
    if kept is not None:
        vocab_rows = rows_of(kept, vocabulary(config))
        where = device(("vocab_rows",), vocab_rows.shape) if callable(device) else device
        vocab_rows = jax.device_put(vocab_rows, where)
    return assemble(config, own, target, vocab_rows)


def read_head(
    folder: Path,
    method: str,
    config: HeadConfig,
    target: PyTree,
    device: Any = None,
    *,
    keep_dtype: bool = False,
) -> tuple[dict[str, jax.Array], np.ndarray | None]:
    """Read a head's own weights, by dotted path, and the tokens of a reduced vocabulary or None.

    Raises ValueError as ``load_head``.
    """
    kind = "lstm_speculator" if isinstance(config, LstmConfig) else method
    entries = find_tensors(folder, functools.partial(head_name, kind, len(target["layers"])))
    maps = {key: entries.pop(key, None) for key in ("d2t", "t2d", "token_map")}
    lends = {name(path): value for path, value in lent(config, target).items()}
    size, rows = vocabulary(config), getattr(config, "draft_vocab_size", None)
    leaves: dict[str, jax.ShapeDtypeStruct] = {}
    parts: dict[str, list[tuple[Part, tuple[int, ...]]]] = {}  # the stored tensors each is made of
    for path, leaf in paths(shapes(config)).items():
        stored = holder(config, path, entries)
        if stored in ("vocab_rows", MASK) or (stored in lends and stored not in entries):
            continue
        if path[0] == "lm_heads" and stored in entries and entries[stored].shape[:1] == (size,):
            leaf = jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype)  # cut below
        leaves[stored] = leaf
        parts[stored] = stored_as(config, path, leaf.shape, entries)
    expected = {part.name: shape for one in parts.values() for part, shape in one}
    check_tensors(folder, entries, expected)

    own = {}
    for stored, one in parts.items():
        found = [(part, entries[part.name]) for part, _ in one]
        sources = [source for _, source in found]
        leaf = stored_leaf(sources, leaves[stored]) if keep_dtype else leaves[stored]
        where = device(tuple(stored.split(".")), leaf.shape) if callable(device) else device
        own[stored] = read_tensor(found, leaf, where)
    if isinstance(config, BlockConfig) and config.mask_embedding:
        value = read_mask_embedding(folder, config)
        where = device((MASK,), value.shape) if callable(device) else device
        own[MASK] = jax.device_put(value.astype(config.block.dtype), where)
    if rows is None:
        return own, None
    if isinstance(config, WITH_LAYERS):
        return own, read_map("d2t", maps["d2t"], rows, size, folder)
    kept = read_map("token_map", maps["token_map"], rows, size, folder)
    heads = {key: value for key, value in (lends | own).items() if key.startswith("lm_heads.")}
    return own | {k: v[kept] for k, v in heads.items() if len(v) == size}, kept


def assemble(
    config: HeadConfig, own: Mapping[str, jax.Array], target: PyTree, vocab_rows: jax.Array | None
) -> PyTree:
    """Return a head's weights as a nested dict like ``shapes(config)``.

    Args:
        config: of the head.
        own: its own arrays, by dotted path; others are those of the stage they are tied to, or
            the target's.
        target: the target's weights.
        vocab_rows: each token's row in a reduced vocabulary, None without one.
    """
    shared, params = lent(config, target), {}
    for path in paths(shapes(config)):
        stored = holder(config, path, own)
        value = (
            vocab_rows
            if path == ("vocab_rows",)
            else own[stored]
            if stored in own
            else shared[path]
        )
        assert value is not None
        place(params, path, value)
    return params


def paths(tree: PyTree) -> dict[Route, Any]:
    """Return the leaves of a nested dict, by their path."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {tuple(key.key for key in keys): leaf for keys, leaf in leaves}


def name(path: Route) -> str:
    """Return a path as a checkpoint writes it, with dots."""
    return ".".join(map(str, path))


def lent(config: HeadConfig, target: PyTree) -> dict[Route, jax.Array]:
    """Return the target's arrays that a head may share, by their path in the head."""
    embedding = target["embed_tokens"]["weight"]
    lm_head = target["lm_head"]["weight"] if "lm_head" in target else embedding
    if isinstance(config, WITH_LAYERS):
        reduced = config.draft_vocab_size is not None
        lends: dict[Route, jax.Array] = {("embed_tokens", "weight"): embedding}
        return lends if reduced else {**lends, ("lm_head", "weight"): lm_head}
    if isinstance(config, MedusaConfig) and config.shared_head:
        return {("lm_heads", 0, "weight"): lm_head}
    return {}


def stored_as(
    config: HeadConfig, path: Route, shape: tuple[int, ...], entries: Mapping[str, Any]
) -> list[tuple[Part, tuple[int, ...]]]:
    """Return the parts that a head's parameter is read from, and their whole tensors' shapes."""
    block = getattr(config, "block", None)
    if block is not None and path[0] == "block":  # an MTP layer's
        whole = fused_part("block.", path[1:], shape, block, entries)
        if whole is not None:
            return [whole]
    each = members(path, shape, block)
    return [(Part(holder(config, part, entries)), size) for part, size in each]


def holder(config: HeadConfig, path: Route, entries: Mapping[str, Any]) -> str:
    """Return the name of a path's stored tensor: of tied stages only the first need be stored."""
    if not isinstance(config, SpeculatorConfig) or not config.tied or name(path) in entries:
        return name(path)
    _, stage, part, leaf = path
    return name(("stages", min(int(stage), 1 if part == "proj" else 0), part, leaf))


def read_map(
    key: str, entry: Source | None, rows: int, vocab_size: int, folder: Path
) -> np.ndarray:
    """Return the token of each row of a reduced vocabulary.

    That of row i is i + d2t[i] for EAGLE-3, and token_map[i] for Medusa. Raises ValueError if the
    map is missing, or has a token twice or one that the target lacks.
    """
    if not isinstance(entry, Entry) or (entry.dtype, entry.shape) != ("I64", (rows,)):
        found = "nothing" if entry is None else f"{entry.dtype} {list(entry.shape)}"
        raise ValueError(
            f"{folder}: a vocabulary of {rows} tokens needs {key}, I64 [{rows}], got {found}"
        )
    tokens = np.fromfile(entry.file, "<i8", rows, offset=entry.start)
    if key == "d2t":
        tokens = tokens + np.arange(rows)
    if len(np.unique(tokens)) != rows or tokens.min() < 0 or tokens.max() >= vocab_size:
        raise ValueError(f"{folder}: {key} must name {rows} different tokens below {vocab_size}")
    return tokens


def rows_of(tokens: np.ndarray, vocab_size: int) -> jax.Array:
    """Return each token's row in a reduced vocabulary, one past the last if it has none."""
    vocab_rows = np.full(vocab_size, len(tokens), np.int32)
    vocab_rows[tokens] = np.arange(len(tokens))
    return jnp.asarray(vocab_rows)

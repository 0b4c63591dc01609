"""Read drafting heads in the formats vLLM loads: EAGLE, EAGLE-3, MTP, Medusa, MLP speculator."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.config import FeatureConfig, MedusaConfig, ModelConfig, SpeculatorConfig
from specjax.files import read_json_object
from specjax.models.build import HeadConfig, shapes
from specjax.types import PyTree
from specjax.weights.hf_config import parse_config
from specjax.weights.load import check_tensors, find_tensors, place, read_tensor, stored_leaf
from specjax.weights.names import Route, head_name, members
from specjax.weights.safetensors_file import Entry

Raw = Mapping[str, Any]
EAGLE = {"LlamaForCausalLM": "LlamaForCausalLM", "EagleLlamaForCausalLM": "LlamaForCausalLM"}
EAGLE3 = {
    "LlamaForCausalLM": "LlamaForCausalLM",
    "LlamaForCausalLMEagle3": "LlamaForCausalLM",
    "Eagle3LlamaForCausalLM": "LlamaForCausalLM",
    "Qwen3ForCausalLM": "Qwen3ForCausalLM",
    "Eagle3Qwen3ForCausalLM": "Qwen3ForCausalLM",
}
SIZES = {  # of an MTP layer that is no copy of the target's layers
    "intermediate_size": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
}


def read_head_config(folder: Path, method: str, target: ModelConfig) -> HeadConfig:
    """Read what a head is, and check that it is one of this target.

    Raises ValueError naming the file, the value and the remedy.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not a folder of a drafting head: no config.json in it")
    raw = read_json_object(path)
    try:
        config = PARSERS[method](raw, target)
        check_belongs(config, target)
    except ValueError as error:
        raise ValueError(f"{folder} does not serve as method={method!r}: {error}") from None
    return config


def check_belongs(config: HeadConfig, target: ModelConfig) -> None:
    """Raise ValueError where a head's sizes are those of another target."""
    feature = isinstance(config, FeatureConfig)
    hidden_size = config.target_size if feature else config.hidden_size
    for name, ours, theirs in (
        ("vocab_size", vocabulary(config), target.vocab_size),
        ("hidden_size", hidden_size, target.hidden_size),
    ):
        if ours != theirs:
            raise ValueError(
                f"it was made for a target whose {name} is {ours}, this target's is {theirs}: "
                "use a head that was trained for this target"
            )


def vocabulary(config: HeadConfig) -> int:
    """Return the size of the target's vocabulary, as a head's config says it."""
    return config.block.vocab_size if isinstance(config, FeatureConfig) else config.vocab_size


def parse_eagle(raw: Raw, target: ModelConfig) -> FeatureConfig:
    """Read an EAGLE head's config, with the decoder's facts at the top or under "model"."""
    block = parse_block(raw, EAGLE, target)
    return FeatureConfig(kind="eagle", block=block, target_size=block.hidden_size)


def usual_taps(num_layers: int) -> tuple[int, ...]:
    """Return the layers that EAGLE-3 taps unless its head says otherwise."""
    return tuple(sorted({2, num_layers // 2, num_layers - 3}))


def parse_eagle3(raw: Raw, target: ModelConfig) -> FeatureConfig:
    """Read an EAGLE-3 head's config."""
    own = raw.get("eagle_config") or {}
    if own.get("use_aux_hidden_state") is False:
        raise ValueError("a head without tapped layers (use_aux_hidden_state false) is no EAGLE-3")
    block = parse_block(raw, EAGLE3, target)
    if block.num_layers != 1:
        raise ValueError(f"num_hidden_layers must be 1, got {block.num_layers}")
    ids, depth = raw.get("eagle_aux_hidden_state_layer_ids"), target.num_layers
    ids = ids or own.get("eagle_aux_hidden_state_layer_ids") or usual_taps(depth)
    taps = tuple(sorted(set(ids)))
    if not all(isinstance(i, int) and 0 <= i < depth for i in taps):
        raise ValueError(f"it taps layers {list(taps)} of a target that has {depth}")
    if raw.get("num_aux_hidden_states") not in (None, len(taps)):
        said = raw["num_aux_hidden_states"]
        raise ValueError(f"num_aux_hidden_states is {said}, the tapped layers are {list(taps)}")
    rows = raw.get("draft_vocab_size")
    return FeatureConfig(
        kind="eagle3",
        block=block,
        target_size=raw.get("target_hidden_size") or block.hidden_size,
        taps=taps,
        draft_vocab_size=None if rows == block.vocab_size else rows,
        norm_before_residual=bool(raw.get("norm_before_residual")),
        norm_before_fc=bool(own.get("norm_before_fc", raw.get("norm_before_fc"))),
        fc_norm=bool(raw.get("fc_norm")),
        norm_output=bool(raw.get("norm_output")),
    )


def parse_mtp(raw: Raw, target: ModelConfig) -> FeatureConfig:
    """Read what the target's own config says of its multi-token prediction layers.

    MiMo's is given the last layer before the final norm; DeepSeek's what comes after it, and
    has the layers' experts if it would as one more of them. A layer in a folder of its own may
    have sizes of its own; in the target's folder they are the target's.
    """
    if not raw.get("num_nextn_predict_layers"):
        raise ValueError("it has no MTP layers (num_nextn_predict_layers in its config.json)")
    deepseek, experts = target.latent is not None, target.experts
    if experts is not None and target.num_layers >= experts.first_k_dense_replace:
        experts = dataclasses.replace(experts, first_k_dense_replace=0)
    own = {} if deepseek else {name: number(raw, key) for name, key in SIZES.items() if key in raw}
    return FeatureConfig(
        kind="mtp",
        block=dataclasses.replace(target, num_layers=1, experts=experts, **own),
        target_size=target.hidden_size,
        hidden_first=not deepseek,
        taps=() if deepseek else (target.num_layers,),
    )


def parse_medusa(raw: Raw, target: ModelConfig) -> MedusaConfig:
    """Read a Medusa config: vLLM's, or the authors' own, which tells the numbers only."""
    vocab_size = raw.get("vocab_size", target.vocab_size)
    given = raw.get("truncated_vocab_size") is not None
    rows = number(raw, "truncated_vocab_size") if given else vocab_size
    if rows > vocab_size:
        raise ValueError(f"truncated_vocab_size={rows} is more than vocab_size={vocab_size}")
    return MedusaConfig(
        num_heads=number(raw, "num_heads", "medusa_num_heads"),
        num_layers=number(raw, "num_hidden_layers", "medusa_num_layers"),
        hidden_size=raw.get("hidden_size", target.hidden_size),
        vocab_size=vocab_size,
        bias=bool(raw.get("medusa_fc_bias")),
        shared_head=bool(raw.get("original_lm_head")),
        draft_vocab_size=None if rows == vocab_size else rows,
        dtype=target.dtype,
    )


def parse_mlp_speculator(raw: Raw, target: ModelConfig) -> SpeculatorConfig:
    """Read the config of an IBM / FMS accelerator."""
    hidden_size = number(raw, "emb_dim")
    return SpeculatorConfig(
        num_stages=number(raw, "n_predict"),
        hidden_size=hidden_size,
        inner_size=raw.get("inner_dim") or hidden_size,
        vocab_size=number(raw, "vocab_size"),
        tied=bool(raw.get("tie_weights")),
        scale_input=bool(raw.get("scale_input")),
        dtype=target.dtype,
    )


PARSERS = {
    "eagle": parse_eagle,
    "eagle3": parse_eagle3,
    "mtp": parse_mtp,
    "medusa": parse_medusa,
    "mlp_speculator": parse_mlp_speculator,
}


def parse_block(raw: Raw, known: Mapping[str, str], target: ModelConfig) -> ModelConfig:
    """Read the facts of a head's transformer blocks, in the target's dtype."""
    inner = raw.get("model")
    raw = {**(inner if isinstance(inner, dict) else {}), **raw}
    named = raw.get("architectures") or ["LlamaForCausalLM"]
    if named[0] not in known:
        raise ValueError(f"unknown architecture {named}: known are {', '.join(known)}")
    block = parse_config({**raw, "architectures": [known[named[0]]]}, target.dtype)
    return dataclasses.replace(block, joined=target.joined, cache_dtype=target.cache_dtype)


def number(raw: Raw, *keys: str) -> int:
    """Return the first of the named numbers that is given, at least 1."""
    value = next((raw[key] for key in keys if raw.get(key) is not None), None)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"config.json: {keys[0]} must be at least 1, got {value!r}")
    return value


def load_head(
    folder: Path,
    method: str,
    config: HeadConfig,
    target: PyTree,
    device: Any = None,
    *,
    keep_dtype: bool = False,
) -> PyTree:
    """Load a head's weights as ``shapes(config)`` lays them out, in the target's dtype.

    ``keep_dtype`` is that of ``load.load_params``.

    What the checkpoint leaves out because the target has it (embeddings, LM head) is the
    target's own array.

    Raises:
        ValueError: as ``load.load_params``, or a reduced vocabulary's d2t is wrong.
    """
    own, kept = read_head(folder, method, config, target, device, keep_dtype=keep_dtype)
    say = None if kept is None else jax.device_put(rows_of(kept, vocabulary(config)), device)
    return assemble(config, own, target, say)


def read_head(
    folder: Path,
    method: str,
    config: HeadConfig,
    target: PyTree,
    device: Any = None,
    *,
    keep_dtype: bool = False,
) -> tuple[dict[str, jax.Array], np.ndarray | None]:
    """Read what a checkpoint brings itself: weights by dotted path, a reduced vocabulary's tokens.

    Raises ValueError as ``load_head``.
    """
    entries = find_tensors(folder, functools.partial(head_name, method, len(target["layers"])))
    maps = {key: entries.pop(key, None) for key in ("d2t", "t2d", "token_map")}
    lends = {name(path): value for path, value in lent(config, target).items()}
    size, rows = vocabulary(config), getattr(config, "draft_vocab_size", None)
    leaves: dict[str, jax.ShapeDtypeStruct] = {}
    parts: dict[str, dict[str, tuple[int, ...]]] = {}  # the tensors that each is made of
    for path, leaf in paths(shapes(config)).items():
        stored = holder(config, path, entries)
        if path == ("say",) or (stored in lends and stored not in entries):
            continue
        if path[0] == "lm_heads" and stored in entries and entries[stored].shape[:1] == (size,):
            leaf = jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype)  # cut below
        leaves[stored] = leaf
        each = members(path, leaf.shape, getattr(config, "block", None))
        parts[stored] = {holder(config, part, entries): shape for part, shape in each}
    expected = {part: shape for one in parts.values() for part, shape in one.items()}
    check_tensors(folder, entries, expected)

    own = {}
    for stored, one in parts.items():
        found = {part: entries[part] for part in one}
        leaf = stored_leaf(found, leaves[stored]) if keep_dtype else leaves[stored]
        own[stored] = read_tensor(found, leaf, device)
    if rows is None:
        return own, None
    if isinstance(config, FeatureConfig):
        return own, read_map("d2t", maps["d2t"], rows, size, folder)
    kept = read_map("token_map", maps["token_map"], rows, size, folder)
    heads = {key: value for key, value in (lends | own).items() if key.startswith("lm_heads.")}
    return own | {k: v[kept] for k, v in heads.items() if len(v) == size}, kept


def assemble(
    config: HeadConfig, own: Mapping[str, jax.Array], target: PyTree, say: jax.Array | None
) -> PyTree:
    """Lay out a head's weights as ``shapes(config)`` does.

    ``own`` are the arrays it brings, by dotted path; what is not among them is that of the
    stage it is tied to, or the target's own array. ``say`` is a reduced vocabulary's map.
    """
    shared, params = lent(config, target), {}
    for path in paths(shapes(config)):
        stored = holder(config, path, own)
        value = say if path == ("say",) else own[stored] if stored in own else shared[path]
        assert value is not None
        place(params, path, value)
    return params


def paths(tree: PyTree) -> dict[Route, Any]:
    """Return the leaves of a nested dict by their path."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {tuple(key.key for key in keys): leaf for keys, leaf in leaves}


def name(path: Route) -> str:
    """Write a path as a checkpoint does."""
    return ".".join(map(str, path))


def lent(config: HeadConfig, target: PyTree) -> dict[Route, jax.Array]:
    """Return the target's arrays that a head may use as its own, by their path in the head."""
    embedding = target["embed_tokens"]["weight"]
    lm_head = target["lm_head"]["weight"] if "lm_head" in target else embedding
    if isinstance(config, FeatureConfig):
        reduced = config.draft_vocab_size is not None
        lends: dict[Route, jax.Array] = {("embed_tokens", "weight"): embedding}
        return lends if reduced else {**lends, ("lm_head", "weight"): lm_head}
    if isinstance(config, MedusaConfig) and config.shared_head:
        return {("lm_heads", 0, "weight"): lm_head}
    return {}


def holder(config: HeadConfig, path: Route, entries: Mapping[str, Any]) -> str:
    """Name the stored tensor of a path: of tied stages only the first need be stored."""
    if not isinstance(config, SpeculatorConfig) or not config.tied or name(path) in entries:
        return name(path)
    _, stage, part, leaf = path
    return name(("stages", min(int(stage), 1 if part == "proj" else 0), part, leaf))


def read_map(key: str, entry: Entry | None, rows: int, vocab_size: int, folder: Path) -> np.ndarray:
    """Return the token of each row of a reduced vocabulary.

    Row i of EAGLE-3's d2t says i + d2t[i], of Medusa's token_map the token itself. Raises
    ValueError when it is missing or names a token twice or one the target lacks.
    """
    if entry is None or (entry.dtype, entry.shape) != ("I64", (rows,)):
        said = "nothing" if entry is None else f"{entry.dtype} {list(entry.shape)}"
        raise ValueError(
            f"{folder}: a vocabulary of {rows} tokens needs {key}, I64 [{rows}], got {said}"
        )
    tokens = np.fromfile(entry.file, "<i8", rows, offset=entry.start)
    if key == "d2t":
        tokens = tokens + np.arange(rows)
    if len(np.unique(tokens)) != rows or tokens.min() < 0 or tokens.max() >= vocab_size:
        raise ValueError(f"{folder}: {key} must name {rows} different tokens below {vocab_size}")
    return tokens


def rows_of(tokens: np.ndarray, vocab_size: int) -> jax.Array:
    """Return each token's row in a reduced vocabulary, one past the last if it has none."""
    say = np.full(vocab_size, len(tokens), np.int32)
    say[tokens] = np.arange(len(tokens))
    return jnp.asarray(say)

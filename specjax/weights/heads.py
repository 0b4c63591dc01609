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
from specjax.weights.load import check_tensors, find_tensors, place, read_tensor
from specjax.weights.names import Route, head_name
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
    vocab_size = config.block.vocab_size if feature else config.vocab_size
    hidden_size = config.target_size if feature else config.hidden_size
    for name, ours, theirs in (
        ("vocab_size", vocab_size, target.vocab_size),
        ("hidden_size", hidden_size, target.hidden_size),
    ):
        if ours != theirs:
            raise ValueError(
                f"it was made for a target whose {name} is {ours}, this target's is {theirs}: "
                "use a head that was trained for this target"
            )


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
    """Read what the target's own config says of its multi-token prediction layers."""
    if not raw.get("num_nextn_predict_layers"):
        raise ValueError("it has no MTP layers (num_nextn_predict_layers in its config.json)")
    block = dataclasses.replace(target, num_layers=1)
    return FeatureConfig(
        kind="mtp",
        block=block,
        target_size=block.hidden_size,
        hidden_first=True,
        taps=(target.num_layers,),
    )


def parse_medusa(raw: Raw, target: ModelConfig) -> MedusaConfig:
    """Read a Medusa config: vLLM's, or the authors' own, which tells the numbers only."""
    vocab_size = raw.get("vocab_size", target.vocab_size)
    if raw.get("truncated_vocab_size") not in (None, vocab_size):
        said = raw["truncated_vocab_size"]
        raise ValueError(f"truncated_vocab_size={said} is not implemented: use heads of all tokens")
    return MedusaConfig(
        num_heads=number(raw, "num_heads", "medusa_num_heads"),
        num_layers=number(raw, "num_hidden_layers", "medusa_num_layers"),
        hidden_size=raw.get("hidden_size", target.hidden_size),
        vocab_size=vocab_size,
        bias=bool(raw.get("medusa_fc_bias")),
        shared_head=bool(raw.get("original_lm_head")),
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
    return parse_config({**raw, "architectures": [known[named[0]]]}, target.dtype)


def number(raw: Raw, *keys: str) -> int:
    """Return the first of the named numbers that is given, at least 1."""
    value = next((raw[key] for key in keys if raw.get(key) is not None), None)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"config.json: {keys[0]} must be at least 1, got {value!r}")
    return value


def load_head(
    folder: Path, method: str, config: HeadConfig, target: PyTree, device: Any = None
) -> PyTree:
    """Load a head's weights as ``shapes(config)`` lays them out, in the target's dtype.

    What the checkpoint leaves out because the target has it (embeddings, LM head) is the
    target's own array.

    Raises:
        ValueError: as ``load.load_params``, or a reduced vocabulary's d2t is wrong.
    """
    entries = find_tensors(folder, functools.partial(head_name, method))
    mapped, _ = entries.pop("d2t", None), entries.pop("t2d", None)
    leaves = jax.tree_util.tree_flatten_with_path(shapes(config))[0]
    wanted = {tuple(key.key for key in keys): tuple(leaf.shape) for keys, leaf in leaves}
    wanted.pop(("say",), None)
    shared = {
        path: value for path, value in lent(config, target).items() if name(path) not in entries
    }
    held = {path: holder(config, path, entries) for path in wanted if path not in shared}
    expected = {held[path]: shape for path, shape in wanted.items() if path in held}
    check_tensors(folder, entries, expected)

    dtype = config.block.dtype if isinstance(config, FeatureConfig) else config.dtype
    read = {
        stored: read_tensor(entries[stored], stored, shape, dtype, device)
        for stored, shape in expected.items()
    }
    params: dict = {}
    for path in wanted:
        place(params, path, shared[path] if path in shared else read[held[path]])
    if isinstance(config, FeatureConfig) and config.draft_vocab_size is not None:
        say = invert(mapped, config.draft_vocab_size, config.block.vocab_size, folder)
        place(params, ("say",), jax.device_put(say, device))
    return params


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


def holder(config: HeadConfig, path: Route, entries: dict[str, Entry]) -> str:
    """Name the stored tensor of a path: of tied stages only the first need be stored."""
    if not isinstance(config, SpeculatorConfig) or not config.tied or name(path) in entries:
        return name(path)
    _, stage, part, leaf = path
    return name(("stages", min(int(stage), 1 if part == "proj" else 0), part, leaf))


def invert(entry: Entry | None, rows: int, vocab_size: int, folder: Path) -> jax.Array:
    """Turn d2t (row i is token i + d2t[i]) into each token's row, one past the last if it has none.

    Raises ValueError when it is missing or names a token twice or one the target lacks.
    """
    if entry is None or (entry.dtype, entry.shape) != ("I64", (rows,)):
        said = "nothing" if entry is None else f"{entry.dtype} {list(entry.shape)}"
        raise ValueError(f"{folder}: draft_vocab_size={rows} needs d2t, I64 [{rows}], got {said}")
    offsets = np.fromfile(entry.file, "<i8", rows, offset=entry.start)
    tokens = np.arange(rows) + offsets
    if len(np.unique(tokens)) != rows or tokens.min() < 0 or tokens.max() >= vocab_size:
        raise ValueError(f"{folder}: d2t must name {rows} different tokens below {vocab_size}")
    say = np.full(vocab_size, rows, np.int32)
    say[tokens] = np.arange(rows)
    return jnp.asarray(say)

"""``specjax doctor --model``: say before any weight is read whether a checkpoint loads, and how."""

from collections import Counter
from collections.abc import Callable
from functools import partial

from specjax.bundled import BUNDLED, HEADS, resolve
from specjax.cli.doctor import available_memory
from specjax.core.types import PyTree
from specjax.engine.build import Model, describe, describe_draft
from specjax.engine.device import (
    check_divisible,
    check_experts,
    choose_devices,
    choose_dtype,
    has_inference_layout,
    inference_layout,
)
from specjax.engine.options.methods import MODEL_FREE
from specjax.models.build import shapes
from specjax.models.config import HEAD_METHODS, ModelConfig
from specjax.weights.footprint import cache_bytes, measure, readable
from specjax.weights.head_configs import read_head_config


def examine_model(
    model: str,
    echo: Callable[[str], None],
    *,
    dtype: str = "auto",
    max_model_len: int | None = None,
    tensor_parallel_size: int = 1,
    enable_expert_parallel: bool = False,
    draft: str | None = None,
) -> bool:
    """Report on a checkpoint by calling ``echo`` for each line; return whether it loads here.

    Only config.json, the tokenizer and the headers of weight files are read.

    Args:
        model: a folder, or a bundled name.
        echo: takes a line.
        dtype: the option of ``LLM``.
        max_model_len: the option of ``LLM``; the length that a row's cache is measured for.
        tensor_parallel_size: the option of ``LLM``.
        enable_expert_parallel: the option of ``LLM``.
        draft: a folder whose drafting format is to be found out.
    """
    try:
        mesh = choose_devices("auto", tensor_parallel_size)
        deal = enable_expert_parallel
        form = partial(inference_layout, mesh=mesh, device="auto", expert_parallel=deal)
        target = describe(model, choose_dtype(dtype, mesh), max_model_len, form=form)
        config, keep = target.config, has_inference_layout(mesh, "auto")
        check_experts(config, expert_parallel=deal)
        check_divisible(config, mesh)
        size = measure(target.folder, config, keep_dtype=keep)
    except ValueError as error:
        echo(f"model      {model}")
        echo(f"loads      NO: {error}")
        return False
    length = max_model_len or config.max_position_embeddings
    row = cache_bytes(config, length)
    token = cache_bytes(config, 2) - cache_bytes(config, 1)
    needed, free = size.weights + row, available_memory()
    echo(f"model      {target.folder}")
    echo(f"layers     {kinds_of_layers(config)}")
    echo(f"weights    {size}; the largest {readable(size.largest)}")
    echo(f"compute    {config.dtype} on {mesh.size} x {mesh.devices.flat[0].platform}")
    echo(f"cache      {readable(token)} per token, {readable(row)} per row of {length} tokens")
    fits = free is None or needed <= free
    have = "" if free is None else f", of {readable(free)} available"
    echo(f"memory     {readable(needed)} for weights and one row{have}")
    for line in drafters(target, dtype, draft):
        echo(f"drafter    {line}")
    if not fits:
        echo("loads      NO: it needs more memory than is available: free some, use a smaller "
             "max_model_len, or share it by tensor_parallel_size")  # fmt: skip
    else:
        echo("loads      yes")
    return fits


def kinds_of_layers(config: ModelConfig) -> str:
    """Return how many layers of each kind a model has."""
    layers: PyTree = shapes(config)["layers"]
    kinds = Counter(map(_kind, layers.values()))
    return ", ".join(f"{count} x {kind}" for kind, count in kinds.items())


def _kind(layer: PyTree) -> str:
    attention = "latent attention" if "kv_b_proj" in layer.get("self_attn", {}) else None
    attention = attention or ("attention" if "self_attn" in layer else "recurrent")
    mlp = "experts" if "experts" in layer["mlp"] else "MLP"
    return f"({attention}, {mlp})"


def drafters(target: Model, dtype: str, draft: str | None) -> list[str]:
    """Return a line per drafter: that it fits, or why not."""
    lines = [f"{', '.join(MODEL_FREE)}: fit any model"]
    tried = [("mtp", str(target.folder))]
    tried += [(name, f"bundled:{name}") for name in HEADS]
    tried += [("draft_model", "bundled:draft")] if "bundled:draft" in BUNDLED else []
    if draft is not None:
        tried += [(method, draft) for method in ("draft_model", *HEAD_METHODS)]
    for method, folder in tried:
        try:
            if method == "draft_model":
                describe_draft(target, folder, dtype, heterogeneous=False)
            else:
                read_head_config(resolve(folder), method, target.config)
            lines.append(f"{method}, {folder}: fits")
        except ValueError as error:
            lines.append(f"{method}, {folder}: no, {error}")
    return lines

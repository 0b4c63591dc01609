"""``specjax bench large``: published mixtures of experts, cut to four layers, beside vLLM.

Random weights in the published sizes of a layer: load time, peak memory, and tokens per second,
plain and with n-gram drafts. One engine runs at a time, in a process of its own, so that only one
has the weights in memory.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from specjax.bench.arms import Arm, Echo, Key, time_arms, total
from specjax.bench.engines import OURS, open_arms
from specjax.bench.report import Row, compare, machine_row, print_rows, write_rows, write_section
from specjax.bench.shapes import num_bytes, write_random
from specjax.oracle.environment import OracleFailure
from specjax.weights.footprint import readable
from specjax.weights.hf_config import parse_config

LAYERS = 4
NUM_PROMPT = 64  # tokens
ARMS: tuple[Key, ...] = tuple(
    (engine, method) for engine in ("specjax bfloat16", "vLLM") for method in ("plain", "ngram")
)
COMMON: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "bos_token_id": None,
    "eos_token_id": 0,
    "torch_dtype": "bfloat16",
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-30b-a3b": COMMON
    | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "use_sliding_window": False,
    },
    "qwen3-next": COMMON
    | {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "intermediate_size": 5120,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000.0,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
    },
}


def bench_large(
    json_file: Path | None,
    *,
    only: Sequence[str] = tuple(SHAPES),
    shapes: Mapping[str, Mapping[str, Any]] = SHAPES,
    num_tokens: int = 32,
    reps: int = 3,
    arms: Sequence[Key] = ARMS,
    readme: Path | None = None,
    console: Console | None = None,
) -> list[Row]:
    """Return rows of every engine and method on each shape, and print them.

    Args:
        json_file: where the rows are written as JSON; None: nowhere.
        only: names of ``shapes``.
        shapes: a config.json by name.
        num_tokens: per text.
        reps: repetitions, of which medians are reported.
        arms: engines with methods.
        readme: a Markdown file, in whose section "large" to put the table.
        console: where to print.

    Raises:
        ValueError: a name is unknown, or the disk lacks room for a checkpoint.
        WorkerFailure: an engine's process fails.
    """
    unknown = [name for name in only if name not in shapes]
    if unknown:
        raise ValueError(f"unknown shape {unknown[0]!r}: use some of {', '.join(shapes)}")
    console = console or Console(highlight=False)

    def echo(line: str) -> None:
        console.print(line, soft_wrap=True, markup=False)

    rows = [machine_row()]
    for name in dict.fromkeys(only):
        rows += shape_rows(name, shapes[name], num_tokens, reps, arms, echo)
        if json_file is not None:  # after each, for the next may not fit
            write_rows(rows, json_file)
        if readme is not None:
            note = f"Batch 1, {NUM_PROMPT} tokens read and {num_tokens} written; drafts of n-grams."
            write_section(rows, readme, "large", [note])
    print_rows(rows, console)
    return rows


def shape_rows(
    name: str, described: Mapping[str, Any], num_tokens: int, reps: int, arms: Sequence[Key],
    echo: Echo,
) -> list[Row]:  # fmt: skip
    """Return the rows of one shape, whose checkpoint exists for as long."""
    folder = Path(tempfile.gettempdir()) / "specjax-bench" / name
    folder.parent.mkdir(exist_ok=True)
    size, free = num_bytes(parse_config(described)), shutil.disk_usage(folder.parent).free
    if size > free:
        raise ValueError(
            f"{name} takes {readable(size)} and {folder.parent} has {readable(free)} free: free "
            "some, or set TMPDIR to a larger disk"
        )
    echo(f"{name}, {described['num_hidden_layers']} layers, random weights, {readable(size)}")
    try:
        write_random(folder, described)
        found = [one for key in arms for one in run(key, folder, described, num_tokens, reps, echo)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    speeds = {arm.key: speed for arm, speed, _ in found}
    rows: list[Row] = []
    for arm, speed, peak in found:
        where = f"{name}: {arm.label}, {arm.method}"
        peer = speeds.get(("vLLM", arm.method)) if arm.engine in OURS else None
        if peer is None:
            rows.append(Row(name=where, value=speed, unit="tokens/s"))
        else:
            rows.append(compare(where, speed, "tokens/s", peer, "vLLM"))
        rows.append(Row(name=f"{where}: start to first token", value=arm.start, unit="s"))
        if peak is not None:
            rows.append(
                compare(f"{where}: peak memory", peak / 1e6, "MB", size / 1e6, "the checkpoint")
            )
    return rows


def run(
    key: Key, folder: Path, described: Mapping[str, Any], num_tokens: int, reps: int, echo: Echo
) -> list[tuple[Arm, float, int | None]]:
    """Return an engine with its speed at batch 1 and its peak memory.

    Nothing if it is not installed, or if it is vLLM and fails: then the reason is printed.
    """
    rng = np.random.default_rng(1)
    prompt = rng.integers(1, described["vocab_size"], NUM_PROMPT).tolist()
    try:
        with ExitStack() as opened:
            arms = open_arms(opened, [key], folder, folder, (1,), echo)
            timed = time_arms(arms, [[prompt]], 1, num_tokens, reps, echo)
            return [(arm, total(timed[arm.key]), timed[arm.key][-1].peak_bytes) for arm in arms]
    except OracleFailure as error:
        echo(f"{key[0]}, {key[1]}: left out; {error}")
        return []

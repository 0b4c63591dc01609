"""Train a head of each kind alike: the same batches, steps, losses and optimizer.

A table of methods then compares methods, and not how long somebody has trained each of them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specjax.host.files import read_json_object, write_json
from specjax.train.features import SourceConfig, write_shards
from specjax.train.head_options import HeadTrainConfig
from specjax.train.heads import train_head
from specjax.train.log import echo, read_losses
from specjax.weights.safetensors_file import read_header

SHAPES: dict[str, dict[str, Any]] = {  # of the heads that ship; their kinds have no more options
    "eagle": {"intermediate_size": 768},
    "eagle3": {"intermediate_size": 1024, "draft_vocab_size": 1536},
    "mtp": {"intermediate_size": 384, "num_heads": 2, "num_kv_heads": 1},
    "medusa": {"num_layers": 1},
    "mlp_speculator": {},
    "dflash": {"intermediate_size": 768, "num_layers": 3},
    "dspark": {"intermediate_size": 768, "num_layers": 3},
    "peagle": {"intermediate_size": 1024, "num_layers": 2, "draft_vocab_size": 1536},
}
EQUALS = tuple(SHAPES)
SUMMARY = "heads.json"


def train_alike(
    out: Path, source: SourceConfig, kinds: Sequence[str] = EQUALS, **options: Any
) -> list[dict[str, Any]]:
    """Train each kind to ``out``/KIND/model on shards in ``out``/shards; return a row of each.

    The rows, in ``out``/heads.json too, have the kind, its parameters, the tokens it has seen, the
    seconds it took, and the held-out chance of acceptance at each position. Killed at any moment,
    the same call goes on.

    Args:
        out: the folder.
        source: which batches.
        kinds: of heads.
        options: of ``HeadTrainConfig``, the same for all.

    Raises:
        ValueError: an unknown kind, or a bad option.
    """
    unknown = [kind for kind in kinds if kind not in SHAPES]
    if unknown:
        raise ValueError(f"unknown kind of head {unknown[0]!r}: use some of {', '.join(SHAPES)}")
    configs = [
        HeadTrainConfig(kind=kind, out=str(out / kind), source=source, **SHAPES[kind], **options)
        for kind in kinds
    ]
    write_shards(source, out / "shards")
    rows = []
    for config in configs:
        echo(f"training {config.kind}")
        trained = train_head(config, out / "shards")
        log = read_losses(Path(config.out) / "loss.jsonl")
        measured = next(row for row in log if row["step"] == trained.step and "acceptance" in row)
        tensors = read_header(trained.folder / "model.safetensors").values()
        tokens = source.batch * source.context
        rates = [row["tokens_per_second"] for row in log]
        rows.append(
            {
                "kind": config.kind,
                "parameters": int(sum(np.prod(one.shape) for one in tensors)),
                "tokens": tokens * log[-1]["step"],
                "seconds": round(tokens * log[-1]["step"] / float(np.mean(rates)), 1),
                "agreement": measured["agreement"],
                "acceptance": measured["acceptance"],
            }
        )
    write_json(out / SUMMARY, rows)
    return rows


def read_curves(folder: Path) -> dict[str, tuple[list[int], np.ndarray]]:
    """Return, by kind, the steps at which a head was measured and its acceptance by position."""
    curves = {}
    for kind in EQUALS:
        rows = [row for row in read_losses(folder / kind / "loss.jsonl") if "acceptance" in row]
        if rows:
            curves[kind] = [row["step"] for row in rows], np.array([r["acceptance"] for r in rows])
    return curves


def describe(folder: Path) -> str:
    """Return in words how the heads in a folder of ``train_alike`` were trained.

    Raises:
        ValueError: they were not trained alike, or there are none.
    """
    found = [kind for kind in EQUALS if (folder / kind / "run.json").is_file()]
    runs = [read_json_object(folder / kind / "run.json") for kind in found]
    if not runs:
        raise ValueError(f"{folder} holds no heads of `specjax train heads`")
    names = ("source", "losses", "unroll", "decay", "learning_rate", "optimizer", "seed")
    first = {name: runs[0]["config"][name] for name in names}
    for kind, run in zip(found, runs, strict=True):
        other = {name: run["config"][name] for name in names}
        if other != first or (run["steps"], run["data"]) != (runs[0]["steps"], runs[0]["data"]):
            raise ValueError(f"{folder}: {kind} was not trained as {found[0]} was")
    source, losses = first["source"], first["losses"]
    said = ", ".join(f"{weight:g} {name}" for name, weight in losses.items())
    text = source["source"] or "Python's standard library"
    return (
        f"Each head was trained for {runs[0]['steps']} steps of {source['batch']} x "
        f"{source['context']} tokens of {text}, the last {source['own']} of each sequence the "
        f"target's own at temperature {source['temperature']:g}; loss {said} over "
        f"{first['unroll']} drafted tokens, each weighing {first['decay']:g} of the one before; "
        f"{first['optimizer']}, learning rate {first['learning_rate']:g}, seed {first['seed']}; "
        f"data {runs[0]['data'][:12]}, target {source['target']}."
    )

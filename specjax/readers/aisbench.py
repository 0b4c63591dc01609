"""AISBench's summary of a run: DATASET.json, DATASET.csv and spec_decode_HOST_PORT.json beside it.

Values carry their unit ("19897.8505 ms"). The rate of acceptance is in percent.
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specjax.host.files import read_json_object
from specjax.readers.observation import Latency, Observation
from specjax.readers.vllm_bench import CLIENT

STAGES = ("total", "stable")


def is_aisbench(saved: Mapping[str, Any]) -> bool:
    """Return whether an object is a summary."""
    return "Benchmark Duration" in saved and "Concurrency" in saved


def read_aisbench(saved: Mapping[str, Any], path: Path) -> Observation:
    """Return what a summary and the files beside it say.

    Raises ValueError for a value that is no number with a unit, or several spec_decode files.
    """

    def value(name: str) -> float | None:
        stages = saved.get(name) or {}
        found = next((stages[one] for one in STAGES if one in stages), None)
        return None if found is None else number(found, f"{path}: {name}")

    duration, table = value("Benchmark Duration"), read_table(path.with_suffix(".csv"))
    tokens = value("Total Generated Tokens") or value("Total Output Tokens")
    drafted, why = spec_decode(path.parent)
    return Observation(
        engine="unknown",
        source=f"{path} (AISBench)",
        seconds=None if duration is None else duration / 1e3,
        running=value("Concurrency"),
        num_requests=value("Success Requests"),
        prompt_tokens=value("Total Input Tokens"),
        generation_tokens=tokens,
        generation_throughput=value("Output Token Throughput"),
        ttft=table.get("TTFT"),
        tpot=table.get("TPOT"),
        itl=table.get("ITL"),
        e2e=table.get("E2EL"),
        reasons={
            **dict.fromkeys(
                ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "acceptance_rate",
                 "mean_acceptance_length", "acceptance_per_position"),
                why,
            ),
            **dict.fromkeys(("waiting", "queue", "preemptions", "kv_cache_usage"), CLIENT),
        },
        **drafted,
    )  # fmt: skip


def number(found: Any, what: str) -> float:
    """Return the number before a unit."""
    try:
        return float(str(found).split()[0])
    except (ValueError, IndexError):
        raise ValueError(f"{what} must be a number and a unit, got {found!r}") from None


def read_table(path: Path) -> dict[str, Latency]:
    """Return the latencies in a CSV file; none if there is no such file."""
    if not path.is_file():
        return {}
    found = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            name = row.get("Performance Parameters", "")
            if name not in ("TTFT", "TPOT", "ITL", "E2EL") or not row.get("Average"):
                continue
            columns = ("Average", "Median", "P90", "P99")
            times = [
                number(row[one], f"{path}: {name}") / 1e3 if row.get(one) else None
                for one in columns
            ]
            count = number(row["N"], f"{path}: N") if row.get("N") else None
            found[name] = Latency(times[0] or 0.0, *times[1:], count=count)
    return found


def spec_decode(folder: Path) -> tuple[dict[str, Any], str]:
    """Return the fields of acceptance in ``--spec-decode``'s file, and why there are none."""
    files = sorted(folder.glob("spec_decode_*.json"))
    if not files:
        return {}, "no spec_decode_*.json beside the result: run ais_bench with --spec-decode"
    if len(files) > 1:
        names = ", ".join(one.name for one in files)
        raise ValueError(f"{folder} has acceptance of several servers: {names}; keep one.")
    saved = read_json_object(files[0])
    data = saved.get("data")
    if not data:
        return {}, f"{files[0].name}: {saved.get('error') or 'no data'}"
    rates = data.get("per_position_acceptance_rates") or {}
    return {
        "num_drafts": data["num_drafts"],
        "num_draft_tokens": data["draft_tokens"],
        "num_accepted_tokens": data["accepted_tokens"],
        "acceptance_rate": data["accepted_tokens"] / data["draft_tokens"],
        "mean_acceptance_length": 1.0 + data["accepted_tokens"] / data["num_drafts"],
        "acceptance_per_position": tuple(rates[key] for key in sorted(rates, key=int)) or None,
    }, ""

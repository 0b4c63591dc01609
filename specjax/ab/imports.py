"""Convert other tools' results to logs, which are then compared like our own runs.

AISBench keeps a folder per run: ``performances/MODEL/DATASET_details.jsonl`` with the requests,
whose times are NumPy arrays in SQLite files beside it. ``vllm bench serve --save-result
--save-detailed`` writes one JSON file. Requests are paired by their position in the run.
"""

import io
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from specjax import __version__
from specjax.ab.records import Record, Unit, failed, sha256
from specjax.core.metrics import distinct_bigrams
from specjax.host.files import read_json_object


def import_results(arms: Sequence[tuple[str, Path]]) -> tuple[dict[str, Any], list[Unit]]:
    """Return a manifest and the units of every arm's results.

    Raises ValueError, naming the file, for what is no such result, OSError for no file.
    """
    units = []
    for label, path in arms:
        if not path.exists():
            raise FileNotFoundError(2, "No such file or folder", str(path))
        found = list(read_aisbench(label, path) if path.is_dir() else read_vllm(label, path))
        if not found:
            raise ValueError(
                f"{path} has no results: wanted performances/MODEL/DATASET_details.jsonl of "
                "AISBench's --mode perf, or a JSON file of vllm bench serve."
            )
        units += found
    named = [
        {"label": label, "kind": "import", "config": None, "path": str(p)} for label, p in arms
    ]
    return {
        "wanted": {"plan": {"slo": None}},
        "arms": named,
        "ask": {"temperature": None},  # neither tool records it
        "specjax": __version__,
        "date": "imported",
        "host": "as measured",
    }, units


def read_vllm(label: str, path: Path) -> Iterator[Unit]:
    """Return the unit in a file of ``vllm bench serve --save-detailed``."""
    saved = read_json_object(path)
    try:
        columns = [saved[name] for name in ("input_lens", "output_lens", "ttfts", "itls", "errors")]
        sent, texts = saved.get("start_times"), saved.get("generated_texts")
        first = min(sent) if sent else 0.0
        requests = [
            vllm_record(i, one, (sent[i] - first) if sent else 0.0, texts[i] if texts else "")
            for i, one in enumerate(zip(*columns, strict=True))
        ]
        name = saved.get("dataset_name") or saved.get("label") or "vllm bench serve"
        yield Unit(
            arm=label,
            dataset=str(name),
            concurrency=int(saved.get("max_concurrency") or 0),
            block=0,
            seconds=float(saved["duration"]),
            requests=tuple(requests),
            counters=None,
        )
    except KeyError as error:
        raise ValueError(
            f"{path} lacks {error}: run vllm bench serve with --save-result --save-detailed."
        ) from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is no result of vllm bench serve: {error}") from None


def vllm_record(index: int, row: Sequence[Any], sent: float, text: str) -> Record:
    """Return the record of one request of vLLM's columns."""
    input_tokens, output_tokens, ttft, itls, error = row
    if error or not output_tokens:
        *_, last = ("no tokens", *str(error or "").strip().splitlines())
        return failed(str(index), sent, 0.0, last[:200])
    times = tuple((ttft + np.concatenate([[0.0], np.cumsum(itls)])).tolist())
    return imported(str(index), sent, times, int(input_tokens), int(output_tokens), text)


def imported(
    prompt: str, sent: float, times: tuple[float, ...], inputs: int, outputs: int, text: str
) -> Record:
    """Return a record of what other tools save: times and counts, no token ids."""
    return Record(
        prompt=prompt,
        sent=sent,
        times=times,
        counts=(),
        end=times[-1],
        input_tokens=inputs,
        output_tokens=outputs,
        finish_reason=None,
        tokens=None,
        text_sha256=sha256(text),
        distinct_bigrams=distinct_bigrams(text.split()) if text else None,
        retokenized=None,
        correct=None,
        accepted=None,
        drafted=None,
        error=None,
    )


def read_aisbench(label: str, folder: Path) -> Iterator[Unit]:
    """Return the units of an AISBench run, given its work folder or one of its timestamps."""
    for path in sorted(folder.rglob("performances/*/*_details.jsonl")):
        dataset = path.name.removesuffix("_details.jsonl")
        rows, stores = [], {}
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                row = json.loads(text)
                store = row.get("db_name")
                if store and store not in stores:
                    stores[store] = read_arrays(path.parent / "db_data" / store)
                rows.append((row, aisbench_times(row, stores.get(store, {}))))
            except (ValueError, KeyError, TypeError, AttributeError, sqlite3.Error) as error:
                raise ValueError(f"{path} line {number} is no AISBench detail: {error}") from None
        if not rows:
            continue
        began = min((float(times[0]) for _, times in rows if len(times)), default=0.0)
        ended = max((float(times[-1]) for _, times in rows if len(times)), default=0.0)
        yield Unit(
            arm=label,
            dataset=dataset,
            concurrency=max_concurrency(path.with_name(dataset + ".json")),
            block=0,
            seconds=ended - began,
            requests=tuple(aisbench_record(row, times, began) for row, times in rows),
            counters=None,
        )


def read_arrays(path: Path) -> dict[int, np.ndarray]:
    """Return the arrays in one of AISBench's databases."""
    if not path.is_file():
        raise ValueError(f"{path} is missing: copy the run's whole folder")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
        found = store.execute("SELECT id, arr_blob FROM numpy_store").fetchall()
    return {key: np.load(io.BytesIO(blob), allow_pickle=False) for key, blob in found}


def aisbench_times(row: Mapping[str, Any], arrays: Mapping[int, np.ndarray]) -> np.ndarray:
    """Return the times a request was sent and its chunks arrived; none for a failed one."""
    points = row.get("time_points")
    if not row["success"] or points is None:
        return np.empty(0)
    times = arrays[points["__db_ref__"]] if isinstance(points, Mapping) else np.asarray(points)
    if times.ndim != 1 or len(times) < 2:
        raise ValueError(f"a request has a start and a chunk, got times of shape {times.shape}")
    return times


def aisbench_record(row: Mapping[str, Any], times: np.ndarray, began: float) -> Record:
    """Return the record of one of AISBench's requests."""
    prompt = str(row.get("id", row.get("uuid")))
    if row.get("turn_id"):
        prompt += f" turn {row['turn_id']}"
    if not len(times) or not row.get("output_tokens"):
        return failed(prompt, 0.0, 0.0, str(row.get("error_info") or "no tokens")[:200])
    after = tuple((times[1:] - times[0]).tolist())
    text = row.get("prediction") or ""
    text = text if isinstance(text, str) else json.dumps(text)
    counts = int(row.get("input_tokens") or 0), int(row["output_tokens"])
    return imported(prompt, float(times[0]) - began, after, *counts, text)


def max_concurrency(path: Path) -> int:
    """Return "Max Concurrency" of AISBench's summary; 0 if there is none."""
    if not path.is_file():
        return 0
    found = read_json_object(path).get("Max Concurrency", {})
    values = list(found.values()) if isinstance(found, Mapping) else [found]
    return int(float(values[0])) if values and values[0] is not None else 0

"""Results of AISBench and of vllm bench serve, in the files these tools write."""

import io
import json
import sqlite3

import numpy as np
import pytest

from specjax.ab.findings import find
from specjax.ab.imports import import_results
from specjax.ab.measures import measure
from specjax.ab.records import append, read_log, start_log

STORE = "CREATE TABLE numpy_store (id INTEGER PRIMARY KEY AUTOINCREMENT, arr_blob BLOB NOT NULL)"


def vllm_result(tpot: float) -> dict:
    """What --save-detailed adds, for three requests; the last failed."""
    return {
        "duration": 2.0,
        "max_concurrency": 2,
        "input_lens": [5, 6, 7],
        "output_lens": [4, 5, 0],
        "ttfts": [0.1, 0.2, 0.0],
        "itls": [[3 * tpot], [tpot, tpot, 2 * tpot], []],  # chunks of several tokens
        "start_times": [10.0, 10.5, 11.0],
        "generated_texts": ["a b c d", "a b a b a", ""],
        "errors": ["", "", "Traceback\nValueError: no"],
    }


def aisbench_folder(folder, tpot: float) -> None:
    """Two requests that succeeded and one that did not, as AISBench 3.1 lays them out."""
    place = folder / "20260101_000000" / "performances" / "vllm-api-stream-chat"
    (place / "db_data").mkdir(parents=True)
    store = sqlite3.connect(place / "db_data" / "one.db")
    store.execute(STORE)
    rows = []
    for i, tokens in enumerate((4, 5)):
        blob = io.BytesIO()
        chunks = 100.0 + i + 0.1 + tpot * np.arange(tokens)
        np.save(blob, np.concatenate([[100.0 + i], chunks]))
        store.execute("INSERT INTO numpy_store (arr_blob) VALUES (?)", (blob.getvalue(),))
        rows.append(
            {"success": True, "id": i, "uuid": "u", "db_name": "one.db", "input": "hidden",
             "input_tokens": 9, "output_tokens": tokens, "prediction": "a b c", "turn_id": 0,
             "time_points": {"__db_ref__": i + 1}}
        )  # fmt: skip
    rows.append({"success": False, "id": 2, "uuid": "u", "db_name": "one.db",
                 "error_info": "timeout", "time_points": None})  # fmt: skip
    store.commit()
    store.close()
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (place / "gsm8k_details.jsonl").write_text(text)
    (place / "gsm8k.json").write_text(json.dumps({"Max Concurrency": {"total": 16}}))


def test_aisbench_folders_are_compared_request_by_request(tmp_path):
    for name, tpot in (("plain", 0.02), ("suffix", 0.01)):
        aisbench_folder(tmp_path / name, tpot)
    manifest, units = import_results([(n, tmp_path / n) for n in ("plain", "suffix")])
    start_log(tmp_path / "log.jsonl", manifest)
    for unit in units:
        append(tmp_path / "log.jsonl", unit)
    (one,) = find(read_log(tmp_path / "log.jsonl")).comparisons
    assert (one.base.dataset, one.base.concurrency) == ("gsm8k", 16)
    assert one.base.failures == {"timeout": 1}
    assert one.base.tpot.mean == pytest.approx(0.02)
    assert one.tpot_gain.estimate == pytest.approx(2.0)
    assert one.base.ttft.mean == pytest.approx(0.1)
    assert one.num_pairs == 2
    assert "hidden" not in (tmp_path / "log.jsonl").read_text()  # no prompt is kept


def test_vllm_bench_serve_has_the_numbers_it_printed(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(vllm_result(0.03)))
    _, (unit,) = import_results([("vllm", path)])
    found = measure([unit])
    # vLLM's own: (latency - ttft) / (output_len - 1), mean; ITL: gaps between chunks
    assert found.tpot.mean == pytest.approx((0.09 / 3 + 0.12 / 4) / 2)
    assert found.itl_by_chunk.mean == pytest.approx((0.09 + 0.03 + 0.03 + 0.06) / 4)
    assert found.tps == pytest.approx(9 / 2.0)
    assert found.failures == {"ValueError: no": 1}


def test_results_without_details_say_how_to_get_them(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"duration": 1.0}))
    with pytest.raises(ValueError, match=r"lacks 'input_lens'.*--save-result --save-detailed"):
        import_results([("a", path)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no results: wanted performances/"):
        import_results([("a", tmp_path / "empty")])
    aisbench_folder(tmp_path / "part", 0.01)
    (store,) = tmp_path.rglob("one.db")
    store.unlink()
    with pytest.raises(ValueError, match=r"one.db is missing: copy the run's whole folder"):
        import_results([("a", tmp_path / "part")])

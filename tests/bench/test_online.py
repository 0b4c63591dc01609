"""Training while serving: more drafts are accepted after it, and no text changes."""

import json

from specjax.bench.online import bench_online


def test_a_head_learns_the_text_that_it_serves(tmp_path):
    """Acceptance of requests outside the training rises; ``bench_online`` compares their texts."""
    out, rows = tmp_path / "kept", tmp_path / "rows.json"
    found = bench_online(rows, rounds=1, num_requests=16, num_judged=6, out=out)
    before, after = (row.value for row in found if row.name.startswith("acceptance"))
    assert after > before + 0.02
    assert [row["name"] for row in json.loads(rows.read_text())] == [row.name for row in found]
    assert (out / "round_1" / "model" / "model.safetensors").is_file()

"""Training while serving: more drafts are accepted after it, and no text changes."""

import json

from specjax.bench.online import bench_online
from tests.compiles import num_compiled


def test_a_head_learns_the_text_it_serves_and_nothing_is_compiled_again(tmp_path, monkeypatch):
    """Acceptance of requests outside the training rises; `bench_online` compares their texts."""
    compiled, rows = [], tmp_path / "rows.json"
    from specjax.engine.service import Service

    update = Service.update_drafter

    def counted(service, folder):
        compiled.append(num_compiled("specjax engine"))
        update(service, folder)

    monkeypatch.setattr(Service, "update_drafter", counted)
    found = bench_online(
        rows, rounds=2, num_requests=16, num_judged=6, steps=12, out=tmp_path / "kept"
    )
    before, first, second = (row.value for row in found if row.name.startswith("acceptance"))
    assert first > before + 0.02
    assert second > before + 0.02
    assert compiled[0] == compiled[1]
    assert [row["name"] for row in json.loads(rows.read_text())] == [row.name for row in found]
    assert (tmp_path / "kept" / "round_2" / "model" / "model.safetensors").is_file()

"""What drafting costs is measured in rows that hold their goals; vLLM may be missing."""

import json

from specjax.bench.drafter_plan import DEPTH, Sizes
from specjax.bench.drafters import MOST_GROWTH, MOST_MS, bench_drafters


def test_every_size_has_its_row(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SPECJAX_ORACLE", str(tmp_path / "none"))
    file = tmp_path / "drafters.json"
    sizes = Sizes(contexts=(64,), corpora=(0, 300, 600), batches=(1, 2))
    bench_drafters(file, sizes=sizes, reps=1, edits=False)
    rows = json.loads(file.read_text())
    assert "vLLM: left out" in capsys.readouterr().out
    names = {row["name"] for row in rows}
    for batch in (1, 2):
        assert f"ngram, context 64, batch {batch}: proposal" in names
        assert f"suffix, context 64, batch {batch}: append a token" in names
        for corpus in (0, 300, 600):
            assert f"suffix, context 64, batch {batch}, corpus {corpus}: proposal" in names
    goals = {row["goal"] for row in rows if row["goal"]}
    assert goals == {f"<= {MOST_MS:g} ms", f"<= {MOST_GROWTH:g}"}
    assert all(row["value"] > 0 for row in rows)
    (memory,) = [row for row in rows if row["name"].startswith("memory")]
    assert memory["value"] == 44 * DEPTH

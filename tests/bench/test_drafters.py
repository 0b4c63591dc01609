"""What drafting costs is measured in rows that hold their goals; vLLM may be missing."""

import json

import jax.numpy as jnp
import numpy as np

from specjax.bench.drafter_plan import DEPTH, Sizes
from specjax.bench.drafters import MOST_GROWTH, MOST_MS, bench_drafters
from specjax.bench.masked_scan import appended, proposed


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
        for corpus in (300, 600):
            assert f"masked scan, batch {batch}, corpus {corpus}: proposal" in names
    goals = {row["goal"] for row in rows if row["goal"]}
    assert goals == {f"<= {MOST_MS:g} ms", f"<= {MOST_GROWTH:g}"}
    assert all(row["value"] > 0 for row in rows)
    (memory,) = [row for row in rows if row["name"].startswith("memory")]
    assert memory["value"] == 44 * DEPTH


def test_the_masked_scan_drafts_what_followed_most_often():
    past = np.asarray([5, 1, 2, 3, 5, 1, 2, 4, 5, 1, 2, 4, 7])
    lengths = jnp.zeros((2, len(past)), jnp.int32)
    for tokens in ([9, 6], [1, 6], [2, 6]):
        lengths = appended(lengths, jnp.asarray(past), jnp.asarray(tokens))
    assert lengths.tolist() == [[0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0], [0] * 13]
    drafted = proposed(lengths, jnp.asarray(past), vocab_size=8)
    assert drafted.shape == (2, DEPTH)
    assert drafted[0, :4].tolist() == [4, 5, 1, 2]

"""The recorded vLLM servers: ``explain`` agrees with their client, and recommends the best K.

The recording is ``docs/cases/vllm-depths.tar.xz``, of ``specjax bench depths``.
"""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specjax.bench.depths import DEPTHS, LOADS, METHODS
from specjax.bench.depths_replay import SOURCES, choices, read_rows, to_markdown, unpacked
from specjax.cli.app import app

CASES = Path(__file__).parents[2] / "docs" / "cases"
RECORDING, PAGE = CASES / "vllm-depths.tar.xz", CASES / "vllm-depths.md"


@pytest.fixture(scope="module")
def folder():
    with unpacked(RECORDING) as found:
        yield found


@pytest.fixture(scope="module")
def rows(folder):
    return read_rows(folder)


def test_every_k_was_recorded_under_both_loads(rows):
    assert len(rows) == len(LOADS) * (1 + len(METHODS) * len(DEPTHS))


@pytest.mark.parametrize("source", SOURCES[1:])
def test_what_a_server_says_of_itself_is_what_its_client_measured(rows, source):
    for row in rows:
        if row.arm.k:
            assert row.rate[source] == pytest.approx(row.rate["client"], rel=0.05), row.arm
        assert row.tpot[source] == pytest.approx(row.tpot["client"], rel=0.10), row.arm


def test_the_recommended_k_is_the_best_or_nearly_and_never_worse_than_the_one_in_use(rows):
    for one in choices(rows):
        if set(one.measured) == set(DEPTHS):
            assert one.loss is not None
            assert one.loss <= 1.03, one
        if one.gain is not None:
            assert one.gain >= 0.98, one


def test_the_command_line_recommends_the_same(rows, folder, tmp_path):
    load = max(LOADS)

    def scrapes(arm):
        return [str(folder / arm / f"load-{load}" / name) for name in ("before.prom", "after.prom")]

    before, after = scrapes("draft_model-k8")
    args = ["explain", "--metrics", after, "--metrics-before", before, "--method", "draft_model"]
    args += ["--baseline", ",".join(scrapes("plain")), "--json", str(tmp_path / "found.json")]
    args += ["--other-method", f"ngram={','.join(scrapes('ngram-k3'))}"]
    for k in (1, 2, 3, 5):
        args += ["--also", ",".join(scrapes(f"draft_model-k{k}"))]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "found.json").read_text())
    (same,) = (
        one
        for one in choices(rows)
        if (one.method, one.load, len(one.measured)) == ("draft_model", load, len(DEPTHS))
    )
    assert found["best_num_speculative_tokens"] == same.recommended


def test_the_page_has_the_tables_of_the_recording(folder):
    text = PAGE.read_text(encoding="utf-8")
    for line in to_markdown(folder):
        assert line in text

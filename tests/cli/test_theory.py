"""``specjax theory``: what it prints, writes and draws, and how it fails."""

import json

import pytest
from typer.testing import CliRunner

from specjax.cli import app as cli
from specjax.theory.published import SUFFIX_BENCHMARK
from tests.theory.test_model_cost import QWEN3_32B


def invoke(*args, **environment):
    return CliRunner().invoke(cli.app, ["theory", *map(str, args)], env=environment)


def wide(*args):
    return invoke(*args, COLUMNS="200")


def test_speedup_prints_the_guides_example_right():
    result = invoke("speedup", "--alpha", 0.8, "--k", 5, "--c", 0.1)
    assert result.exit_code == 0
    said = {line.split("  ")[0]: line for line in result.stdout.splitlines()}
    assert "2.4595" in said["speedup"]
    assert "3.6893" in said["tokens per step"]
    assert "2.6893 of 5 drafted" in said["accepted per step"]
    assert "6: 2.4696" in said["best K"]
    assert "0.3343" in said["break-even alpha"]


def test_a_draft_that_never_pays_is_said_so():
    result = invoke("speedup", "--alpha", 0.9, "--k", 2, "--c", 2)
    assert "none: K drafts never pay" in result.stdout
    assert "best K             0: 1" in result.stdout


def test_the_table_is_predicted_beside_what_was_measured(tmp_path):
    file = tmp_path / "out" / "table.json"
    result = invoke("table", "--json", file)
    assert result.exit_code == 0
    rows = json.loads(file.read_text())
    assert len(rows) == len(SUFFIX_BENCHMARK) == 18
    for row, known in zip(rows, SUFFIX_BENCHMARK, strict=True):
        assert {"dataset", "concurrency", "predicted_tpot_s", "predicted_tps"} <= set(row)
        assert (row["dataset"], row["concurrency"]) == (known.dataset, known.concurrency)
        assert row["measured_tpot_s"] == known.spec_tpot_s
        assert abs(row["predicted_tpot_s"] / known.spec_tpot_s - 1) <= 0.10
        assert abs(row["predicted_tps"] / known.spec_tps - 1) <= 0.10
        assert f"{known.spec_tps:.1f}" in result.stdout
    assert "tpot: mean error 3.4%, worst 8.1%" in result.stdout
    assert "tps: mean error 4.2%, worst 8.5%" in result.stdout


def test_sweep_saves_the_picture(tmp_path):
    out = tmp_path / "surface.png"
    result = invoke("sweep", "--out", out, "--k-max", 6)
    assert result.exit_code == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    assert str(out) in result.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("speedup", "--alpha", 1.5, "--k", 3), "alpha must be in [0, 1], got 1.5"),
        (("speedup", "--alpha", 0.5, "--k", 3, "--c", -1), "c must be at least 0, got -1"),
        (("sweep", "--out", "/nowhere/surface.png"), "/nowhere is not a folder"),
        (("sweep", "--out", "surface.docx"), "docx"),
    ],
)
def test_what_the_user_got_wrong_is_one_line_and_code_2(args, said):
    result = invoke(*args)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line


def test_help_names_the_commands():
    said = invoke("--help").output
    for command in ("speedup", "sweep", "table"):
        assert command in said
    assert "--json" in CliRunner().invoke(cli.app, ["bench", "theory", "--help"]).output


@pytest.fixture
def models(tmp_path):
    """Write two config.json files."""
    (tmp_path / "target.json").write_text(json.dumps(QWEN3_32B))
    small = {**QWEN3_32B, "hidden_size": 1024, "num_hidden_layers": 28, "intermediate_size": 3072}
    (tmp_path / "draft.json").write_text(json.dumps(small))
    return ("--config", tmp_path / "target.json", "--draft", tmp_path / "draft.json")


def test_check_says_what_a_claimed_number_is():
    place = ("check", "--alpha", 0.8, "--k", 5, "--c", 0.1, "--claimed")
    done = wide(*place, 3.7, "--kind", "speedup")
    assert "it is tokens per step, claimed as speedup" in done.output
    assert wide(*place, 2.46).output.startswith("2.46 is speedup")
    assert "no known formula gives 2:" in wide(*place, 2).output  # was "operations"
    assert "Published: a speedup of 2x to 3x: Leviathan et al. 2023" in wide(*place, 2).output


def test_batch_ends_where_memory_does(models):
    done = wide("batch", "--alpha", 0.7, "--k", 3, "--hardware", "H200", *models)
    assert done.exit_code == 0, done.output
    assert "does not fit into memory" in done.output
    assert "is bound by compute from batch" in done.output


def test_plan_says_k_gain_and_devices(models, tmp_path):
    args = ("plan", "--hardware", "H200", "--rps", 4, "--slo", "tpot=50ms", *models)
    done = wide(*args, "--out", tmp_path / "plan.png")
    assert done.exit_code == 0, done.output
    assert "2 x NVIDIA H200 with K = 3 meet tpot=50ms at every bound." in done.output
    assert (tmp_path / "plan.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("--slo", "ttft=1s"), "--slo must be tpot=NUMBERms"),
        (("--slo", "tpot=fast"), "--slo must be tpot=NUMBERms"),
        (("--hardware", "abacus"), "unknown hardware 'abacus'"),
        (("--config", "none.json"), "No such file"),
    ],
)
def test_a_plan_without_sense_is_one_line(models, changes, said):
    done = wide("plan", "--hardware", "H200", "--rps", 4, *models, *changes)
    assert done.exit_code == 2
    assert said in done.output.replace("\n", " ")

"""``specjax explain`` about a server: files recorded from vLLM 0.32, and what is no such file."""

import json

import pytest
from typer.testing import CliRunner

from specjax.bundled import SERVER_LOG
from specjax.cli.app import app
from tests.readers.test_scrapes import AFTER, BEFORE
from tests.theory.test_model_cost import QWEN3_32B

FIELDS = (
    *("num_drafts", "num_draft_tokens", "num_accepted_tokens", "acceptance_rate", "speedup"),
    *("mean_acceptance_length", "acceptance_per_position", "tpot_s", "ttft_s", "running"),
)


def run(*args, stdin=None):
    return CliRunner().invoke(
        app, ["explain", *map(str, args)], env={"COLUMNS": "200"}, input=stdin
    )


def test_two_scrapes(tmp_path):
    args = ("--metrics", AFTER, "--metrics-before", BEFORE, "--seconds", 20)
    done = run(*args, "--json", tmp_path / "e.json")
    assert done.exit_code == 0, done.output
    assert f"Read {AFTER} (vLLM's names), model bundled, 20 s, 9,216 tokens" in done.output
    found = json.loads((tmp_path / "e.json").read_text())
    assert found["num_drafts"] == 4292
    assert found["tpot_s"] == pytest.approx(0.0159, rel=0.01)
    assert all(found[name] is not None or found["reasons"][name] for name in FIELDS)
    assert "no --baseline" in found["reasons"]["speedup"]
    assert found["acceptance_rate_interval"][0] < found["acceptance_rate"]


def test_a_log_from_the_standard_input(tmp_path):
    text = SERVER_LOG.read_text()
    done = run("--log", "-", "--json", tmp_path / "e.json", stdin=text)
    assert done.exit_code == 0, done.output
    assert "Read the standard input, 11-23 21:36:47 to 11-23 21:37:47, 70 s" in done.output
    assert "Not read: 4 x lines without statistics" in done.output
    found = json.loads((tmp_path / "e.json").read_text())
    assert found["ttft_s"] is None
    assert found["reasons"]["ttft_s"] == "a log does not hold latencies"


def test_with_a_roofline_there_is_a_schedule(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_32B))
    args = ("--metrics", AFTER, "--metrics-before", BEFORE, "--hardware", "2xH200")
    args += ("--model", tmp_path / "config.json", "--json", tmp_path / "e.json")
    done = run(*args)
    assert done.exit_code == 0, done.output
    assert "2 x NVIDIA H200 (assumed: NVIDIA's data sheet" in done.output
    assert "212 tokens of context" in done.output  # from the counters
    found = json.loads((tmp_path / "e.json").read_text())
    assert found["schedule"][0][0] == 1
    assert found["schedule"][-1][2] == 0
    assert [one["name"] for one in found["causes"]][:3] == ["acceptance", "drafting", "verifying"]
    assert {one["known"] for one in found["causes"]} == {"measured", "modelled"}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--metrics", AFTER, "--log", "x"], "from one of --metrics, --log and --result"),
        (["--metrics", BEFORE, "--metrics-before", AFTER], "are in the wrong order"),
        (["--metrics", AFTER, "--metrics-before", AFTER], "nothing was generated between"),
        (["--log", AFTER], "has no line with statistics"),
        (["--log", "none.log"], "No such file"),
        (["--result", AFTER], "is no JSON result of"),
        (["--metrics", "http://127.0.0.1:9", "--seconds", "1"], "127.0.0.1:9/metrics does not"),
        (["--metrics", AFTER, "--trace", "x"], "are of one's own rounds"),
        (["--baseline", AFTER], "--hardware, --model, --draft and --context are of --metrics"),
        (["--method", "eagle3"], "--method, --other-method, --hardware"),
        (["--metrics", AFTER, "--method", "magic"], "nothing is published here of method 'magic'"),
        (["--metrics", AFTER, "--other-method", AFTER], "expected NAME=VALUE"),
        (["--metrics", AFTER, "--other-method", f"a={AFTER}"], "are compared with --baseline"),
        (["--metrics", AFTER, "--baseline", AFTER], "speculates too"),
        (["--metrics", AFTER, "--baseline", f"{AFTER},{BEFORE}"], "are in the wrong order"),
        (["--metrics", AFTER, "--also", AFTER], "--also and --other-method are compared with"),
        (["--metrics", AFTER, "--hardware", "H200"], "needs both --hardware and --model"),
    ],
)
def test_bad_input_is_one_line(args, said):
    done = run(*args)
    assert done.exit_code == 2
    assert said in done.output.replace("\n", " ")
    assert len(done.output.strip().splitlines()) == 1

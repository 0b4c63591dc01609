"""``specjax explain`` says why: from a log, from measured seconds, from both."""

import json

import pytest
from typer.testing import CliRunner

from specjax.bench.costs import bench_costs
from specjax.cli.app import app
from specjax.traces import read_trace, to_events, write_trace
from specjax.traces.explain import Measured
from tests.traces.synthetic import draw

COSTS = {"num_speculative_tokens": 4, "plain_s": 0.03, "draft_s": 0.004, "verify_s": 0.033}


@pytest.fixture
def files(tmp_path):
    """Write a log of speculation (50 ms a round), one of plain decoding, and costs."""
    logs = {"spec": draw([0.6] * 8, 50), "plain": draw([0.0] * 8, 50, depth=0)}
    for name, trace in logs.items():
        events = [event._replace(time=event.time * 0.6) for event in to_events(trace)]
        write_trace(tmp_path / f"{name}.jsonl", events if name == "plain" else to_events(trace))
    steps = [{"batch_size": b, "k": k, "seconds": 0.03 + 0.001 * k} for b in (1, 8) for k in (0, 4)]
    costs = {**COSTS, "batch_size": 8, "steps": steps}
    (tmp_path / "costs.json").write_text(json.dumps(costs))
    return tmp_path


def run(*args):
    return CliRunner().invoke(app, ["explain", *map(str, args)], env={"COLUMNS": "200"})


def test_a_log_alone_says_how_much_a_round_may_cost(files):
    done = run("--trace", files / "spec.jsonl")
    assert done.exit_code == 0, done.output
    assert "it pays while it costs less than" in done.output
    for tool in ("vLLM", "SGLang", "EAGLE", "AISBench"):
        assert tool in done.output


def test_a_log_beside_a_plain_one_gives_the_speedup(files):
    done = run(
        "--trace",
        files / "spec.jsonl",
        "--plain",
        files / "plain.jsonl",
        "--json",
        files / "e.json",
    )
    assert done.exit_code == 0, done.output
    found = json.loads((files / "e.json").read_text())
    assert found["round_cost"] == pytest.approx(0.05 / 0.03)
    assert found["speedup"] == pytest.approx(found["tokens_per_round"] * 0.6)
    assert found["draft"] is None
    assert found["schedule"] is None
    assert found["says"][0] in done.output.replace("\n", " ")


def test_measured_parts_give_the_guilty_term_the_schedule_and_a_picture(files):
    done = run(
        *("--trace", files / "spec.jsonl", "--measured", files / "costs.json"),
        *("--json", files / "e.json", "--out", files / "e.png"),
    )
    assert done.exit_code == 0, done.output
    found = json.loads((files / "e.json").read_text())
    assert found["overhead"] == pytest.approx((0.05 - 0.037) / 0.03)
    assert found["guilty"] == "overhead"
    assert "num_speculative_tokens_per_batch_size" in done.output
    assert found["schedule"] == [[1, 8, 4]]
    assert (files / "e.png").stat().st_size > 10_000


def test_the_hosts_part_of_a_plain_step_is_no_overhead(files):
    """The plain log's step takes 30 ms, the measured one 27: 3 ms of host in both rounds."""
    (files / "costs.json").write_text(json.dumps({**COSTS, "plain_s": 0.027, "batch_size": 8}))
    done = run(
        *("--trace", files / "spec.jsonl", "--plain", files / "plain.jsonl"),
        *("--measured", files / "costs.json", "--json", files / "e.json"),
    )
    assert done.exit_code == 0, done.output
    found = json.loads((files / "e.json").read_text())
    assert found["verify"] == pytest.approx((0.033 - 0.027) / 0.03)
    assert found["overhead"] == pytest.approx((0.05 - 0.004 - 0.036) / 0.03)
    assert found["round_cost"] == pytest.approx(0.05 / 0.03)


def test_measured_alone(files):
    (files / "costs.json").write_text(json.dumps({**COSTS, "acceptance_rate": 0.5}))
    done = run("--measured", files / "costs.json")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("Faster: 2.43x. A round brings 3.00 tokens and costs 1.23 plain")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "pass --metrics URL, --log FILE or --result FILE of a server, or --trace FILE"),
        (["--plain", "plain.jsonl"], "--plain is the other half of --trace"),
        (["--trace", "plain.jsonl"], "nothing was drafted, so there is no speculation"),
        (
            ["--trace", "spec.jsonl", "--measured", "other.json"],
            "num_speculative_tokens=3, the log",
        ),
        (["--trace", "spec.jsonl", "--measured", "alone.json"], "8.0 requests ran side by side"),
        (["--measured", "costs.json"], "how much was accepted? Give a log or one of"),
        (["--measured", "bad.json"], "bad.json: unknown key 'speed'"),
        (["--trace", "none.jsonl"], "No such file"),
    ],
)
def test_what_cannot_be_explained_is_one_line(files, args, said):
    (files / "other.json").write_text(json.dumps({**COSTS, "num_speculative_tokens": 3}))
    (files / "alone.json").write_text(json.dumps(COSTS))
    (files / "bad.json").write_text('{"speed": 1}')
    done = run(*(files / arg if "." in arg else arg for arg in args))
    assert done.exit_code == 2
    assert said in done.output.replace("\n", " ")
    assert len(done.output.strip().splitlines()) == 1


def test_generate_writes_a_log_that_explain_reads(pair, tmp_path):
    config = json.dumps({"model": pair.draft, "num_speculative_tokens": 2})
    args = ("--model", pair.target, "--prompt", "import", "--max-tokens", "8", "--ignore-eos")
    log = tmp_path / "log.jsonl"
    args += ("--speculative-config", config, "--trace", str(log))
    done = CliRunner().invoke(app, ["generate", *args])
    assert done.exit_code == 0, done.output
    assert read_trace(log).emitted.sum() == 8
    assert run("--trace", log).exit_code == 0


def test_bench_costs_writes_what_explain_reads(pair, tmp_path):
    config = {"model": pair.draft, "num_speculative_tokens": 2}
    file = tmp_path / "costs.json"
    bench_costs(pair.target, config, file, batch_size=2, others=(), reps=1)
    values = json.loads(file.read_text())
    assert [(one["batch_size"], one["k"]) for one in values["steps"]] == [(2, 0), (2, 2)]
    measured = Measured.from_dict({**values, "alpha": 0.5})
    assert measured.batch_size == 2
    assert measured.round_s > 0
    assert run("--measured", file).exit_code == 2  # it says nothing about acceptance

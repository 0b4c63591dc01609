"""Tables, pages and logs made of a comparison, by the command line and offline."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specjax.ab.arms import parse_arm, with_arguments
from specjax.ab.ascend import plan_ascend_suffix
from specjax.ab.compare import Interval
from specjax.ab.findings import find
from specjax.ab.records import read_log
from specjax.ab.report import page, write_reports
from specjax.ab.server_arm import serve_arguments
from specjax.ab.tables import percent, settings
from specjax.cli.app import app
from specjax.theory.published import SUFFIX_BENCHMARK
from specjax.traces.events import read_trace
from tests.ab.helpers import compare_urls

SIX = list(dict.fromkeys(row.dataset for row in SUFFIX_BENCHMARK))


def specjax(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["ab", *arguments])
    if done.exit_code == 1:
        raise AssertionError(done.output) from done.exception
    return done.exit_code, done.output


@pytest.fixture
def measured(stub, tmp_path):
    """A plain stub against one that brings 4 tokens per round and tells its rounds."""
    truth = {"ttft": 0.02, "tokens": 13, "usage": "own chunk"}
    plain = stub(**truth, tpot=0.02)
    fast = stub(**truth, tpot=0.01, per_chunk=4, per_step=True)
    urls = {"plain": plain, "fast": fast}
    return compare_urls(tmp_path, urls, 6, concurrency=(3,)), tmp_path


def test_a_report_is_one_file_with_every_number(measured):
    log, folder = measured
    found = find(log)
    write_reports(found, folder, lambda line: None)
    html = (folder / "report.html").read_text()
    assert not re.search(r'(src|href)="(?!data:)', html)  # nothing from elsewhere
    assert html.count("data:image/svg+xml;base64,") == 3
    (one,) = found.comparisons
    assert percent(one.tpot_gain) in html
    said = json.loads((folder / "result.json").read_text())
    assert said["comparisons"][0]["tpot_gain"]["estimate"] == one.tpot_gain.estimate
    (why,) = found.why
    assert why.tokens_per_round == pytest.approx(4.0)
    assert why.speedup == pytest.approx(2.0, rel=0.2)


def test_the_event_log_is_the_canonical_one(measured):
    log, folder = measured
    write_reports(find(log), folder, lambda line: None)
    paths = [folder / f"events-{name}-stub-load-3.jsonl" for name in ("fast", "plain")]
    fast, plain = map(read_trace, paths)
    assert fast.depth == 3
    assert fast.emitted.sum() == plain.emitted.sum() == 6 * 13
    assert fast.accepted.sum() == 6 * 9
    assert plain.drafted.sum() == 0


def test_replay_computes_the_same_offline(measured):
    _, folder = measured
    code, said = specjax("replay", str(folder / "log.jsonl"), "--out", str(folder / "again"))
    assert code == 0, said
    assert re.search(r"stub +3 +fast .*6/6", said)
    assert (folder / "again" / "report.html").is_file()


def test_text_of_prompts_cannot_break_the_page(measured):
    log, _ = measured
    arms = [one | {"label": one["label"]} for one in log.manifest["arms"]]
    evil = log._replace(manifest={**log.manifest, "arms": arms, "host": "<script>alert(1)"})
    assert "<script>" not in page(find(evil))


def test_run_measures_and_reports(stub, tmp_path):
    url = stub(ttft=0.01, tpot=0.004, tokens=6)
    (tmp_path / "lines.txt").write_text("one 1\ntwo 2\nthree 3\n")
    arguments = ["run", "--arm", f"a={url}", "--arm", f"b={url}", "--out", str(tmp_path / "out")]
    arguments += ["--dataset", str(tmp_path / "lines.txt"), "--chat", "--slo", "tpot=50ms"]
    code, said = specjax(*arguments)
    assert code == 0, said
    log = read_log(tmp_path / "out" / "log.jsonl")
    assert log.manifest["wanted"]["plan"]["slo"] == {"tpot": 0.05}
    assert len(log.manifest["wanted"]["datasets"][0]["sha256"]) == 64
    assert find(log).measures[0].goodput > 0
    before = (tmp_path / "out" / "log.jsonl").read_bytes()
    assert specjax(*arguments)[0] == 0  # complete: nothing is measured again
    assert (tmp_path / "out" / "log.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--arm", "plain"], "--arm is LABEL=URL or LABEL=KIND:CONFIG, got 'plain'"),
        (["--arm", "a=trt:{}"], "unknown kind 'trt'"),
        (["--arm", "a=vllm:{"], "--arm a is not valid JSON"),
        (["--arm", "a=http://127.0.0.1:9", "--arm", "a=specjax"], "a label of its own"),
        (["--arm", "a=http://127.0.0.1:9"], "arm a: cannot reach http://127.0.0.1:9"),
        (
            ["--arm", "a=specjax", "--arm-arguments", "a=--dtype float32"],
            "--arm-arguments a=--dtype float32: no serve or vllm arm 'a'",
        ),
        (["--arm", "a=specjax", "--slo", "tpot=50"], "--slo tpot=50: a time is written 50ms"),
        (["--arm", "a=specjax", "--dataset", "/no/such"], "No such file or directory: /no/such"),
    ],
)
def test_a_wrong_option_is_one_line_before_anything_starts(tmp_path, arguments, said):
    code, output = specjax("run", *arguments, "--out", str(tmp_path / "out"))
    assert code == 2
    assert said in output
    assert not (tmp_path / "out").exists()


def test_gains_are_written_as_the_guide_writes_them():
    assert percent(Interval(1.452, 1.4, 1.5)) == "+45.2% [+40.0, +50.0]"
    assert percent(Interval(0.9, float("nan"), float("nan"))) == "-10.0%"


def test_the_guides_plan_is_its_servers_and_its_eighteen_rows(tmp_path):
    written = plan_ascend_suffix(tmp_path, "/data/Qwen3-32B", {n: f"/data/{n}.jsonl" for n in SIX})
    assert {path.name for path in written} == {"serve-plain.sh", "serve-suffix.sh", "job.sh"}
    texts = {path.name: path.read_text() for path in written}
    assert '--speculative-config \'{"method": "suffix"' in texts["serve-suffix.sh"]
    assert "--speculative-config" not in texts["serve-plain.sh"]
    loads = re.findall(r"--concurrency (\d+)", texts["job.sh"])
    assert [int(one) for one in loads] == [row.concurrency for row in SUFFIX_BENCHMARK]
    for path in written:
        subprocess.run(["bash", "-n", str(path)], check=True)
    with pytest.raises(ValueError, match="no path was given for GSM8K"):
        plan_ascend_suffix(tmp_path, "m", {n: "x" for n in SIX if n != "GSM8K"})


def test_a_replay_rewrites_a_readmes_section(measured):
    log, folder = measured
    readme = folder / "README.md"
    readme.write_text("# Title\n\n<!-- ab: begin -->\nold\n<!-- ab: end -->\n\nrest\n")
    wanted = ("--picture", str(folder / "ab.png"), "--readme", str(readme))
    assert specjax("replay", str(folder / "log.jsonl"), *wanted)[0] == 0
    text = readme.read_text()
    assert "old" not in text
    assert "![gains over each arm's base](ab.png)" in text
    assert (folder / "ab.png").stat().st_size > 10_000
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert [row[:2] for row in cells[2:]] == [["3", "plain"], ["3", "fast"]]
    assert percent(find(log).comparisons[0].tpot_gain) in cells[3]


def test_vllm_runs_with_its_defaults_unless_an_arm_says_otherwise():
    specs = [parse_arm(f"{label}=vllm") for label in ("vLLM", "exact")]
    plain, exact = with_arguments(specs, [("exact", "--dtype float32 --enforce-eager")])
    given = serve_arguments(plain, 4, None)
    assert not {"--dtype", "--enforce-eager"} & set(given)
    assert serve_arguments(exact, 4, None) == [*given, "--dtype", "float32", "--enforce-eager"]


def test_a_report_says_how_started_servers_were_set(measured):
    log, _ = measured
    first, second = log.manifest["arms"]
    arms = [
        first | {"kind": "vllm", "arguments": []},
        second | {"kind": "serve", "arguments": ["--dtype", "bfloat16"]},
    ]
    said = settings(log._replace(manifest=log.manifest | {"arms": arms}))
    assert said == "With fast: --dtype bfloat16. With their defaults: plain."
    of_old = [{"label": "vLLM", "kind": "vllm"}]  # a log from before arms had arguments
    said = settings(log._replace(manifest=log.manifest | {"arms": of_old}))
    assert said == "With vLLM: --dtype float32 --enforce-eager."
    assert settings(log) == ""


def test_vllm_is_given_the_folder_of_a_shipped_checkpoint():
    spec = parse_arm('a=vllm:{"method": "draft_model", "model": "bundled:draft"}')
    config = json.loads(serve_arguments(spec, 4, 512)[-1])
    assert Path(config["model"], "config.json").is_file()

"""Logs of several load generators as one: pairs stay pairs, and arms are never split over hosts."""

import pytest
from typer.testing import CliRunner

from specjax.ab.findings import find
from specjax.ab.merge import merge_logs
from specjax.ab.records import append, read_log, start_log
from specjax.cli.app import app


@pytest.fixture
def logs(stub, tmp_path):
    """Let two load generators compare the same two servers, each on its half of the prompts."""
    urls = {"plain": stub(tpot=0.004, ttft=0.01), "fast": stub(tpot=0.002, ttft=0.01)}
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"question number {i}\n" for i in range(24)))
    found = []
    for number in range(2):
        out = tmp_path / str(number)
        words = ["ab", "run", "--dataset", prompts, "--shard", f"{number}/2", "--out", out]
        words += ["--max-tokens", 20, "--concurrency", 2, "--block", 4]
        words += [word for label, url in urls.items() for word in ("--arm", f"{label}={url}")]
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert result.exit_code == 0, result.output
        found.append(out / "log.jsonl")
    return found


def changed(path, folder, change):
    """Write a copy of a log with another manifest or other units."""
    log = change(read_log(path))
    folder.mkdir()
    start_log(folder / "log.jsonl", log.manifest)
    for unit in log.units:
        append(folder / "log.jsonl", unit)
    return folder / "log.jsonl"


def test_every_prompt_is_there_once_with_every_arm_and_the_gain_is_of_all(logs, tmp_path):
    out = tmp_path / "merged"
    result = CliRunner().invoke(app, ["ab", "merge", *map(str, logs), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "2 load generators" in result.output
    log = read_log(out / "log.jsonl")
    for label in ("plain", "fast"):
        asked = [one.prompt for unit in log.units if unit.arm == label for one in unit.requests]
        assert sorted(asked) == sorted(f"prompts/{i + 1}" for i in range(24))
    blocks = [(unit.arm, unit.block) for unit in log.units]
    assert len(set(blocks)) == len(blocks)
    assert [one["host"] for one in log.manifest["generators"]] == [log.manifest["host"]] * 2
    (whole,) = find(log).comparisons
    assert whole.num_pairs == 24
    parts = [find(read_log(path)).comparisons[0].tpot_gain for path in logs]
    assert min(p.estimate for p in parts) <= whole.tpot_gain.estimate
    assert whole.tpot_gain.estimate <= max(p.estimate for p in parts)
    assert (out / "report.html").is_file()


def without(log, label):
    return log._replace(units=tuple(unit for unit in log.units if unit.arm != label))


def asked(log, **changes):
    wanted = {**log.manifest["wanted"], "ask": {**log.manifest["wanted"]["ask"], **changes}}
    return log._replace(manifest={**log.manifest, "wanted": wanted})


def test_what_does_not_belong_together_is_refused(logs, tmp_path):
    split = changed(logs[1], tmp_path / "split", lambda log: without(log, "fast"))
    other = changed(logs[1], tmp_path / "other", lambda log: asked(log, max_tokens=30))
    empty = changed(logs[1], tmp_path / "empty", lambda log: log._replace(units=()))
    for second, message in (
        (split, "Every load generator measures every arm"),
        (other, "is of another comparison than .*: requests differ"),
        (empty, "has no measured block yet"),
        (logs[0], "give each load generator its own --shard I/N"),
    ):
        with pytest.raises(ValueError, match=message):
            merge_logs([logs[0], second])
    with pytest.raises(ValueError, match="two load generators or more"):
        merge_logs(logs[:1])


def test_another_share_is_another_run(logs, tmp_path):
    """The first generator's folder is not gone on with by another's share of as many prompts."""
    words = ["ab", "run", "--dataset", tmp_path / "prompts.txt", "--shard", "1/2"]
    words += ["--out", logs[0].parent, "--max-tokens", 20, "--concurrency", 2, "--block", 4]
    manifest = read_log(logs[0]).manifest
    for arm in manifest["wanted"]["arms"]:
        words += ["--arm", f"{arm['label']}={arm['url']}"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 2
    assert "is of another comparison (shard differ)" in result.stderr

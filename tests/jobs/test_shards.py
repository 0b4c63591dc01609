"""Shards of a prompt file: whatever is killed, shared out or done again, the texts are those of one
run, every prompt once, and a folder holds one job only."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specjax.cli import app as cli
from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams
from specjax.jobs import folder, prompt_file
from specjax.jobs import worker as working
from specjax.jobs.recipes import recipe
from specjax.weights.fingerprint import fingerprint

TEXTS = [f"def f{i}(x):" + " x" * (i % 3) for i in range(7)]
SAMPLING = {"temperature": 0.8, "max_tokens": 5, "n": 2}


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"prompt": text}, ensure_ascii=False) + "\n" for text in TEXTS]
    path.write_text("\n".join(lines))  # empty lines do not count
    return path


@pytest.fixture
def run(pair, prompts, tmp_path):
    def run(*args, out=tmp_path / "out", size=2, file=prompts):
        given = ("--prompt-file", file, "--out", out, "--shard-size", size, "--max-tokens", 5)
        words = ["generate", "--model", pair.target, "--temperature", 0.8, "-n", 2, *given, *args]
        return CliRunner().invoke(cli.app, [str(word) for word in words])

    return run


def merged(out, *args):
    result = CliRunner().invoke(cli.app, ["merge", str(out), *map(str, args)])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in (out / folder.MERGED).read_text().splitlines()]


def test_a_killed_run_and_one_shared_by_two_give_the_texts_of_one_run(
    pair, run, tmp_path, monkeypatch
):
    llm = LLM(pair.target)
    whole = llm.generate(TEXTS, SamplingParams(**SAMPLING), use_tqdm=False)
    wanted = [(i, j, one.text) for i, o in enumerate(whole) for j, one in enumerate(o.outputs)]
    calls, complete = [], working.Worker.complete

    def dies(self, shard):
        calls.append(shard)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return complete(self, shard)

    out, shared = tmp_path / "out", tmp_path / "shared"
    with monkeypatch.context() as patch:
        patch.setattr(working.Worker, "complete", dies)
        assert run().exit_code == 130
    left = folder.shard_file(out, 0).stat().st_mtime_ns
    result = run()
    assert result.exit_code == 0, result.output
    assert "2 of 4 shards are in" in result.stderr
    assert "4 of 4 shards, complete: specjax merge" in result.stdout
    assert folder.shard_file(out, 0).stat().st_mtime_ns == left  # what was done was left alone
    for share in ("1/2", "0/2"):
        assert run("--shard", share, out=shared, size=3).exit_code == 0
    for place in (out, shared):
        assert [(r["number"], r["index"], r["text"]) for r in merged(place)] == wanted


def test_a_folder_of_another_job_is_refused_and_nothing_changes(run, tmp_path, prompts):
    out = tmp_path / "out"
    folder.open_folder(out, folder.Job("0", "m", "p", 7, 2, 2, {"seed": 1}))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    result = run()
    assert result.exit_code == 2
    assert "holds the shards of another job: version is 0 there" in result.stderr
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.fixture
def job(tmp_path):
    made = folder.Job("1", "m", "p", 5, 2, 1, {})
    folder.open_folder(tmp_path, made)
    for shard in range(3):
        rows = [{"number": i, "job": made.key, "index": 0, "text": "é"} for i in made.span(shard)]
        folder.write_shard(tmp_path, shard, rows)
    return tmp_path


def test_a_merge_is_in_order_and_removes_what_killed_writers_left(job):
    (job / ".part-00001.jsonl.77.tmp").write_text("half")
    out = folder.merge(job)
    assert (out.num_prompts, out.num_completions) == (5, 5)
    rows = [json.loads(line) for line in out.path.read_text().splitlines()]
    assert [row["number"] for row in rows] == [0, 1, 2, 3, 4]
    assert not list(job.glob(".*"))
    assert folder.merge(job).sha256 == out.sha256


@pytest.mark.parametrize(
    ("shard", "numbers", "message"),
    [
        (1, None, "has 2 of 3 shards; missing: 1"),
        (1, [2], "ends before sample 0 of prompt 3"),
        (1, [2, 3, 3], "line 3 is sample 0 of prompt 3, which does not belong there"),
        (1, [3, 2], "line 1 is sample 0 of prompt 3"),
        (2, [5], "line 1 is sample 0 of prompt 5"),
    ],
)
def test_a_merge_refuses_what_is_not_every_prompt_once(job, shard, numbers, message):
    if numbers is None:
        folder.shard_file(job, shard).unlink()
    else:
        key = folder.read_job(job).key
        rows = [{"number": i, "job": key, "index": 0} for i in numbers]
        folder.write_shard(job, shard, rows)
    with pytest.raises(ValueError, match=message):
        folder.merge(job)
    assert not (job / folder.MERGED).exists()


def test_a_line_that_is_no_completion_is_named(job):
    folder.shard_file(job, 0).write_text("{}\n")
    with pytest.raises(ValueError, match=r"part-00000\.jsonl line 1 is no completion"):
        folder.merge(job)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_shards_are_the_file_in_order(prompts, size):
    file = prompt_file.read_file(prompts, size)
    shards = [prompt_file.read_shard(file, i) for i in range(file.num_shards)]
    assert [len(shard) for shard in shards[:-1]] == [size] * (len(shards) - 1)
    assert [text for shard in shards for text in shard] == TEXTS


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--shard", "2/2"), "--shard must be I/N with I from 0 to N - 1"),
        (("--shard", "1"), "--shard must be I/N"),
        (("--engine", "spark"), "--engine must be local or ray"),
        (("--shard-size", "0"), "--shard-size must be at least 1"),
        (("--json",), "--out completes one --prompt-file"),
    ],
)
def test_bad_options_are_refused_before_anything_is_made(run, tmp_path, args, message):
    result = run(*args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_bad_line_is_named_before_anything_is_made(run, tmp_path):
    file = tmp_path / "bad.jsonl"
    file.write_text('"fine"\n{"text": 1}\n')
    result = run(file=file)
    assert f'{file} line 2 needs "prompt" or "turns"' in result.stderr
    assert not (tmp_path / "out").exists()


COMMAND = ["generate", "--prompt-file", "my prompts.jsonl", "--out", "done", "-sc", '{"method": 1}']


def test_the_slurm_script_runs_every_share(tmp_path):
    """A stand-in for srun prints its words, as each task would."""
    script, place = tmp_path / "job.sh", tmp_path / "bin"
    script.write_text(recipe("slurm", COMMAND, 3))
    place.mkdir()
    (place / "srun").write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    (place / "srun").chmod(0o755)
    assert "#SBATCH --array=0-2\n" in script.read_text()
    shares = []
    for task in "012":
        env = {"PATH": f"{place}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": task}
        done = subprocess.run(["bash", script], env=env, capture_output=True, text=True, check=True)
        words = done.stdout.splitlines()
        assert words[:-2] == ["specjax", *COMMAND]
        shares.append(words[-1])
    assert shares == ["0/3", "1/3", "2/3"]


def test_the_kubernetes_manifest_is_an_indexed_job():
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with transformers: pip install pyyaml")
    made = yaml.safe_load(recipe("kubernetes", COMMAND, 3, image="i:1", claim="c"))
    spec = made["spec"]
    assert (spec["completionMode"], spec["completions"]) == ("Indexed", 3)
    (container,) = spec["template"]["spec"]["containers"]
    line = f"echo {container['args'][0].removeprefix('exec ')}"
    env = {"JOB_COMPLETION_INDEX": "2", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [*container["command"], line], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == " ".join(["specjax", *COMMAND, "--shard", "2/3"])


@pytest.mark.parametrize(
    ("scheduler", "command", "message"),
    [
        ("pbs", COMMAND, "the scheduler must be one of slurm, kubernetes"),
        ("slurm", ["serve"], "only generate, extract, audit rules have shares"),
        ("slurm", COMMAND[:3], "needs --prompt-file and --out"),
        ("slurm", [*COMMAND, "--shard=0/2"], "and no --shard"),
        ("slurm", ["audit", "rules", "--cases", "9"], "the command needs --out, and no --shard"),
    ],
)
def test_a_command_that_cannot_be_shared_out_is_refused(scheduler, command, message):
    with pytest.raises(ValueError, match=message):
        recipe(scheduler, command, 3)


def test_shards_of_another_job_are_refused_before_the_model_is_read(run, tmp_path, monkeypatch):
    """Without a manifest, and one that was copied into this job's folder."""
    out, other = tmp_path / "out", tmp_path / "other"
    assert run().exit_code == 0
    assert run("--seed", "1", out=other).exit_code == 0
    strange = folder.shard_file(other, 1)
    monkeypatch.setattr(working, "LLM", None)
    folder.shard_file(out, 1).write_bytes(strange.read_bytes())
    result = run()
    assert result.exit_code == 2
    assert f"{folder.shard_file(out, 1)} is no shard of this job" in result.stderr
    with pytest.raises(ValueError, match=r"part-00001\.jsonl line 1 is of job"):
        folder.merge(out)
    (other / folder.MANIFEST).unlink()
    result = run(out=other)
    assert result.exit_code == 2
    assert f"{other} has shards and no manifest.json" in result.stderr


def test_the_merged_file_is_the_same_for_every_shard_size(run, tmp_path):
    for size in (2, 3):
        assert run(out=tmp_path / str(size), size=size).exit_code == 0
    assert folder.merge(tmp_path / "2").sha256 == folder.merge(tmp_path / "3").sha256


def test_a_full_disk_is_one_error_and_the_same_command_goes_on(run, tmp_path, monkeypatch):
    """Every write past the first shard fails as on a full disk; that shard is kept."""
    write = folder.write_shard

    def full(place, shard, rows):
        if shard:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place))
        write(place, shard, rows)

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(working, "write_shard", full)
        result = run()
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == f"error: No space left on device: {out}"
    names = {path.name for path in out.iterdir()}
    assert names == {folder.MANIFEST, folder.shard_file(out, 0).name}
    assert run().exit_code == 0
    assert len(merged(out)) == 2 * len(TEXTS)


def test_a_real_full_disk_leaves_no_part_of_a_shard(job):
    """The kernel refuses the bytes, which RLIMIT_FSIZE does as a full disk would."""
    code = """
import resource, signal, sys
from pathlib import Path
from specjax.jobs import folder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
folder.write_shard(Path(sys.argv[1]), 7, ({"text": "x" * 100} for _ in range(100)))
"""
    before = {path.name for path in job.iterdir()}
    done = subprocess.run([sys.executable, "-c", code, job], capture_output=True, text=True)
    assert "OSError" in done.stderr
    assert {path.name for path in job.iterdir()} == before


def test_memory_does_not_grow_with_the_file(tmp_path):
    """What is kept of 40 times as many prompts is 40 times as many shards' places, no prompt."""
    peaks = []
    for count in (1_000, 40_000):
        path = tmp_path / f"{count}.jsonl"
        path.write_text("".join(json.dumps(f"{i:0200}") + "\n" for i in range(count)))
        tracemalloc.start()
        file = prompt_file.read_file(path, 500)
        prompt_file.read_shard(file, file.num_shards - 1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_the_engine_starts_with_the_first_shard_of_any_file(run, tmp_path, monkeypatch):
    """One shard is read at a time, so the first tokens wait for no prompt of another."""
    read, complete, events = prompt_file.read_shard, working.Worker.complete, []
    monkeypatch.setattr(working, "read_shard", lambda *a: events.append("read") or read(*a))

    def completes(self, shard):
        done = complete(self, shard)
        events.append("done")
        return done

    monkeypatch.setattr(working.Worker, "complete", completes)
    assert run().exit_code == 0
    assert events == ["read", "done"] * 4


def test_a_model_that_was_trained_further_is_another_model(pair, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(pair.target, other)
    assert fingerprint(other) == fingerprint(Path(pair.target))
    (weights,) = other.glob("*.safetensors")
    raw = bytearray(weights.read_bytes())
    header = 8 + int.from_bytes(raw[:8], "little")
    for at in range(header, len(raw), 2):
        raw[at] ^= 1
    weights.write_bytes(raw)
    assert fingerprint(other) != fingerprint(Path(pair.target))

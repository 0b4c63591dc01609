"""Computations in parts: killed, shared out or done again, the result is that of one run."""

import subprocess

import numpy as np
import pytest
from typer.testing import CliRunner

from specjax.audit import rules
from specjax.cli.app import app
from specjax.jobs.parts import Parts, do_parts
from specjax.jobs.recipes import recipe
from specjax.jobs.sweeps import sweep
from specjax.simulate import Costs, closed_loop, fixed_k, serving

SLOTS, DEPTH = 2, 2
LOOP = closed_loop(SLOTS, num_requests=4, mean_input=10, mean_output=8, alpha=0.6)
COSTS = Costs(0.05, np.linspace(1e-4, 4e-3, 7), t_tok=3e-3)  # seven parameters
POLICY = fixed_k(DEPTH, SLOTS)


class Counted:
    """What computes a part, and stops at one of them as if it was killed."""

    def __init__(self, stops_at: int | None = None):
        self.done, self.stops_at = [], stops_at

    def __call__(self, part, file):
        file.write(b"half")
        if part == self.stops_at:
            raise KeyboardInterrupt
        self.done.append(part)
        file.write(str(part).encode())


def test_a_killed_computation_goes_on_and_loses_the_part_it_was_in(tmp_path):
    parts, killed, again = Parts(tmp_path, 5, {"what": 1}), Counted(2), Counted()
    with pytest.raises(KeyboardInterrupt):
        do_parts(parts, killed)
    assert (killed.done, parts.missing()) == ([0, 1], [2, 3, 4])
    assert do_parts(parts, again) == []
    assert again.done == [2, 3, 4]
    assert [parts.file(i).read_bytes() for i in range(5)] == [b"half%d" % i for i in range(5)]
    assert len(list(tmp_path.iterdir())) == 6  # and the manifest


def test_shares_do_every_part_once(tmp_path):
    parts, done = Parts(tmp_path, 5, {"what": 1}), Counted()
    assert do_parts(parts, done, "1/2") == [0, 2, 4]
    assert do_parts(parts, done, "0/2") == []
    assert done.done == [1, 3, 0, 2, 4]


def test_another_computations_folder_or_part_is_refused_before_anything_is_computed(tmp_path):
    ours, theirs = Parts(tmp_path / "a", 2, {"what": 1}), Parts(tmp_path / "b", 2, {"what": 2})
    nothing = Counted()
    do_parts(ours, Counted())
    do_parts(theirs, Counted())
    with pytest.raises(ValueError, match="is another computation's: what is 1 there, 2 here"):
        do_parts(theirs._replace(folder=ours.folder), nothing)
    theirs.file(0).rename(ours.folder / theirs.file(0).name)
    with pytest.raises(ValueError, match="a part of another computation: remove it"):
        do_parts(ours, nothing)
    assert nothing.done == []


def test_an_audit_in_parts_is_the_audit(tmp_path, monkeypatch):
    """Killed after its first part, and the rest shared by two: the same table."""
    monkeypatch.setattr(rules, "PART", 11)
    monkeypatch.setattr(rules, "RULES", {"walk": rules.RULES["walk"]})
    audit_part, calls = rules.audit_part, []

    def dies(part, cases):
        calls.append(part)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return audit_part(part, cases)

    def run(*words):
        result = CliRunner().invoke(app, ["audit", "rules", "--cases", "30", *map(str, words)])
        assert result.exit_code in (0, 130), result.output
        return result.stdout

    whole, out = run(), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(rules, "audit_part", dies)
        run("--out", out)
    assert run("--out", out, "--shard", "1/2").strip() == f"{out}: 2 of 3 parts"
    assert run("--out", out, "--shard", "0/2") == whole
    assert "30 cases" in whole
    monkeypatch.setattr(rules, "audit_part", None)
    assert run("--out", out) == whole  # nothing is computed again


def test_a_sweep_in_parts_is_the_sweep(tmp_path):
    whole = serving(LOOP, COSTS, POLICY, SLOTS)
    given = (LOOP, COSTS, POLICY, SLOTS)
    assert sweep(tmp_path, *given, part_size=3, shard="1/2") is None
    first = {path: path.stat().st_mtime_ns for path in tmp_path.glob("part-*")}
    assert len(first) == 1
    found = sweep(tmp_path, *given, part_size=3, shard="0/2")
    for name, ours, theirs in zip(whole._fields, found, whole, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, err_msg=name)
    assert first.items() <= {p: p.stat().st_mtime_ns for p in tmp_path.glob("part-*")}.items()
    with pytest.raises(ValueError, match="another computation"):
        sweep(tmp_path, *given, part_size=3, seed=1)


def test_a_sweep_with_seeds_and_without_parameters(tmp_path):
    whole = serving(LOOP, COSTS, POLICY, SLOTS, num_seeds=2)
    found = sweep(tmp_path / "seeds", LOOP, COSTS, POLICY, SLOTS, part_size=4, num_seeds=2)
    assert found.end.shape == whole.end.shape == (2, 7)
    np.testing.assert_allclose(found.end, whole.end, rtol=1e-12)
    with pytest.raises(ValueError, match="must have one size, got"):
        sweep(tmp_path / "none", LOOP, Costs(0.05), POLICY, SLOTS)


def test_an_audit_is_shared_out_by_a_scheduler(tmp_path):
    command = ["audit", "rules", "--cases", "1100", "--out", "my folder"]
    script, stand_in = tmp_path / "job.sh", tmp_path / "srun"
    script.write_text(recipe("slurm", command, 3))
    stand_in.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    stand_in.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "2"}
    done = subprocess.run(["bash", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["specjax", *command, "--shard", "2/3"]

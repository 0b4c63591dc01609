"""``bench hardware`` writes a device that ``--hardware`` reads."""

import io
import json

import pytest
from rich.console import Console

from specjax.bench.hardware import bench_hardware
from specjax.cli.modelled import read_hardware
from specjax.theory.roofline import HARDWARE


def test_a_measured_machine_is_read_by_its_file(tmp_path):
    file, said = tmp_path / "here.json", io.StringIO()
    found = bench_hardware(file, reps=1, rows=64, size=256, console=Console(file=said, width=200))
    assert read_hardware(str(file)) == (found, 1)
    assert 1e8 < found.bandwidth < 1e13
    assert 1e8 < found.flops < 1e15
    assert found.memory > 2**30
    assert found.assumption.startswith("measured: ")
    assert "GFLOP/s in bfloat16" in said.getvalue()


def test_names_are_read_as_before_and_another_file_is_refused(tmp_path):
    assert read_hardware("2xH200") == (HARDWARE["H200"], 2)
    file = tmp_path / "other.json"
    file.write_text(json.dumps({"name": "x"}))
    with pytest.raises(ValueError, match="must hold name, bandwidth, flops"):
        read_hardware(str(file))

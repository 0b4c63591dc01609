"""What a benchmark says of the machine: how busy others keep it."""

import time
from pathlib import Path

import pytest

from specjax.bench import report

LINUX = Path("/proc/stat").is_file()


@pytest.mark.skipif(not LINUX, reason="needs /proc/stat, which only Linux has")
def test_time_that_a_core_works_is_counted():
    before, start = report.busy_ticks(), time.process_time()
    while time.process_time() - start < 0.3:
        pass
    assert report.busy_ticks() - before >= 25  # hundredths of a second, of 30


@pytest.mark.skipif(not LINUX, reason="needs /proc/stat, which only Linux has")
def test_what_this_process_did_before_is_not_counted(monkeypatch):
    ticks = iter([1_000_000, 1_000_010])
    monkeypatch.setattr(report, "busy_ticks", lambda: next(ticks))
    monkeypatch.setattr(report.os, "sysconf", lambda name: 100)
    assert report.busy() == pytest.approx(0.2)

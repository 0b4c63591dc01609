"""`make test` leaves out tests that exist, and no law or proof among them as a whole."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiers

ROOT = Path(__file__).parent.parent
KEPT = "tests/laws/", "tests/verify/", "tests/oracle/test_laws.py", "tests/core/"


@pytest.mark.parametrize("name", tiers.SLOW)
def test_what_is_slow_exists_and_is_no_law(name):
    path, _, test = name.partition("::")
    assert not name.startswith(KEPT) or "[" in test  # some parameters, and not all: see below
    assert (ROOT / path).exists(), path
    if test:
        assert f"def {test.split('[')[0]}(" in (ROOT / path).read_text()


def test_a_name_is_a_file_a_test_or_one_of_its_parameters(monkeypatch):
    monkeypatch.setattr(
        tiers, "SLOW", ("tests/a.py", "tests/b.py::test_b", "tests/c.py::test_c[1]")
    )
    for name in ("tests/a.py::test_x", "tests/b.py::test_b[2]", "tests/c.py::test_c[1]"):
        assert tiers.is_slow(name)
    for name in ("tests/ab.py::test_x", "tests/b.py::test_bc", "tests/c.py::test_c[12]"):
        assert not tiers.is_slow(name)


def test_of_every_law_some_parameters_are_in_make_test(request):
    laws: dict[str, set[bool]] = {}
    for item in request.session.items:
        if item.nodeid.startswith((*KEPT, "tests/oracle/")) and not item.get_closest_marker(
            "oracle"
        ):
            law = item.nodeid.split("[")[0]
            laws.setdefault(law, set()).add(tiers.is_slow(item.nodeid))
    assert [law for law, slow in laws.items() if slow == {True}] == []


def test_no_test_begins_once_the_minutes_are_over():
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-n0", "--minutes", "0"]
    one = f"{__file__}::test_a_name_is_a_file_a_test_or_one_of_its_parameters"
    done = subprocess.run([*command, one], capture_output=True, text=True, cwd=ROOT)
    assert "SKIPPED [1]" in done.stdout, done.stdout + done.stderr
    assert "0 minutes of --minutes are over; `make test-all` runs it" in done.stdout

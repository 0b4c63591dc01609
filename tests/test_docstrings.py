"""Every example in a docstring prints what it says (``pytest --doctest-modules FILE`` runs one)."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = [
    file.relative_to(ROOT)
    for package in ("specjax", "npu_bridge")
    for file in sorted((ROOT / package).rglob("*.py"))
    if ">>> " in file.read_text()
]


@pytest.mark.parametrize("file", FILES, ids=str)
def test_examples_in_docstrings_are_true(file):
    name = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert found.attempted > 0
    assert found.failed == 0


def test_there_are_examples_in_the_packages_that_users_call():
    assert {file.parts[1] for file in FILES} >= {"core", "bundled", "theory", "verify"}

"""Every notebook runs offline, is kept without outputs, and has all the parts of a lesson."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jupytext
import nbformat
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))
# Jupyter warns about itself and leaves sockets to the garbage collector: it runs in a process
# of its own, so that warnings stay errors in this one.
SCRIPT = FOLDER.parent / "docs" / "tools" / "execute_notebook.py"
# per notebook, on a core without AVX-512, with nothing compiled
SECONDS = float(os.environ.get("SPECJAX_NOTEBOOK_SECONDS", "300"))


def environment() -> dict[str, str]:
    """Return the process's environment, with the tests' compile cache, if any."""
    cache = jax.config.jax_compilation_cache_dir
    if not cache:
        return dict(os.environ)
    kept = {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    return os.environ | kept | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}


def test_there_are_notebooks():
    assert [int(path.stem[:2]) for path in NOTEBOOKS] == list(range(1, 15))
    assert all(path.stem[:3].rstrip("_").isdigit() for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path):
    result = tmp_path / "executed.ipynb"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(path), str(result)],
        env=environment(), timeout=SECONDS, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout  # the cell and its traceback
    cells = nbformat.read(result, as_version=4).cells
    outputs = [out for cell in cells for out in cell.get("outputs", ())]
    solutions = [cell for cell in cells if "hide-input" in cell.metadata.get("tags", ())]
    for number, cell in enumerate(solutions, start=1):
        printed = "".join(out.text for out in cell.outputs if out.output_type == "stream")
        assert printed.startswith(f"Answer {number}. "), "a solution is printed and explained"
    assert any("image/png" in out.get("data", {}) for out in outputs), "no figure was shown"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_source_is_text_without_outputs(path):
    source = path.read_text(encoding="utf-8")
    assert "image/png" not in source
    notebook = jupytext.reads(source, fmt="py:percent")
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_the_parts_of_a_lesson(path):
    cells = jupytext.read(path).cells
    text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    first = cells[0].source
    for part in ("You will", "Before this", "Question.", "Formula."):
        assert f"**{part}**" in first, part
    assert 10 <= int(re.search(r"\*\*Time\*\*:\s+(\d+)\s+minutes", first)[1]) <= 60
    source = r"\]\(https://(arxiv\.org/abs/\d{4}\.\d{5}|doi\.org/\S+)\)"
    assert re.search(source, re.sub(r"\s+", " ", first)), "the formula's source is linked"
    assert re.search(r"LLM\(|recording\(|SERVER_LOG|read_log", code), "no real run"
    assert len(re.findall(r"^\s*(assert|np\.testing)", code, re.MULTILINE)) >= 8, (
        "little is checked"
    )
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings[-2:] == ["Summary", "Further reading"]
    assert "Three puzzles" in headings
    puzzles = text.split("## Three puzzles")[1].split("The answers are in the hidden cells")[0]
    assert re.findall(r"^(\d)\. ", puzzles, re.MULTILINE)[:3] == ["1", "2", "3"]
    reading = text.split("## Further reading")[1]
    items = re.split(r"^- ", reading, flags=re.MULTILINE)[1:]
    assert items
    assert all("](http" in item for item in items)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebooks_solutions_are_hidden_printed_and_checked(path):
    cells = jupytext.read(path).cells
    solutions = [cell for cell in cells if "hide-input" in cell.metadata.get("tags", ())]
    assert len(solutions) == 3
    for number, cell in enumerate(solutions, start=1):
        assert cell.metadata["jupyter"] == {"source_hidden": True, "outputs_hidden": True}
        assert re.match(rf'print\(\s*"""Answer {number}\. ', cell.source), cell.source
        explained = cell.source.split('"""')[1]
        assert len(explained) > 60, "a solution is explained"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_needs_no_clone(path):
    source = path.read_text(encoding="utf-8")
    for place in ("tests/", "docs/ab", "Path.cwd", "__file__"):
        used = [line for line in source.splitlines() if place in line and line[:1] != "#"]
        assert not used, "a recording is read by specjax.bundled.recording"


def test_no_executed_notebook_is_kept():
    assert not list(FOLDER.rglob("*.ipynb"))

"""The slides have a notebook's parts, draw every formula, and load nothing."""

import base64
import re
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
sys.path.insert(0, str(ROOT / "docs" / "tools"))

import notebook_pages  # noqa: E402 (of docs/tools)
import slides  # noqa: E402

PNG = base64.b64encode(b"a picture").decode()


def executed(path):
    """Return a notebook as if it had run: solutions are printed, each `get_figure` is a picture."""
    notebook = jupytext.read(path)
    number = 0
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        if "hide-input" in cell.metadata.get("tags", ()):
            number += 1
            said = f"Answer {number}. Because.\n"
            cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=said)]
        elif "get_figure()" in cell.source:
            cell.outputs = [nbformat.v4.new_output("display_data", {"image/png": PNG})]
    return notebook


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_deck_has_the_notebooks_parts(path):
    notebook = executed(path)
    deck = slides.deck(notebook, notebook_pages.title(path))
    titles = re.findall(r"<h2>(.*?)</h2>", deck)
    for part in ("Question", "Formula", "Three puzzles", "Answer 1", "Answer 3", "Summary"):
        assert titles.count(part) == 1, part
    assert titles.index("Answer 1") == titles.index("Three puzzles") + 1
    pictures = sum("get_figure()" in cell.source for cell in notebook.cells)
    assert deck.count("<img") >= min(pictures, 1)
    assert 10 <= len(titles) <= 26
    shown = re.sub(r"<(pre|code|script|style)[^>]*>.*?</\1>", "", deck, flags=re.DOTALL)
    assert not re.search(r"\$|\ue000|\*\*", shown), "every formula and emphasis is drawn"
    for loading in (r'src="(?!data:)', "<link", "@import", r"url\(", r"fetch\("):
        assert not re.search(loading, deck), loading


def test_a_notebook_to_run_installs_specjax_and_has_no_outputs():
    notebook = nbformat.reads(notebook_pages.to_run(executed(NOTEBOOKS[0])), as_version=4)
    nbformat.validate(notebook)
    first, *rest = notebook.cells
    assert first.source.startswith("%pip install")
    assert "github.com/specjax/specjax" in first.source
    assert len(rest) == len(jupytext.read(NOTEBOOKS[0]).cells)
    assert not any(cell.get("outputs") for cell in notebook.cells)

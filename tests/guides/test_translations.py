"""Every notebook stands in Chinese too: cell by cell, with its formulas, links and puzzles."""

import re
import sys
from pathlib import Path

import jupytext
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
sys.path.insert(0, str(ROOT / "docs" / "tools"))

import notebook_pages  # noqa: E402 (of docs/tools)
import translations  # noqa: E402

WORD = re.compile(r"[A-Za-z]{2,}")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HAN = re.compile(r"[\u4e00-\u9fff]")


def shape(text: str) -> dict[str, list[str]]:
    """Return what a translation keeps of a text."""
    fences, text = FENCE.findall(text), FENCE.sub("", text)
    flat = re.sub(r"\s+", " ", text)
    formulas = re.findall(r"\$\$.+?\$\$|\$.+?\$", flat)
    return {
        "fences": fences,
        "headings": re.findall(r"^#+(?= )", text, re.MULTILINE),
        "formulas": sorted(re.sub(r" ", "", one) for one in formulas),
        "links": sorted(re.findall(r"\]\(([^)\s]+)\)", text)),
        "code": sorted(re.findall(r"`[^`]+`", flat)),
        "items": re.findall(r"^(?:- |\d\. )", text, re.MULTILINE),
        "table rows": re.findall(r"^\|", text, re.MULTILINE),
    }


@pytest.mark.parametrize("source", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_chinese_text_is_in_step(source):
    """Else: python docs/tools/translations.py NOTEBOOK.py, and translate what is English."""
    notebook = jupytext.read(source, fmt="py:percent")
    chinese = translations.translate(notebook, source)
    for number, text in translations.text_cells(notebook).items():
        translated = chinese.cells[number].source
        assert shape(translated) == shape(text), f"cell {number}"
        words, characters = len(WORD.findall(text)), len(HAN.findall(translated))
        assert characters > words / 2, f"cell {number} is not in Chinese"
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.source for cell in chinese.cells if cell.cell_type == "code"] == code


def test_a_changed_english_text_is_seen():
    source = NOTEBOOKS[0]
    notebook = jupytext.read(source, fmt="py:percent")
    notebook.cells[0].source += " And more."
    with pytest.raises(ValueError, match=r"is behind .* in cells \[0\]"):
        translations.translate(notebook, source)


def test_a_renewed_translation_keeps_what_is_unchanged(tmp_path):
    source = tmp_path / "note.py"
    source.write_text("# %% [markdown]\n# # One\n\n# %% [markdown]\n# two\n", encoding="utf-8")
    translations.renew(source)
    page = translations.page(source)
    page.write_text(page.read_text(encoding="utf-8").replace("# One", "# 一"), encoding="utf-8")
    source.write_text("# %% [markdown]\n# # One\n\n# %% [markdown]\n# 2\n", encoding="utf-8")
    translations.renew(source)
    assert [text for _, text in translations.read(page).values()] == ["# 一", "2"]


def test_either_page_links_to_the_other():
    assert "[中文](02_draft_and_verify.zh.md)" in notebook_pages.ways("02_draft_and_verify")
    assert "[English](02_draft_and_verify.md)" in notebook_pages.ways("02_draft_and_verify.zh")

"""The Chinese text of the notebooks: a Markdown file beside each, a block for each text cell.

``notebooks/02_draft_and_verify.zh.md`` translates ``notebooks/02_draft_and_verify.py``. Above each
block a comment holds the cell's number and the hash of its English text,
``<!-- cell 3 1f0c9a2b -->``, so that a change of the English text shows which blocks are to be read
again. ``python docs/tools/translations.py NOTEBOOK.py`` rewrites the file: blocks whose cell is
unchanged stay, cells without one are copied in English.
"""

import hashlib
import re
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat

MARK = re.compile(r"^<!-- cell (\d+) ([0-9a-f]{8}) -->\n", re.MULTILINE)


def page(source: Path) -> Path:
    """Return where a notebook's Chinese text lies."""
    return source.with_suffix(".zh.md")


def stamp(text: str) -> str:
    """Return the hash of a cell's English text."""
    return hashlib.sha256(text.strip().encode()).hexdigest()[:8]


def text_cells(notebook: Any) -> dict[int, str]:
    """Return the texts of a notebook's Markdown cells by their numbers, which count all cells."""
    cells = enumerate(notebook.cells)
    return {number: cell.source for number, cell in cells if cell.cell_type == "markdown"}


def read(path: Path) -> dict[int, tuple[str, str]]:
    """Return the blocks of a translation: the hash of the English text, and the Chinese one."""
    _, *parts = MARK.split(path.read_text(encoding="utf-8"))
    triples = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return {int(number): (known, text.strip()) for number, known, text in triples}


def translate(notebook: Any, source: Path) -> Any:
    """Return a copy of a notebook, executed or not, whose text is the Chinese one.

    Raises ValueError naming the cells whose English text is not the one that was translated.
    """
    blocks, english = read(page(source)), text_cells(notebook)
    expected = {number: stamp(text) for number, text in english.items()}
    found = {number: known for number, (known, _) in blocks.items()}
    if expected != found:
        changed = sorted({number for number, _ in expected.items() ^ found.items()})
        raise ValueError(
            f"{page(source).name} is behind {source.name} in cells {changed}: run "
            f"python docs/tools/translations.py notebooks/{source.name}, and translate them"
        )
    copy = nbformat.from_dict(notebook)
    for number, (_, text) in blocks.items():
        copy.cells[number].source = text
    return copy


def renew(source: Path) -> None:
    """Write a notebook's translation anew: what is unchanged stays, the rest is in English."""
    path = page(source)
    known = dict(read(path).values()) if path.exists() else {}
    lines = []
    for number, text in text_cells(jupytext.read(source, fmt="py:percent")).items():
        hashed = stamp(text)
        lines += [f"<!-- cell {number} {hashed} -->", known.get(hashed, text.strip()), ""]
    path.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        renew(Path(argument))

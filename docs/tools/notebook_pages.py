"""Pages of the notebooks, with their outputs and figures; their slides, and a gallery."""

import base64
import re
from pathlib import Path
from typing import Any

import nbformat
import slides
import translations

SOURCE = "specjax/specjax"
INSTALL = f'%pip install -q "specjax[notebooks] @ git+https://github.com/{SOURCE}"'
COLAB = f"https://colab.research.google.com/github/{SOURCE}/blob/gh-pages/notebooks"
BINDER = f"https://mybinder.org/v2/gh/{SOURCE}/main?urlpath=lab/tree/notebooks"
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")  # colours of a terminal
MAGIC = re.compile(r"^%.*\n?", re.MULTILINE)


def sources(root: Path) -> list[Path]:
    """Return the notebooks' sources in order."""
    return sorted((root / "notebooks").glob("*.py"))


def title(source: Path) -> str:
    """Return a notebook's title: its first heading."""
    text = source.read_text(encoding="utf-8")
    return next(line[4:] for line in text.splitlines() if line.startswith("# # "))


def chinese_title(source: Path) -> str:
    """Return a notebook's title in Chinese."""
    _, first = translations.read(translations.page(source))[0]
    return first.partition("\n")[0].removeprefix("# ")


def navigation(root: Path) -> list:
    """Return the notebooks' part of the navigation."""
    entries = [{title(one): f"notebooks/{one.stem}.md"} for one in sources(root)]
    chinese = [{chinese_title(one): f"notebooks/{one.stem}.zh.md"} for one in sources(root)]
    gallery = {"All figures": "notebooks/gallery.md"}
    return ["notebooks/index.md", *entries, gallery, {"中文": chinese}]


def pages(root: Path, executed: Path) -> dict[str, str | bytes]:
    """Return the notebooks' pages and figures by their paths.

    Raises FileNotFoundError for a notebook that was not executed: `make docs` does it.
    """
    lines = ["# Notebooks", "", INTRODUCTION, ""]
    lines += [f"- [{title(one)}]({one.stem}.md)" for one in sources(root)]
    lines += ["", "All their figures stand in the [gallery](gallery.md)."]
    found: dict[str, str | bytes] = {"notebooks/index.md": "\n".join([*lines, ""])}
    gallery = ["# All figures", "", GALLERY]
    for one in sources(root):
        notebook = nbformat.read(executed / f"{one.stem}.ipynb", as_version=4)
        figures: dict[str, bytes] = {}  # the same under both texts
        for stem, words in (
            (one.stem, notebook),
            (f"{one.stem}.zh", translations.translate(notebook, one)),
        ):
            text, figures = convert(words, one.stem)
            heading, _, rest = text.partition("\n")
            found[f"notebooks/{stem}.md"] = f"{heading}\n\n{ways(stem)}\n{rest}"
            found[f"notebooks/{stem}.ipynb"] = to_run(words)
        found[f"slides/{one.stem}.html"] = slides.deck(notebook, title(one))
        found |= {f"notebooks/{name}": image for name, image in figures.items()}
        gallery += ["", f"## [{title(one)}]({one.stem}.md)"]
        gallery += [f"\n![{title(one)}, figure {i}]({name})" for i, name in enumerate(figures, 1)]
    found["notebooks/gallery.md"] = "\n".join([*gallery, ""])
    return found


GALLERY = """\
Every figure of the notebooks, as it was drawn when these pages were built. Its title is the
sentence that it shows, and the cell that draws it asserts the numbers. Colours are those of Okabe
and Ito, which the colour-blind can tell apart; marks and dashes tell lines apart in grey."""


def ways(stem: str) -> str:
    """Return the line of links under a notebook's title; a Chinese one's stem ends in ``.zh``."""
    english = stem.removesuffix(".zh")
    other = f"[中文]({stem}.zh.md)" if stem == english else f"[English]({english}.md)"
    return (
        f"{other} · [Slides](../slides/{english}.html) · [Download]({stem}.ipynb) · "
        f"[Colab]({COLAB}/{stem}.ipynb) · [Binder]({BINDER}/{english}.ipynb)"
    )


def to_run(notebook: Any) -> str:
    """Return a notebook without outputs, which begins by installing specjax."""
    fresh = nbformat.v4.new_notebook(metadata=notebook.metadata)
    fresh.cells = [nbformat.v4.new_code_cell(INSTALL, id="install")]
    for cell in notebook.cells:
        copy = nbformat.from_dict(cell)
        if copy.cell_type == "code":
            copy.outputs, copy.execution_count = [], None
        fresh.cells.append(copy)
    return nbformat.writes(fresh)


INTRODUCTION = """\
Each asks a question, derives the formula, writes it in JAX, compares the two and draws it; three
puzzles follow, whose solutions open at a click. What you see below each cell was computed when
these pages were built. To run them yourself: `pip install 'specjax[notebooks]'`, then
`jupyter lab notebooks` (open a file with *Open with, Notebook*), or open them in VS Code. Each has
its text in Chinese too, under the same figures: *中文* below its title."""


def convert(notebook: Any, stem: str) -> tuple[str, dict[str, bytes]]:
    """Return an executed notebook as Markdown, and its figures by their paths."""
    parts: list[str] = []
    figures: dict[str, bytes] = {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        hidden = "hide-input" in cell.metadata.get("tags", ())
        parts += (
            [SOLUTION, *cell_parts(cell, stem, figures), "</details>"]
            if hidden
            else (cell_parts(cell, stem, figures))
        )
    return "\n\n".join([*parts, ""]), figures


SOLUTION = '<details class="solution" markdown="1"><summary>Solution</summary>'


def cell_parts(cell: Any, stem: str, figures: dict[str, bytes]) -> list[str]:
    """Return a code cell as Markdown: its code, then what it gave."""
    code = MAGIC.sub("", cell.source).strip()
    parts = [f"```python\n{code}\n```"] if code else []
    for output in cell.outputs:
        parts += show(output, stem, figures)
    return parts


def show(output: Any, stem: str, figures: dict[str, bytes]) -> list[str]:
    """Return an output of a cell as Markdown; its image joins the figures."""
    if output.output_type == "stream":
        return [block(output.text)] if output.name == "stdout" else []
    data = output.get("data", {})
    if "image/png" in data:
        name = f"{stem}/figure_{len(figures) + 1}.png"
        figures[name] = base64.b64decode(data["image/png"])
        return [f"![figure {len(figures)}]({name})"]
    if "text/html" in data:
        return [f'<div class="output">{data["text/html"]}</div>']
    return [block(data["text/plain"])] if "text/plain" in data else []


def block(text: str) -> str:
    """Return printed text as a block of its own kind."""
    return f"``` {{ .text .output }}\n{ESCAPES.sub('', text).rstrip()}\n```"

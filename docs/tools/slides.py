"""Slides of a notebook: one HTML file, made of its headings, formulas and figures.

A slide per section: its heading, its first sentences, its figure or what it printed; the whole
text of the section is the speaker's notes (key N). A puzzle's solution is the slide after it.
Arrow keys, space, swipes and the two buttons turn pages; printing gives one page per slide.
"""

import base64
import html
import re
from pathlib import Path
from typing import Any, NamedTuple

import markdown
import mathml

LINES = 16  # of printed text on a slide
SENTENCES = re.compile(r"(?<=[.?!:])\s+(?=[A-Z*$`])")
PAGE = Path(__file__).with_name("slides.html")


class Slide(NamedTuple):
    """One slide, as HTML."""

    title: str
    body: str
    notes: str


def deck(notebook: Any, title: str) -> str:
    """Return an executed notebook's deck."""
    slides = [slide for one in sections(notebook) for slide in slides_of(*one)]
    shown = "\n".join(
        f"<section><h2>{one.title}</h2><div class=body>{one.body}</div>"
        f"<aside class=notes>{one.notes}</aside></section>"
        for one in slides
    )
    page = PAGE.read_text(encoding="utf-8")
    return page.replace("<!--title-->", html.escape(title)).replace("<!--slides-->", shown)


def sections(notebook: Any) -> list[tuple[str, str, list]]:
    """Cut a notebook at its headings, and before solutions: (heading, text, outputs)."""
    found: list[tuple[str, str, list]] = []
    number = 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for part in re.split(r"^(?=##? )", cell.source, flags=re.MULTILINE):
                heading = re.match(r"##? (.+)\n?", part)
                if heading:
                    found.append((heading[1], part[heading.end() :].strip(), []))
                elif part.strip():
                    last = found[-1]
                    found[-1] = (last[0], f"{last[1]}\n\n{part.strip()}", last[2])
        elif "hide-input" in cell.metadata.get("tags", ()):
            number += 1
            said = "".join(one.text for one in cell.outputs if one.get("name") == "stdout")
            found.append((f"Answer {number}", said.removeprefix(f"Answer {number}. "), []))
        else:
            found[-1][2].extend(cell.outputs)
    return found


def slides_of(title: str, text: str, outputs: list) -> list[Slide]:
    """Return the slides of a section."""
    notes = draw(text)
    if "**You will**" in text:  # the first cell: goals, question, formula
        goals, _, rest = text.partition("**Question.**")
        question, _, formula = rest.partition("**Formula.**")
        blocks = re.findall(r"\$\$.*?\$\$|^\|.*?(?:\n\n|\Z)", formula, re.DOTALL | re.MULTILINE)
        first = lead(formula, 2)  # with the first formula
        said = "\n\n".join([first, *(one for one in blocks[:2] if one not in first)])
        return [
            Slide(draw(title, inline=True), draw(goals), ""),
            Slide("Question", draw(question), draw(question)),
            Slide("Formula", draw(said), draw(formula)),
        ]
    if title == "Three puzzles":
        return [Slide("Three puzzles", draw(text.split("The answers are in")[0]), notes)]
    if title in ("Summary", "Further reading") or title.startswith("Answer"):
        body = f"<p>{html.escape(text)}</p>" if title.startswith("Answer") else notes
        return [Slide(title, body, "")]
    pictures = [one.data["image/png"] for one in outputs if "image/png" in one.get("data", {})]
    heading = draw(title, inline=True)
    if pictures:
        alt = html.escape(re.sub(r"[$`*]", "", title), quote=True)
        return [Slide(heading, picture(one, alt), notes) for one in pictures]
    printed = "".join(one.text for one in outputs if one.get("name") == "stdout").rstrip()
    lines = printed.splitlines()
    shown = "\n".join(lines[:LINES] + ["..."] * (len(lines) > LINES))
    block = f"<pre>{html.escape(shown)}</pre>" if shown else ""
    return [Slide(heading, draw(lead(text, 2)) + block, notes)]


def picture(png: str, alt: str) -> str:
    """Return a figure, inside the page."""
    data = base64.b64encode(base64.b64decode(png)).decode()
    return f'<img alt="{alt}" src="data:image/png;base64,{data}">'


def lead(text: str, number: int) -> str:
    """Return the first sentences of a text, and its first formula."""
    plain = re.split(r"\$\$|^```|^\||^- |^\d\. ", text, maxsplit=1, flags=re.MULTILINE)[0].strip()
    said = " ".join(SENTENCES.split(" ".join(plain.split()))[:number])
    formula = re.search(r"\$\$.*?\$\$", text, re.DOTALL)
    return said + (f"\n\n{formula[0]}" if formula else "")


def draw(text: str, *, inline: bool = False) -> str:
    """Return Markdown with formulas as HTML with MathML."""
    kept: list[str] = []

    def keep(found: re.Match) -> str:
        block = found[0].startswith("$$")
        kept.append(mathml.draw(found[0].strip("$").strip(), block=block))
        return f"\ue000{len(kept) - 1}\ue001"

    text = re.sub(r"\$\$.*?\$\$|\$[^$]+\$", keep, text, flags=re.DOTALL)
    drawn = markdown.markdown(text, extensions=["tables", "sane_lists", "fenced_code"])
    drawn = re.sub(r"\ue000(\d+)\ue001", lambda found: kept[int(found[1])], drawn)
    return re.sub(r"^<p>|</p>$", "", drawn) if inline else drawn

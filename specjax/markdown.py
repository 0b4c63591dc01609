"""Sections, tables and pictures of a Markdown page, written by the command that measured them."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from specjax.files import write_atomically
from specjax.machine import stamp


def around_section(page: Path, name: str) -> tuple[str, str]:
    """Return a page before and after what ``<!-- name: begin -->`` and its end enclose.

    Raises ValueError when the page has no such pair of marks.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"{page} has no {begin} and {end} to write between.")
    return before + begin, end + after


def replace_section(page: Path, name: str, lines: Iterable[str]) -> None:
    """Write lines between a page's two marks, and what wrote them. Raises ValueError without."""
    before, after = around_section(page, name)
    with write_atomically(page) as file:
        file.write("\n".join([before, *lines, "", f"Written by {stamp()}.", after]).encode())


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Write a table as lines."""
    return [f"| {' | '.join(row)} |" for row in (headings, ("---",) * len(headings), *rows)]


def picture(said: str, image: Path | None, page: Path) -> list[str]:
    """Show an image by its path from the page, with what to say where it cannot be seen."""
    if image is None:
        return []
    return ["", f"![{said}]({Path(os.path.relpath(image, page.parent)).as_posix()})"]

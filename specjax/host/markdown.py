"""Write sections, tables and pictures of a Markdown page from a command's results."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from specjax.host.files import write_atomically
from specjax.host.machine import stamp


def around_section(page: Path, name: str) -> tuple[str, str]:
    """Return a page's text up to ``<!-- name: begin -->``, and from ``<!-- name: end -->`` on.

    Raises:
        ValueError: the page lacks one of these marks.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"{page} has no {begin} and {end} to write between.")
    return before + begin, end + after


def replace_section(page: Path, name: str, lines: Iterable[str]) -> None:
    """Replace the lines between a page's two marks, and add the provenance (``stamp``).

    Raises:
        ValueError: the page lacks one of these marks.
    """
    before, after = around_section(page, name)
    with write_atomically(page) as file:
        file.write("\n".join([before, *lines, "", f"Written by {stamp()}.", after]).encode())


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return [f"| {' | '.join(row)} |" for row in (headings, ("---",) * len(headings), *rows)]


def picture(alt: str, image: Path | None, page: Path) -> list[str]:
    """Return the lines of an image with its alternative text; none if ``image`` is None."""
    if image is None:
        return []
    return ["", f"![{alt}]({Path(os.path.relpath(image, page.parent)).as_posix()})"]

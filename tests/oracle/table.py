"""The tables of what was compared with vLLM, written from the run itself."""

import platform
from pathlib import Path

from rich.console import Console
from rich.table import Table

from specjax.host.markdown import replace_section, table

HEAD = ("what", "compared with", "how many", "result")
SECTION = "oracle table"  # of rows that name no other
Row = tuple[str, ...]  # the section's name, then ``HEAD``


def show(rows: list[Row]) -> None:
    """Print the rows as one table."""
    shown = Table(*HEAD)
    for _, *row in rows:
        shown.add_row(*row)
    Console(width=160).print(shown)


def write(rows: list[Row], repairs: dict[str, str], path: Path) -> None:
    """Put each section's rows between its two marks of ``path``."""
    named = "; ".join(f"`{name}`: {what}" for name, what in repairs.items())
    said = f"By Python {platform.python_version()}. vLLM is repaired ({named})."
    for section in sorted({row[0] for row in rows}):
        own = [row for name, *row in rows if name == section]
        replace_section(path, section, [*table(HEAD, own), "", said])

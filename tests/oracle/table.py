"""The table of what was compared with vLLM, written from the run itself."""

import platform
from pathlib import Path

from rich.console import Console
from rich.table import Table

from specjax.host.markdown import replace_section, table

HEAD = ("what", "compared with", "how many", "result")


def show(rows: list[tuple[str, ...]]) -> None:
    """Print the table."""
    shown = Table(*HEAD)
    for row in rows:
        shown.add_row(*row)
    Console(width=160).print(shown)


def write(rows: list[tuple[str, ...]], repairs: dict[str, str], path: Path) -> None:
    """Put the table between the two marks of ``path``."""
    named = "; ".join(f"`{name}`: {what}" for name, what in repairs.items())
    said = f"By `make oracle`, Python {platform.python_version()}. vLLM is repaired ({named})."
    replace_section(path, "oracle table", [*table(HEAD, rows), "", said])

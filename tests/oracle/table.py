"""The table of what was compared with vLLM, written from the run itself."""

import platform
from pathlib import Path

from rich.console import Console
from rich.table import Table

from specjax.files import replace_section

HEAD = ("what", "compared with", "how many", "result")


def show(rows: list[tuple[str, ...]]) -> None:
    """Print the table."""
    table = Table(*HEAD)
    for row in rows:
        table.add_row(*row)
    Console(width=160).print(table)


def write(rows: list[tuple[str, ...]], repairs: dict[str, str], path: Path) -> None:
    """Put the table between the two marks of ``path``."""
    lines = [f"| {' | '.join(row)} |" for row in (HEAD, ("---",) * len(HEAD), *rows)]
    named = "; ".join(f"`{name}`: {what}" for name, what in repairs.items())
    said = f"By `make oracle`, Python {platform.python_version()}. vLLM is repaired ({named})."
    replace_section(path, "oracle table", [*lines, "", said])

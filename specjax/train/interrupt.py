"""Ctrl-C ends a run that can be resumed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer


@contextmanager
def until_interrupted(place: Path) -> Iterator[None]:
    """Turn Ctrl-C into a message with the run's folder, and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"stopped; the same command goes on from {place}", err=True)
        raise typer.Exit(130) from None

"""``specjax oracle``: install vLLM in an environment of its own, and run jobs in it."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from specjax.cli.errors import plainly

oracle = typer.Typer(help="Ask a real vLLM, in its own environment.", no_args_is_help=True)


@oracle.command()
@plainly
def install() -> None:
    """Make the oracle's environment in the user's cache, unless it is there."""
    from specjax.oracle.environment import install

    install(typer.echo)


@oracle.command()
@plainly
def run(
    job: Annotated[Path, typer.Argument(help="A JSON file (driver.py says what it holds), or -.")],
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait.")] = 300.0,
    threads: Annotated[int, typer.Option(min=1, help="OpenMP threads of vLLM.")] = 1,
) -> None:
    """Run one job and print vLLM's answer as JSON."""
    from specjax.oracle.ask import ask

    text = sys.stdin.read() if str(job) == "-" else job.read_text(encoding="utf-8")
    try:
        message = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{job} is not valid JSON: {error}") from None
    typer.echo(json.dumps(ask(message, timeout=timeout, threads=threads)))

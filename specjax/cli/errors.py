"""Print the errors and warnings of commands, each in one line."""

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import typer

from specjax.cli import INTERRUPTED
from specjax.host.worker import WorkerFailure
from specjax.oracle.environment import OracleFailure

DEBUG = "SPECJAX_DEBUG"  # the environment variable behind --debug
USER_ERRORS = (ValueError, OSError, ImportError)
OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "out of memory")
REPEATED = "persistent compilation cache"  # JAX warns of it once per program


def plainly(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose expected errors are one line and exit code 2, Ctrl-C exit code 130.

    Expected are wrong input and running out of memory. Warnings become one line each, once.
    --debug keeps the traceback.
    """

    @functools.wraps(command)
    def run(*args, **kwargs):
        with warnings.catch_warnings():
            warnings.filterwarnings("default", module=r"specjax(\.|$)")
            warnings.showwarning = warn_once()
            try:
                return command(*args, **kwargs)
            except KeyboardInterrupt:
                typer.echo("interrupted", err=True)
                raise typer.Exit(INTERRUPTED) from None
            except BrokenPipeError:  # `specjax ... | head`
                raise
            except USER_ERRORS as error:
                if os.environ.get(DEBUG):
                    raise
                typer.echo(f"error: {one_line(error)}", err=True)
                raise typer.Exit(2) from None
            except (OracleFailure, WorkerFailure) as error:
                typer.echo(f"error: {error}", err=True)  # the log in it keeps its lines
                raise typer.Exit(2) from None
            except (RuntimeError, MemoryError) as error:
                if os.environ.get(DEBUG) or not ran_out_of_memory(error):
                    raise
                typer.echo(
                    "error: out of memory: lower num_speculative_tokens, max_num_seqs or "
                    f"max_model_len (in training --batch or --context). {one_line(error)}",
                    err=True,
                )
                raise typer.Exit(2) from None

    return run


def ran_out_of_memory(error: Exception) -> bool:
    """Return whether an error of JAX or Python is that memory ran out."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(word.lower() in text for word in OUT_OF_MEMORY)


def warn_once() -> Callable[..., None]:
    """Return a ``warnings.showwarning`` that prints one line per distinct message."""
    seen = set()

    def show(message, category, filename, lineno, file=None, line=None):
        text = REPEATED if REPEATED in str(message) else str(message)
        if text not in seen:
            seen.add(text)
            typer.echo(f"warning: {one_line(message)}", err=True)

    return show


def one_line(message: Any) -> str:
    """Return a message in one line; an OSError's without its number."""
    if isinstance(message, OSError) and message.strerror and message.filename:
        return f"{message.strerror}: {message.filename}"
    return " ".join(str(message).split()) or type(message).__name__

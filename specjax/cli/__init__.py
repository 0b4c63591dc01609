"""The command line: ``specjax`` and its commands.

Importing this package first makes Ctrl-C print one line, even while the rest is being imported.
"""

import contextlib
import os
import sys
from types import TracebackType
from typing import NoReturn

INTERRUPTED = 130  # 128 + SIGINT, the exit code in shells


def leave(code: int) -> NoReturn:
    """End the process by ``os._exit``, without finalizing the interpreter.

    JAX's threads may still run a program that Ctrl-C interrupted; finalizing the interpreter
    under them can crash.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a broken pipe, a closed stream
            stream.flush()
    os._exit(code)


def excepthook(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Print one line for Ctrl-C and exit; pass every other exception to Python's hook."""
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        leave(INTERRUPTED)
    sys.__excepthook__(kind, error, traceback)


if sys.excepthook is sys.__excepthook__:
    sys.excepthook = excepthook

"""The command line. Importing it makes Ctrl-C quiet, while the rest is still being imported."""

import contextlib
import os
import sys
from typing import NoReturn

INTERRUPTED = 130  # 128 + SIGINT, as shells say it


def leave(code: int) -> NoReturn:
    """End the process now, without taking the interpreter down.

    JAX's threads may still be at work on a dispatch that Ctrl-C abandoned; tearing the
    interpreter down under them can crash.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a reader that left, a closed stream
            stream.flush()
    os._exit(code)


def excepthook(kind, error, traceback) -> None:
    """Say what Ctrl-C did in a line; leave everything else to Python."""
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        leave(INTERRUPTED)
    sys.__excepthook__(kind, error, traceback)


if sys.excepthook is sys.__excepthook__:
    sys.excepthook = excepthook

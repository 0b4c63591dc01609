"""Run a child process that takes one JSON message per line and returns one per line."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any

TAIL, WIDTH = 12, 300  # lines of a worker's log in an error, and their characters


class WorkerFailure(RuntimeError):
    """A worker ended, took too long, or returned no JSON; the message has the end of its log."""


class Worker:
    """A child process; leaving the ``with`` block ends it and everything it started.

    Args:
        name: for error messages.
        command: the program and its arguments; it runs in the folder for temporary files.
        environment: variables to set beside this process's.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ):
        self.name = name
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **(environment or {})},
            cwd=tempfile.gettempdir(),
            start_new_session=True,  # so that what it starts ends with it
        )

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()
        with self._process:
            pass  # closes the pipes and collects the process
        self._log.close()

    def ask(self, message: Any, *, timeout: float, last: bool = False) -> Any:
        """Send one message and return the result.

        Args:
            timeout: seconds to wait.
            last: close the worker's input after this message.

        Raises:
            WorkerFailure: the worker ended, took too long, or returned no JSON.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._stop()

        timer = threading.Timer(timeout, give_up)
        timer.start()
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended: its log has the reason
                self._process.stdin.write(json.dumps(message) + "\n")
                self._process.stdin.flush()
                if last:
                    self._process.stdin.close()
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if late.is_set():
            raise WorkerFailure(f"{self.name} gave no answer in {timeout:g} s{self.last_words()}")
        try:
            return json.loads(line)
        except ValueError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)  # it may be ending now
            self._stop()
            code = self._process.wait()
            raise WorkerFailure(f"{self.name} died (exit code {code}){self.last_words()}") from None

    def log(self) -> str:
        """Return what the worker, and what it started, have logged so far."""
        file = self._log.fileno()
        # They write at the place that a seek here would move
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")

    def last_words(self) -> str:
        """Return the last lines of the worker's log, to be appended to a message."""
        lines = [line[:WIDTH] for line in self.log().strip().splitlines()[-TAIL:]]
        return ". Its last words:\n" + "\n".join(lines) if lines else ""

    def _stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

"""The command line as a user runs it."""

import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def specjax_command(tmp_path_factory):
    """Return a function that runs ``python -m specjax`` in a fresh folder."""
    home = tmp_path_factory.mktemp("home")

    def run(*args, timeout=300, **environment):
        return subprocess.run(
            [sys.executable, "-m", "specjax", *map(str, args)],
            cwd=home,
            env={**os.environ, "COLUMNS": "200", **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run

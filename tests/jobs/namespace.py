"""A network namespace of its own for Ray, which listens on all addresses of a host."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

NAMESPACE = ("unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


def has_namespace() -> bool:
    """Return whether this user may make a network namespace with a loopback in it."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return not subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode


def run_inside(home: Path, *arguments: object, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run this Python in a namespace, with a home of its own for Ray's token and files."""
    command: Sequence[str] = [*NAMESPACE, sys.executable, *map(str, arguments)]
    paths = os.pathsep.join(path for path in sys.path if path)
    facts = {"HOME": str(home), "PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.run(
        command,
        env={**os.environ, **facts},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )

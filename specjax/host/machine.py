"""The provenance of a measurement: command, commit, day and processor; this process's memory."""

import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from specjax import __version__

PACKAGE = Path(__file__).parents[1]
CODE = (PACKAGE, PACKAGE.parent / "npu_bridge", PACKAGE.parent / "pyproject.toml")


def processor() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def peak_bytes() -> int | None:
    """Return the most memory that was resident in this process so far; None where unknown.

    ``ru_maxrss`` would be the parent's where that was larger: it survives fork and exec.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(peak) * 1024


def commit() -> str:
    """Return the short hash of the checked-out commit, with "+" if code differs from it.

    Only code counts, not pages, figures and logs. Outside a checkout it is the version.
    """
    try:
        if not git("ls-files", __file__):
            return f"version {__version__}"
        changed = git("status", "--porcelain", "--", *map(str, CODE))
        return "commit " + git("rev-parse", "--short", "HEAD") + "+" * bool(changed)
    except (OSError, subprocess.CalledProcessError):
        return f"version {__version__}"


def git(*arguments: str) -> str:
    """Return the output of a git command in this repository."""
    command = ["git", "-C", str(PACKAGE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def command() -> str:
    """Return the command line of this process, without keys."""
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    for i, word in enumerate(words):
        if i and words[i - 1] == "--api-key":
            words[i] = "..."
        elif word.startswith("--api-key="):
            words[i] = "--api-key=..."
    return shlex.join(words)


def stamp() -> str:
    """Return a line of Markdown with the command, commit, day and processor."""
    return f"`{command()}`, {commit()}, {datetime.now(UTC):%Y-%m-%d}, {processor()}"

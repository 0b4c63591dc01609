"""What a figure was measured with: processor, commit, day and command."""

import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from specjax import __version__

HERE = Path(__file__).parent
CODE = (HERE, HERE.parent / "npu_bridge", HERE.parent / "pyproject.toml")


def processor() -> str:
    """Return the processor's name."""
    try:
        said = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in said if line.startswith("model name")]
    return names[0] if names else platform.machine()


def commit() -> str:
    """Return the short hash of the checked-out commit, with "+" if code differs from it.

    Pages, figures and logs are no code. Outside a checkout it is the version.
    """
    try:
        if not git("ls-files", __file__):
            return f"version {__version__}"
        changed = git("status", "--porcelain", "--", *map(str, CODE))
        return "commit " + git("rev-parse", "--short", "HEAD") + "+" * bool(changed)
    except (OSError, subprocess.CalledProcessError):
        return f"version {__version__}"


def git(*arguments: str) -> str:
    """Ask git about this folder."""
    command = ["git", "-C", str(HERE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def command() -> str:
    """Return the command line of this process."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def stamp() -> str:
    """Say by which command, of which commit, when and on which processor."""
    return f"`{command()}`, {commit()}, {datetime.now(UTC):%Y-%m-%d}, {processor()}"

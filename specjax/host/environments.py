"""Make Python environments for other engines, in the user's cache folder."""

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specjax.host.files import write_json

INTERPRETER = "python3.11"
GIB = 2**30


class EnvironmentMissing(RuntimeError):
    """An environment is missing or cannot be made; the message has the command to make it."""


class Recipe(NamedTuple):
    """How an environment is made.

    Attributes:
        name: for messages.
        place: its folder.
        stamp: name of a file that is written last: a folder without it is incomplete.
        stamped: the content of that file.
        steps: given its python, the steps by name, each with alternative commands.
        needed_bytes: free disk space that is needed.
        variable: environment variable with another folder to keep it in.
        how: the command that installs it, for messages.
    """

    name: str
    place: Path
    stamp: str
    stamped: Mapping[str, Any]
    steps: Callable[[str], Mapping[str, Sequence[Sequence[str]]]]
    needed_bytes: int
    variable: str
    how: str


def cache_folder(variable: str, name: str) -> Path:
    """Return the folder in an environment variable, or ``name`` in specjax's cache folder."""
    given = os.environ.get(variable, "").strip()
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    root = Path(given) if given else Path(caches) / "specjax" / name
    return root.expanduser()


def is_installed(recipe: Recipe) -> bool:
    """Return whether the environment is complete, and of the recipe's version."""
    try:
        stamped = json.loads((recipe.place / recipe.stamp).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return stamped == recipe.stamped and (recipe.place / "bin" / "python").exists()


def interpreter(recipe: Recipe) -> Path:
    """Return the environment's python. Raises EnvironmentMissing unless it is installed."""
    if not is_installed(recipe):
        state = "is half built or outdated" if recipe.place.exists() else "is not installed"
        raise EnvironmentMissing(f"{recipe.name} {state} ({recipe.place}): {recipe.how}")
    return recipe.place / "bin" / "python"


def install(recipe: Recipe, log: Callable[[str], None]) -> Path:
    """Make the environment unless it is installed, and return its folder.

    An incomplete one is removed first; a second installation waits for the first.

    Raises:
        EnvironmentMissing: there is no disk space or no Python 3.11, the folder holds something
            else, or a step fails; then the message has the end of its output.
    """
    place = recipe.place
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_installed(recipe):
            build(recipe, make_room(recipe, log), log)
    log(f"{recipe.name} is installed: {place}")
    return place


def make_room(recipe: Recipe, log: Callable[[str], None]) -> str:
    """Remove an incomplete environment, check the disk space, and return the python to use."""
    python, place = shutil.which(INTERPRETER), recipe.place
    if python is None:
        raise EnvironmentMissing(f"{recipe.name} needs {INTERPRETER} on PATH; it is not there")
    if place.exists():
        if any(place.iterdir()) and not (place / "pyvenv.cfg").is_file():
            raise EnvironmentMissing(f"{place} is not a Python environment: move it away")
        log(f"removing the half-built {place}")
        shutil.rmtree(place)
    free = shutil.disk_usage(place.parent).free
    if free < recipe.needed_bytes:
        raise EnvironmentMissing(
            f"{place.parent} has {free / GIB:.1f} GiB free, {recipe.name} needs "
            f"{recipe.needed_bytes / GIB:.0f}: make room, or name another folder in "
            f"{recipe.variable}"
        )
    return python


def build(recipe: Recipe, python: str, log: Callable[[str], None]) -> None:
    """Run the steps of a recipe, and write the stamp."""
    own = str(recipe.place / "bin" / "python")
    first = {"make a virtual environment": [[python, "-m", "venv", str(recipe.place)]]}
    for what, ways in {**first, **recipe.steps(own)}.items():
        log(what)
        for command in ways:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode == 0:
                break
        else:
            tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
            raise EnvironmentMissing(f"could not {what} in {recipe.place}:\n{tail}")
    write_json(recipe.place / recipe.stamp, recipe.stamped)


def pip(python: str) -> list[str]:
    """Return the beginning of a pip command."""
    return [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]

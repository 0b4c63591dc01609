"""Python environments of other engines, kept in the user's cache: made whole, or made anew."""

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specjax.files import write_json

INTERPRETER = "python3.11"
GIB = 2**30


class EnvironmentMissing(RuntimeError):
    """An environment is absent or cannot be made; the message says how to get it."""


class Recipe(NamedTuple):
    """What an environment is made of."""

    name: str  # what messages call it
    place: Path
    stamp: str  # a file in it, written last: a folder without it is half built
    stamped: Mapping[str, Any]  # what the stamp holds
    steps: Callable[[str], Mapping[str, Sequence[Sequence[str]]]]  # of its python: ways to do each
    needed_bytes: int
    variable: str  # of the environment: another folder to keep it in
    how: str  # a user gets it


def cache_folder(variable: str, name: str) -> Path:
    """Return the folder that ``variable`` names, or ``name`` in the user's cache of specjax."""
    said = os.environ.get(variable, "").strip()
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    root = Path(said) if said else Path(caches) / "specjax" / name
    return root.expanduser()


def is_installed(recipe: Recipe) -> bool:
    """Say whether the environment is whole, and the one that this version wants."""
    try:
        stamped = json.loads((recipe.place / recipe.stamp).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return stamped == recipe.stamped and (recipe.place / "bin" / "python").exists()


def interpreter(recipe: Recipe) -> Path:
    """Return its Python. Raises EnvironmentMissing when it is absent or half built."""
    if not is_installed(recipe):
        state = "is half built or outdated" if recipe.place.exists() else "is not installed"
        raise EnvironmentMissing(f"{recipe.name} {state} ({recipe.place}): {recipe.how}")
    return recipe.place / "bin" / "python"


def install(recipe: Recipe, say: Callable[[str], None]) -> Path:
    """Make the environment unless it is there; a half-built one is made anew.

    A second installation waits for the first. Raises EnvironmentMissing, naming the step that
    failed and the end of what it said, when there is no room, no Python 3.11, a step fails, or
    something else is in the way.
    """
    place = recipe.place
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_installed(recipe):
            build(recipe, make_room(recipe, say), say)
    say(f"{recipe.name} is installed: {place}")
    return place


def make_room(recipe: Recipe, say: Callable[[str], None]) -> str:
    """Clear what an earlier try left, and only that; return the Python to build with."""
    python, place = shutil.which(INTERPRETER), recipe.place
    if python is None:
        raise EnvironmentMissing(f"{recipe.name} needs {INTERPRETER} on PATH; it is not there")
    if place.exists():
        if any(place.iterdir()) and not (place / "pyvenv.cfg").is_file():
            raise EnvironmentMissing(f"{place} is not a Python environment: move it away")
        say(f"removing the half-built {place}")
        shutil.rmtree(place)
    free = shutil.disk_usage(place.parent).free
    if free < recipe.needed_bytes:
        raise EnvironmentMissing(
            f"{place.parent} has {free / GIB:.1f} GiB free, {recipe.name} needs "
            f"{recipe.needed_bytes / GIB:.0f}: make room, or name another folder in "
            f"{recipe.variable}"
        )
    return python


def build(recipe: Recipe, python: str, say: Callable[[str], None]) -> None:
    """Install everything, step by step; the stamp comes last."""
    own = str(recipe.place / "bin" / "python")
    first = {"make a virtual environment": [[python, "-m", "venv", str(recipe.place)]]}
    for what, ways in {**first, **recipe.steps(own)}.items():
        say(what)
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

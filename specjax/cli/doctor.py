"""``specjax doctor``: what is installed, what is missing, and where things are."""

import importlib.metadata
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path

from specjax import __version__
from specjax.bundled import BUNDLED
from specjax.compile_cache import cache_folder, probe
from specjax.oracle import environment

REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(.*extra == ['\"](?P<extra>\w+)['\"])?")
VARIABLES = (
    "JAX_PLATFORMS",
    "XLA_FLAGS",
    "OMP_NUM_THREADS",
    "SPECJAX_COMPILE_CACHE",
    environment.VARIABLE,
)
GIB = 2**30


def examine(say: Callable[[str], None]) -> bool:
    """Report line by line; return whether specjax can run."""
    say(f"specjax    {__version__}, {Path(__file__).parents[1]}")
    say(f"python     {platform.python_version()}, {platform.platform()}")
    needed = requirements()
    base = {name: version(name) for name in needed.pop("", [])}
    say("packages   " + ", ".join(f"{name} {found or 'MISSING'}" for name, found in base.items()))
    working = None not in base.values()
    say(f"devices    {devices()}")
    say(f"cores      {threads()}")
    say(f"memory     {memory()}")
    say(f"cache      {cache()}")
    for name, folder in BUNDLED.items():
        file = folder / "model.safetensors"
        size = f"{file.stat().st_size / 1e6:.1f} MB" if file.is_file() else "MISSING"
        say(f"{name:<14} {size}, {folder}")
        working &= file.is_file()
    for extra, names in needed.items():
        missing = [name for name in names if version(name) is None]
        remedy = f"missing {', '.join(missing)}: pip install 'specjax[{extra}]'"
        say(f"extra {extra:<8} {remedy if missing else 'installed'}")
    say(f"oracle     {oracle()}")
    for name in VARIABLES:
        if name in os.environ:
            say(f"{name}={os.environ[name]}")
    return working


def oracle() -> str:
    """Say where the vLLM oracle is, or how to get it."""
    try:
        return f"vLLM in {environment.interpreter()}"
    except environment.OracleMissing as missing:
        return str(missing)


def requirements() -> dict[str, list[str]]:
    """Return the names of required packages by extra; "" has those that are always needed."""
    found: dict[str, list[str]] = {"": []}
    try:
        lines = importlib.metadata.requires("specjax") or []
    except importlib.metadata.PackageNotFoundError:
        return found
    for line in lines:
        match = REQUIREMENT.match(line)
        if match:
            found.setdefault(match["extra"] or "", []).append(match["name"])
    return found


def version(name: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def devices() -> str:
    """Return what JAX sees, or why it sees nothing."""
    try:
        import jax

        return f"{jax.default_backend()}: {', '.join(map(str, jax.devices()))}"
    except (ImportError, RuntimeError) as error:
        return f"NONE: {error}"


def threads() -> str:
    """Return how many cores there are, and how many this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{usable} usable of {os.cpu_count()}"


def memory() -> str:
    """Return total and available memory."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
        total, free = sizes["MemTotal"] / GIB, sizes["MemAvailable"] / GIB
        return f"{free:.1f} GiB available of {total:.1f}"
    except (OSError, KeyError, ValueError):
        return "unknown"


def cache() -> str:
    """Return where compiled programs are kept, how many, and whether it works."""
    try:
        folder = cache_folder()
        if folder is None:
            return "off"
        probe(folder)
        files = [file.stat().st_size for file in folder.iterdir() if file.is_file()]
        return f"{folder}, writable, {len(files)} files, {sum(files) / 1e6:.1f} MB"
    except (OSError, RuntimeError) as error:
        return f"NOT WRITABLE: {error}; set SPECJAX_COMPILE_CACHE to a writable folder"

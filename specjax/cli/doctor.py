"""``specjax doctor``: report what is installed, what is missing, and where files are."""

import importlib.metadata
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path

from specjax import __version__
from specjax.bundled import BUNDLED
from specjax.host.compile_cache import cache_folder, probe
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


def examine(echo: Callable[[str], None]) -> bool:
    """Report by calling ``echo`` for each line; return whether specjax can run."""
    echo(f"specjax    {__version__}, {Path(__file__).parents[1]}")
    echo(f"python     {platform.python_version()}, {platform.platform()}")
    needed = requirements()
    base = {name: version(name) for name in needed.pop("", [])}
    echo("packages   " + ", ".join(f"{name} {found or 'MISSING'}" for name, found in base.items()))
    working = None not in base.values()
    echo(f"devices    {devices()}")
    echo(f"cores      {threads()}")
    echo(f"memory     {memory()}")
    echo(f"cache      {cache()}")
    for name, folder in BUNDLED.items():
        file = folder / "model.safetensors"
        size = f"{file.stat().st_size / 1e6:.1f} MB" if file.is_file() else "MISSING"
        echo(f"{name:<14} {size}, {folder}")
        working &= file.is_file()
    for extra, names in needed.items():
        missing = [name for name in names if version(name) is None]
        remedy = f"missing {', '.join(missing)}: pip install 'specjax[{extra}]'"
        echo(f"extra {extra:<8} {remedy if missing else 'installed'}")
    echo(f"oracle     {oracle()}")
    for name in VARIABLES:
        if name in os.environ:
            echo(f"{name}={os.environ[name]}")
    return working


def oracle() -> str:
    """Return where the vLLM oracle is, or how to install it."""
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
    """Return JAX's devices, or why there are none."""
    try:
        import jax

        return f"{jax.default_backend()}: {', '.join(map(str, jax.devices()))}"
    except (ImportError, RuntimeError) as error:
        return f"NONE: {error}"


def threads() -> str:
    """Return the number of cores, and of those this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{usable} usable of {os.cpu_count()}"


def memory() -> str:
    """Return total and available memory."""
    sizes = _meminfo()
    if sizes is None:
        return "unknown"
    return f"{sizes['MemAvailable'] / GIB:.1f} GiB available of {sizes['MemTotal'] / GIB:.1f}"


def available_memory() -> int | None:
    """Return the bytes that JAX's default devices have free, together; None if unknown."""
    import jax

    devices = jax.local_devices()
    if devices[0].platform == "cpu":
        sizes = _meminfo()
        return None if sizes is None else sizes["MemAvailable"]
    found = [device.memory_stats() or {} for device in devices]
    if not all({"bytes_limit", "bytes_in_use"} <= stats.keys() for stats in found):
        return None
    return sum(stats["bytes_limit"] - stats["bytes_in_use"] for stats in found)


def _meminfo() -> dict[str, int] | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
        return sizes if {"MemTotal", "MemAvailable"} <= sizes.keys() else None
    except (OSError, IndexError, ValueError):
        return None


def cache() -> str:
    """Return the folder of compiled programs, its size, and whether it is writable."""
    try:
        folder = cache_folder()
        if folder is None:
            return "off"
        probe(folder)
        files = [file.stat().st_size for file in folder.iterdir() if file.is_file()]
        return f"{folder}, writable, {len(files)} files, {sum(files) / 1e6:.1f} MB"
    except (OSError, RuntimeError) as error:
        return f"NOT WRITABLE: {error}; set SPECJAX_COMPILE_CACHE to a writable folder"

"""Keep compiled programs between runs, in the user's cache folder."""

import hashlib
import os
import platform
import tempfile
import warnings
from pathlib import Path

VARIABLE = "SPECJAX_COMPILE_CACHE"  # a folder, or one of OFF
OFF = ("off", "0", "false", "no")


def cache_folder() -> Path | None:
    """Return the default folder of compiled programs; None if the environment turns it off.

    Machines with different processors get different folders: a home folder may be shared,
    and a program compiled for one CPU can crash on another.

    Raises:
        RuntimeError: there is no home folder.
    """
    given = os.environ.get(VARIABLE, "").strip()
    if given.lower() in OFF:
        return None
    if given:
        return Path(given).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "specjax" / "jax" / machine()


def enable_compile_cache(folder: str | Path | None = None) -> Path | None:
    """Keep all compiled programs and kernels; return the folder, or None if none is used.

    ``folder`` None means `cache_folder`; a folder already given to JAX itself
    (``JAX_COMPILATION_CACHE_DIR``) is used instead. A folder that cannot be written gives one
    warning, never an error.
    """
    import jax

    from specjax.host.kernel_files import KernelFiles
    from specjax.kernels.machine_code import use_store

    given = getattr(jax.config, "jax_compilation_cache_dir", None)
    if given and folder is None:
        return Path(given)
    try:
        folder = cache_folder() if folder is None else Path(folder)
        if folder is None:
            return None
        probe(folder)
    except (OSError, RuntimeError) as error:
        warnings.warn(
            f"compiled programs are not kept for the next run: {error}. "
            f"Set {VARIABLE} to a writable folder, or to off.",
            stacklevel=2,
        )
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    use_store(KernelFiles(folder))
    return folder


def probe(folder: Path) -> None:
    """Make a folder if it is missing, and check that files can be written to it.

    Raises:
        OSError: they cannot: it is read-only, full, or not a folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.write(bytes(4096))


def machine() -> str:
    """Return a short name for this kind of processor."""
    facts = platform.machine() + platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        facts += "".join(
            sorted(
                {
                    line
                    for line in lines
                    if line.startswith(("model name", "flags", "CPU part", "Features"))
                }
            )
        )
    except OSError:
        pass
    return f"{platform.machine() or 'cpu'}-{hashlib.sha256(facts.encode()).hexdigest()[:8]}"

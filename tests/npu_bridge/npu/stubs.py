"""Import the real torch_npu on a machine without CANN: link stubs that fail, made at test time.

The wheel lacks six libraries of CANN. Their C functions are read off the wheel's own undefined
symbols, and each becomes one line that returns an error (there are no devices). So schemas,
Meta kernels and FakeTensors are real, and whatever would execute raises. Never shipped.
"""

import ctypes
import importlib.util
import os
import re
import subprocess
from pathlib import Path

FAILED = 507899  # ACL_ERROR_RT_DRV_INTERNAL_ERROR
IGNORED = ("_Z", "_ITM_", "__gmon_start__", "__cxa_finalize")  # C++, and what may be absent


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def undefined(library: Path) -> set[str]:
    """List the plain C functions a library wants from elsewhere."""
    lines = output("nm", "-D", "--undefined-only", str(library)).splitlines()
    names = {line.split()[-1].split("@")[0] for line in lines if line.split()}
    return {name for name in names if not name.startswith(IGNORED)}


def defined(library: Path) -> set[str]:
    """List the functions a library has."""
    lines = output("nm", "-D", "--defined-only", str(library)).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if line.split()}


def torch_libraries() -> list[Path]:
    import torch

    return sorted((Path(torch.__file__).parent / "lib").glob("lib*.so*"))


def needed(library: Path) -> set[str]:
    """List the libraries that a library asks for."""
    lines = output("readelf", "-d", str(library)).splitlines()
    return {m[1] for m in (re.search(r"NEEDED.*\[(.*)\]", line) for line in lines) if m}


def write_stubs(folder: Path) -> tuple[list[str], int]:
    """Compile a stub of every library that is missing; return their paths and the functions."""
    spec = importlib.util.find_spec("torch_npu")
    assert spec is not None, "torch_npu is not installed"
    assert spec.origin is not None
    home = Path(spec.origin).parent
    libraries = [p for p in home.rglob("*.so*") if p.is_file()]
    ours = {p.name for p in libraries}
    loaded = [ctypes.CDLL(None), *map(ctypes.CDLL, map(str, torch_libraries()))]
    names = set().union(*map(undefined, libraries))
    own = set().union(*map(defined, libraries))
    names = {n for n in names - own if not any(hasattr(one, n) for one in loaded)}
    wanted = set().union(*map(needed, libraries)) - ours
    missing = sorted(name for name in wanted if not loadable(name))
    source = folder / "stubs.c"
    lines = [f"int {name}() {{ return {FAILED}; }}" for name in sorted(names)]
    count = "int aclrtGetDeviceCount(unsigned *n) { *n = 0; return 0; }"
    lines = [count if "aclrtGetDeviceCount(" in line else line for line in lines]
    source.write_text("\n".join(lines) + "\n")
    paths = []
    for i, name in enumerate(missing):
        path = folder / name
        body = [str(source)] if i == 0 else ["-x", "c", os.devnull]
        output("cc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{name}", *body, "-o", str(path))
        paths.append(str(path))
    return paths, len(lines)


def loadable(name: str) -> bool:
    """Whether a library is on this machine, or comes with torch."""
    if name.startswith(("libtorch", "libc10")):
        return True
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def import_torch_npu(folder: Path):
    """Import torch_npu over the stubs; return it with the number of libraries and functions."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import torch  # noqa: F401 (its libraries come first)

    paths, functions = write_stubs(folder)
    for path in paths:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    import torch_npu

    return torch_npu, len(paths), functions

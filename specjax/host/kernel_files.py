"""Keep the machine code of kernels in a folder, beside JAX's compiled programs."""

import contextlib
import hashlib
import os
from pathlib import Path

from specjax import kernels
from specjax.kernels.machine_code import describe_target


class KernelFiles:
    """A ``kernels.machine_code.Store``: a file per kernel, of these sources and this processor."""

    def __init__(self, folder: Path):
        sources = sorted(Path(kernels.__path__[0]).glob("*.py"))
        facts = [describe_target(), *(file.read_text(encoding="utf-8") for file in sources)]
        self._folder = folder
        self._version = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]

    def read(self, name: str) -> bytes | None:
        """Return a kernel's object file, None if it is not there."""
        try:
            return self._file(name).read_bytes()
        except OSError:
            return None

    def keep(self, name: str, code: bytes) -> None:
        """Write a kernel's object file, whole or not at all."""
        file = self._file(name)
        new = file.with_suffix(f".{os.getpid()}")
        try:
            new.write_bytes(code)
            new.replace(file)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink()

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}-{self._version}.o"

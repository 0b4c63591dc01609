"""Borrow functions of an installed engine without importing the engine.

Importing vllm-ascend needs an NPU's driver, importing tpu-inference needs vLLM and a TPU's
libraries. The samplers of both are plain functions of arrays: so one file is read where it is
installed, and the functions in it run as they ship, with the names they look up handed in.
"""

import __future__

import ast
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any


class NotInstalled(RuntimeError):
    """An engine is not there; the message says how to get it."""


def borrow(package: str, file: str, how: str, **names: Any) -> dict[str, Any]:
    """Define the functions and constants of ``file`` in a package; ``names`` are its globals.

    Raises NotInstalled, with ``how``, when the package or the file is not there.
    """
    found = importlib.util.find_spec(package)
    folders = [] if found is None else found.submodule_search_locations or []
    paths = [Path(folder) / file for folder in folders if (Path(folder) / file).is_file()]
    if not paths:
        raise NotInstalled(f"{package} is not installed: {how}")
    path = paths[0]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.Assign)]
    lazily = __future__.annotations.compiler_flag  # annotations name what is not imported
    exec(compile(tree, str(path), "exec", flags=lazily, dont_inherit=True), names)
    return names


def version(package: str) -> str:
    """Return the version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"

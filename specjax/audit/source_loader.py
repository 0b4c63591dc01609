"""Load functions from an installed engine's source file without importing the engine.

Importing vllm-ascend needs an NPU's driver, importing tpu-inference needs vLLM and a TPU's
libraries. The samplers of both are plain functions of arrays, so one source file is read from the
installed package and its functions are defined with their imported names passed in as globals.
"""

import __future__

import ast
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any


class NotInstalled(RuntimeError):
    """An engine is not installed; the message contains the command that installs it."""


def load_source(package: str, file: str, how: str, **names: Any) -> dict[str, Any]:
    """Return the functions and constants of one source file of a package, without its imports.

    Args:
        package: the installed package; it is located, not imported.
        file: path of the source file inside the package.
        how: how to install the package, for the error message.
        names: the globals that the file would have imported.

    Raises:
        NotInstalled: the package or the file is missing.
    """
    path = find_source(package, file, how)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.Assign)]
    lazily = __future__.annotations.compiler_flag  # annotations may name what is not imported
    exec(compile(tree, str(path), "exec", flags=lazily, dont_inherit=True), names)
    return names


def find_source(package: str, file: str, how: str) -> Path:
    """Return the path of a package's file, without importing the package. Raises NotInstalled."""
    found = importlib.util.find_spec(package)
    folders = [] if found is None else found.submodule_search_locations or []
    paths = [Path(folder) / file for folder in folders if (Path(folder) / file).is_file()]
    if not paths:
        raise NotInstalled(f"{package} is not installed: {how}")
    return paths[0]


def version(package: str) -> str:
    """Return the version of an installed package, or "unknown"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"

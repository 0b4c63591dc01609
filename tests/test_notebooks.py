"""Every notebook runs from top to bottom, offline, and is kept without outputs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jupytext
import nbformat
import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))
SECONDS = float(os.environ.get("SPECJAX_NOTEBOOK_SECONDS", "120"))  # per notebook

KERNEL = "specjax-tests"
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "MPLBACKEND": "agg",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    # A proxy nobody listens at: a library that tries the network fails at once.
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "",
}


# Jupyter warns about itself and leaves sockets to the garbage collector: it runs in a process
# of its own, so that warnings stay errors in this one.
RUNNER = """
import sys, nbformat
from nbclient import NotebookClient
source, result, kernel, folder = sys.argv[1:]
notebook = nbformat.read(source, as_version=4)
where = {"metadata": {"path": folder}}
NotebookClient(notebook, kernel_name=kernel, timeout=None, resources=where).execute()
nbformat.write(notebook, result)
"""


def describe_kernel(folder: Path) -> None:
    """Describe this very interpreter as a kernel; none needs to be installed."""
    spec = folder / "kernels" / KERNEL
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    described = {"argv": argv, "display_name": KERNEL, "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(described))


def environment(folder: Path) -> dict[str, str]:
    """Return the kernel's environment: offline, with the tests' compile cache, if any."""
    ours = {name: str(folder) for name in ("JUPYTER_PATH", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}
    cache = jax.config.jax_compilation_cache_dir
    if cache:
        ours["JAX_COMPILATION_CACHE_DIR"] = str(cache)
        ours["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    return {**os.environ, **OFFLINE, **ours}


def test_there_are_notebooks():
    assert {path.stem[:2] for path in NOTEBOOKS} == {f"{number:02}" for number in range(1, 12)}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path):
    describe_kernel(tmp_path)
    source, result = tmp_path / f"{path.stem}.ipynb", tmp_path / "executed.ipynb"
    jupytext.write(jupytext.read(path, fmt="py:percent"), source)
    command = [sys.executable, "-c", RUNNER, source, result, KERNEL, FOLDER]
    done = subprocess.run(
        list(map(str, command)), env=environment(tmp_path), timeout=SECONDS, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout  # the cell and its traceback
    cells = nbformat.read(result, as_version=4).cells
    outputs = [out for cell in cells for out in cell.get("outputs", ())]
    assert any("image/png" in out.get("data", {}) for out in outputs), "no figure was shown"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_source_is_text_without_outputs(path):
    source = path.read_text(encoding="utf-8")
    assert "image/png" not in source
    notebook = jupytext.reads(source, fmt="py:percent")
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    assert "中文摘要" in source


def test_no_executed_notebook_is_kept():
    assert not list(FOLDER.rglob("*.ipynb"))

"""Every notebook runs from top to bottom, offline, and is kept without outputs."""

import json
import os
import sys
import warnings
from pathlib import Path

import jax
import pytest

with warnings.catch_warnings():  # jupyter's own deprecations, at import, are not ours to fix
    warnings.simplefilter("ignore", DeprecationWarning)
    import jupytext
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))
SECONDS = 120

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


def kernel_in(folder: Path) -> AsyncKernelManager:
    """Describe this very interpreter as a kernel; no kernel needs to be installed."""
    spec = folder / "kernels" / KERNEL
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    described = {"argv": argv, "display_name": KERNEL, "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(described))
    specs = KernelSpecManager(kernel_dirs=[str(folder / "kernels")])
    return AsyncKernelManager(kernel_name=KERNEL, kernel_spec_manager=specs)


def environment(folder: Path) -> dict[str, str]:
    """Return the kernel's environment: offline, with the tests' compile cache, if any."""
    kept = {**os.environ, **OFFLINE, "IPYTHONDIR": str(folder), "JUPYTER_RUNTIME_DIR": str(folder)}
    cache = jax.config.jax_compilation_cache_dir
    if cache:
        kept["JAX_COMPILATION_CACHE_DIR"] = str(cache)
        kept["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    return kept


def test_there_are_notebooks():
    assert "02_draft_and_verify" in [path.stem for path in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# zmq's and tornado's clean-up after the kernel's death is theirs; nothing of ours runs here.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_notebook_runs(path, tmp_path, monkeypatch):
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    notebook = jupytext.read(path, fmt="py:percent")
    manager = kernel_in(tmp_path)
    client = NotebookClient(
        notebook,
        km=manager,
        timeout=SECONDS,
        allow_errors=False,
        resources={"metadata": {"path": str(FOLDER)}},
    )
    client.execute()  # raises CellExecutionError with the cell and its traceback
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code if cell.source.strip())
    shown = [out for cell in code for out in cell.outputs if "image/png" in out.get("data", {})]
    assert shown, "a notebook shows at least one figure"


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

"""Run a notebook from top to bottom, offline, and write it with its outputs.

``python docs/tools/execute_notebook.py notebooks/02_draft_and_verify.py out.ipynb``. Ends with the
failing cell and its traceback if a cell fails.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

KERNEL = "specjax"
# A page has no kernel: pictures where a notebook has sliders, also if ipywidgets is installed.
PICTURES = "--IPKernelApp.exec_lines=import sys; sys.modules['ipywidgets'] = None"
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "MPLBACKEND": "agg",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    # A proxy that nobody listens at: a library that tries the network fails at once.
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "",
}


def execute(source: Path, result: Path, folder: Path) -> None:
    """Run a py:percent source in its own folder; ``folder`` is for Jupyter's files."""
    for name in ("JUPYTER_PATH", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        os.environ[name] = str(folder)
    os.environ.update(OFFLINE)
    import jupytext  # reads the environment when it is imported
    import nbformat
    from nbclient import NotebookClient

    spec = folder / "kernels" / KERNEL  # this very interpreter: no kernel need be installed
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", PICTURES]
    described = {"argv": argv, "display_name": KERNEL, "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(described))
    notebook = jupytext.read(source, fmt="py:percent")
    where = {"metadata": {"path": str(source.parent)}}
    NotebookClient(notebook, kernel_name=KERNEL, timeout=None, resources=where).execute()
    result.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, result)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        execute(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), Path(scratch))

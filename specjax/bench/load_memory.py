"""The peak memory of loading a checkpoint, measured in a separate process."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax

from specjax.bench.report import Row, compare
from specjax.core.types import PyTree
from specjax.models.config import ModelConfig
from specjax.weights.save import save_model

ALLOWED = 1.3  # times the weights
OVERHEAD = 400e6  # bytes: the interpreter, JAX and its threads

LOAD = """
import json, sys
from specjax.host.machine import peak_bytes
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params
config, _ = read_config(sys.argv[1], dtype=sys.argv[2])
params = load_params(sys.argv[1], config)
print(json.dumps(peak_bytes()))
"""


def peak_rows(config: ModelConfig, weights: PyTree, echo: Callable[[str], None]) -> list[Row]:
    """Return the row of the peak RSS of loading these weights from a temporary folder."""
    if not Path("/proc/self/status").is_file():
        echo("peak memory: not measured, this system has no /proc/self/status")
        return []
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(weights))
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), config, weights, dtype=config.dtype)
        command = [sys.executable, "-c", LOAD, folder, config.dtype]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        echo(f"peak memory: not measured, loading failed: {done.stderr.strip().splitlines()[-1]}")
        return []
    peak, bound = json.loads(done.stdout), ALLOWED * size + OVERHEAD
    name = f"peak RSS of loading {size / 1e6:.0f} MB"
    against = f"{ALLOWED} x weights + {OVERHEAD / 1e6:.0f} MB"
    return [compare(name, peak / 1e6, "MB", bound / 1e6, against, at_most=1.0)]

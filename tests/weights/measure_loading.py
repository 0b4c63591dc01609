"""Measure loading a made-up checkpoint of several files onto several devices or processes.

    python -m tests.weights.measure_loading --gigabytes 2 --files 16 --devices 2
    python -m tests.weights.measure_loading --gigabytes 2 --files 16 --processes 2

The checkpoint is float16, of ones, in a temporary folder. Each process prints what it keeps, its
peak above what stood before, and what it reads; the last line is a row for a document.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import jax

from specjax.engine.device import SPLIT_INPUTS
from specjax.launch.__main__ import free_ports
from specjax.models.build import shapes
from specjax.theory import split_loading
from specjax.weights.hf_config import parse_config
from tests.weights.test_memory import CHILD, write

CONFIG = {  # 126 MB a layer, 268 MB of tables
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32768,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
LAYER, TABLES = 126e6, 268e6


def sizes(config: dict) -> tuple[float, float, float]:
    """Return the bytes of matrices split by rows, by columns, and of what is copied."""
    found = [0.0, 0.0, 0.0]
    for keys, leaf in jax.tree_util.tree_flatten_with_path(shapes(parse_config(config)))[0]:
        columns = any(key.key in SPLIT_INPUTS for key in keys)
        found[2 if len(leaf.shape) == 1 else columns] += 2 * leaf.size
    return found[0], found[1], found[2]


def main() -> None:
    """Make the checkpoint, load it, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--devices", type=int, default=2, help="of the one process")
    parser.add_argument("--processes", type=int, default=1, help="of one device each")
    given = parser.parse_args()
    devices = given.devices if given.processes == 1 else given.processes
    layers = round((given.gigabytes * 1e9 - TABLES) / LAYER)
    config = CONFIG | {"num_hidden_layers": layers}
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), config, given.files)
        command = [sys.executable, "-c", CHILD, name, "float16", str(devices), ""]
        env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
        env["JAX_NUM_CPU_DEVICES"] = str(devices if given.processes == 1 else 1)
        port, places = free_ports(), [[]]
        if given.processes > 1:
            places = [[str(given.processes), str(i), str(port)] for i in range(given.processes)]
        started = [
            subprocess.Popen([*command, *place], stdout=subprocess.PIPE, text=True, env=env)
            for place in places
        ]
        said = [process.communicate()[0] for process in started]
    lines = [json.loads(text) for text in said if text]
    for line in lines:
        print({name: f"{value / 1e6:,.0f} MB" for name, value in line.items()})
    told = split_loading(*sizes(config), num_hosts=given.processes)
    print(f"split_loading: keeps {told.held / 1e6:,.0f} MB, reads {told.read / 1e6:,.0f} MB")
    one = lines[0]
    print(
        f"| {devices} | {given.processes} | {one['size'] / 1e6:,.0f} | {one['most'] / 1e6:,.0f} "
        f"| {one['most'] / one['size']:.2f} | {one['read'] / 1e6:,.0f} | {told.read / 1e6:,.0f} |"
    )


if __name__ == "__main__":
    main()

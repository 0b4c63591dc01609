"""Loading costs little more memory than the weights it returns."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from specjax.models.build import shapes
from specjax.weights.hf_config import parse_config
from specjax.weights.names import LLAMA, tensor_name

CONFIG = {  # about 200 MiB in float32, a third of it one tensor
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32768,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
# VmHWM, not getrusage: ru_maxrss survives exec, so a child would report pytest's own peak.
CHILD = r"""
import json, pathlib, re, sys
import jax
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params
folder, dtype = sys.argv[1:]
params = load_params(folder, read_config(folder, dtype)[0])
size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
status = pathlib.Path("/proc/self/status").read_text()
peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
print(json.dumps({"size": size, "peak": peak}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A float16 checkpoint, written tensor after tensor, all ones."""
    folder = tmp_path_factory.mktemp("large")
    header, end = {}, 0
    for keys, leaf in jax.tree_util.tree_flatten_with_path(shapes(parse_config(CONFIG)))[0]:
        start, end = end, end + 2 * leaf.size
        name = tensor_name(tuple(key.key for key in keys), LLAMA)
        header[name] = {"dtype": "F16", "shape": leaf.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    with (folder / "model.safetensors").open("wb") as handle:
        handle.write(len(text).to_bytes(8, "little") + text)
        block = np.ones(1 << 20, np.float16).tobytes()
        for start in range(0, end, len(block)):
            handle.write(block[: end - start])
    return folder


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_peak_memory_is_the_weights_and_a_little(folder, dtype):
    ran = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), dtype],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert said["size"] > (150 << 20) * (1 if dtype == "float32" else 0.5)
    assert said["peak"] <= 1.3 * said["size"] + (400 << 20), said

"""Loading costs little more memory than the weights it returns: three times the largest tensor.

Each byte is read once, whatever devices keep it.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from specjax.models.build import shapes
from specjax.weights.hf_config import parse_config
from specjax.weights.names import LLAMA, tensor_name

CONFIG = {  # about 180 MiB in float32; the largest tensor has 32
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 16384,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 10,
    "num_attention_heads": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
FILES = 5
SIZES = {"F16": 2, "F8_E4M3": 1, "F32": 4}
# VmHWM, not getrusage: ru_maxrss survives exec, so a child would report pytest's own peak.
CHILD = r"""
import json, pathlib, re, sys
import jax
from specjax.engine.device import choose_devices, sharding
from functools import partial
from specjax.host import group
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params
def peak():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
def read():
    return int(re.search(r"rchar: (\d+)", pathlib.Path("/proc/self/io").read_text())[1])
folder, dtype, devices, keep, *place = sys.argv[1:]
if place:
    group.join(group.Place(int(place[0]), int(place[1]), "127.0.0.1", int(place[2])))
mesh = choose_devices("cpu", int(devices))
jax.block_until_ready(jax.device_put(jax.numpy.ones(8), mesh.devices.flat[0]))
before, already = peak(), read()
config = read_config(folder, dtype)[0]
where = mesh.devices.flat[0] if mesh.size == 1 else partial(sharding, mesh, config)
params = load_params(folder, config, where, keep_dtype=keep == "keep")
leaves = jax.tree.leaves(params)
size = sum(shard.data.nbytes for leaf in leaves for shard in leaf.addressable_shards)
print(json.dumps({"size": size, "largest": max(leaf.nbytes for leaf in leaves),
                  "most": peak() - before, "read": read() - already}))
"""


def write(folder, config, files=FILES):
    """Write a checkpoint of several files, tensor after tensor, all ones."""
    packed, tensors = "quantization_config" in config, {}
    for keys, leaf in jax.tree_util.tree_flatten_with_path(shapes(parse_config(config)))[0]:
        name = tensor_name(tuple(key.key for key in keys), LLAMA)
        matrix = packed and name.endswith("proj.weight")
        tensors[name] = "F8_E4M3" if matrix else "F16", leaf.shape
        if matrix:
            tensors[f"{name}_scale_inv"] = "F32", [-(-size // 128) for size in leaf.shape]
    names, placed = list(tensors), {}
    for number in range(files):
        file, header, end = f"part-{number}.safetensors", {}, 0
        for name in names[number::files]:
            dtype, shape = tensors[name]
            start, end, placed[name] = end, end + SIZES[dtype] * math.prod(shape), file
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
        text = json.dumps(header).encode()
        with (folder / file).open("wb") as handle:
            handle.write(len(text).to_bytes(8, "little") + text)
            for name in names[number::files]:
                dtype, shape = tensors[name]
                one = {"F16": b"\x00\x3c", "F8_E4M3": b"\x38", "F32": np.float32(1).tobytes()}
                handle.write(one[dtype] * math.prod(shape))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    plain, fp8 = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("fp8")
    more = {"quantization_config": FP8, "torch_dtype": "bfloat16"}
    return {"plain": write(plain, CONFIG), "fp8": write(fp8, CONFIG | more)}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    ("which", "dtype", "devices", "keep"),
    [
        ("plain", "float32", 1, ""),
        ("plain", "float16", 1, ""),
        ("plain", "float32", 2, ""),
        ("fp8", "float32", 1, "keep"),
    ],
)
def test_peak_memory_is_the_weights_and_three_tensors(folders, which, dtype, devices, keep):
    command = [sys.executable, "-c", CHILD, str(folders[which]), dtype, str(devices), keep]
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    ran = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **flags, "JAX_PLATFORMS": "cpu"}
    )
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert said["size"] > (80 << 20)
    assert said["most"] <= said["size"] + 3 * said["largest"], said
    stored = sum(file.stat().st_size for file in folders[which].glob("*.safetensors"))
    assert stored <= said["read"] < 1.05 * stored  # headers too

"""Checkpoints with random weights are whole ones, in bfloat16."""

import dataclasses

import numpy as np
from safetensors import safe_open

from specjax import LLM, SamplingParams
from specjax.bench.plan import QWEN3_100M, QWEN3_600M
from specjax.bench.shapes import tensors, write_random
from specjax.weights.save import hf_config

TINY = dataclasses.replace(
    QWEN3_100M, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=4, num_kv_heads=2,
    head_dim=8, vocab_size=2100,
)  # fmt: skip


def test_a_random_checkpoint_loads_and_decodes(tmp_path):
    num_bytes = write_random(tmp_path, hf_config(TINY, dtype="bfloat16", end=0))
    with safe_open(tmp_path / "model.safetensors", framework="flax") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert {name: one.shape for name, one in found.items()} == dict(tensors(TINY))
    assert {str(one.dtype) for one in found.values()} == {"bfloat16"}
    assert sum(one.nbytes for one in found.values()) == num_bytes
    matrix = np.asarray(found["model.layers.1.mlp.down_proj.weight"], np.float32)
    assert 0.9 < matrix.std() * 48**0.5 < 1.1
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, detokenize=False)
    (done,) = LLM(str(tmp_path)).generate({"prompt_token_ids": [5, 2099]}, params, use_tqdm=False)
    assert len(done.outputs[0].token_ids) == 3


def test_the_shapes_have_the_sizes_in_their_names():
    for config, size in ((QWEN3_100M, 88e6), (QWEN3_600M, 596e6)):
        number = sum(int(np.prod(shape)) for _, shape in tensors(config))
        assert abs(number / size - 1) < 0.02

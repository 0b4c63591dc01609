"""Experts dealt out over devices: the texts are those of one device, each keeps its share."""

import dataclasses
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from specjax import LLM
from specjax.engine.device import check_divisible, inference_layout, mlp_columns
from specjax.models.config import Experts, ModelConfig
from tests.engine.test_published_drafters import checkpoint
from tests.weights import tiny
from tests.weights.test_mtp import add_layer

MTP = {"method": "mtp", "num_speculative_tokens": 2}
MODELS = {  # a variant of ``tests.weights.tiny``, how to draft for it, devices
    "qwen3-moe": ({"method": "ngram", "num_speculative_tokens": 2}, 2),
    "gpt-oss": (None, 4),
    "deepseek": (MTP, 2),
}
CHILD = r"""
import json, sys
import jax
from specjax import LLM, SamplingParams
folder, given, devices = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
prompts = [{"prompt_token_ids": [5, 6, 7] * 4}, {"prompt_token_ids": list(range(40, 70))}]
params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, logprobs=1)

def texts(devices, config):
    llm = LLM(folder, speculative_config=config, max_model_len=64, tensor_parallel_size=devices,
              enable_expert_parallel=True)
    done = [one.outputs[0] for one in llm.generate(prompts, params, use_tqdm=False)]
    weights = llm.core.params.target, llm.core.params.draft
    found = jax.tree_util.tree_flatten_with_path(weights)[0]
    stacks = [leaf for keys, leaf in found if "'experts'" in str(keys)]
    most = max(len(one.addressable_shards) for one in stacks)
    held = [sum(x.addressable_shards[i].data.nbytes for x in stacks) for i in range(most)]
    said = [[e[t].logprob for e, t in zip(one.logprobs, one.token_ids)] for one in done]
    return [one.token_ids for one in done], held, said, llm.counters.num_draft_tokens

print(json.dumps([texts(1, None), texts(devices, given)]))
"""


@pytest.mark.parametrize("variant", MODELS)
def test_devices_that_have_some_experts_each_say_what_one_says(variant, pair, tmp_path):
    config, devices = MODELS[variant]
    model = checkpoint(variant, pair, tmp_path)
    if config == MTP:  # its layer is a mixture too
        tiny.edit_config(tmp_path, num_nextn_predict_layers=1)
        add_layer(tmp_path, model, stacked=False)
    flags = f"--xla_force_host_platform_device_count={devices}"
    command = [sys.executable, "-c", CHILD, str(tmp_path), json.dumps(config), str(devices)]
    done = subprocess.run(
        command, capture_output=True, text=True,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (one, whole, alone, _), (many, held, shared, drafted) = json.loads(done.stdout)
    assert many == one
    assert len({*one[0], *one[1]}) > 4  # it says something
    for found, wanted in zip(shared, alone, strict=True):
        assert found == pytest.approx(wanted, abs=1e-4)
    layers = 2 if config == MTP else 1  # a second mixture
    assert len(held) == devices
    assert all(size == pytest.approx(whole[0] * layers / devices) for size in held)
    assert (drafted > 10) == (config == MTP)


FACTS = Experts(n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=20)
CONFIG = ModelConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=4,
    num_kv_heads=4, head_dim=8, max_position_embeddings=64,
    experts=FACTS,
)  # fmt: skip


def test_experts_that_do_not_divide_are_refused():
    devices = np.array(jax.devices()[:1] * 4).reshape(2, 2)
    mesh = jax.sharding.Mesh(devices, ("tensor", "tensor2"))
    config = dataclasses.replace(CONFIG, expert_axes=(("tensor", 2), ("tensor2", 2)))
    with pytest.raises(ValueError, match=r"does not divide the model's 6 experts: use one of \[1"):
        check_divisible(config, mesh)
    facts = dataclasses.replace(FACTS, n_routed_experts=8)
    check_divisible(dataclasses.replace(config, experts=facts), mesh)


def test_experts_that_are_dealt_out_need_no_columns_that_divide():
    facts = dataclasses.replace(FACTS, layers=(True, False), n_shared_experts=2, shared_size=36)
    mixed = dataclasses.replace(CONFIG, experts=facts)
    dealt = dataclasses.replace(mixed, expert_axes=(("tensor", 2),))
    assert (mlp_columns(CONFIG), mlp_columns(mixed), mlp_columns(dealt)) == (20, 4, 12)


def test_one_device_keeps_the_layout_of_one_device():
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("tensor",))
    assert inference_layout(CONFIG, mesh, "cpu", expert_parallel=True) == inference_layout(
        CONFIG, mesh, "cpu"
    )


def test_a_model_without_experts_is_refused():
    with pytest.raises(ValueError, match="the model has no experts, leave the option out"):
        LLM("bundled", enable_expert_parallel=True)

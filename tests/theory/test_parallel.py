"""What devices that share a model exchange: the formulas, and the programs that XLA compiles."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from specjax import theory
from specjax.theory import H200, NETWORK, NVLINK, QWEN3_0_6B, QWEN3_32B

TARGET = QWEN3_32B, theory.QWEN3_32B_SHAPE
DRAFT = QWEN3_0_6B, theory.QWEN3_0_6B_SHAPE
CHILD = r"""
import dataclasses, functools, json, re
import jax, jax.numpy as jnp, numpy as np
from specjax.core.topology import causal
from specjax.engine.device import check_divisible, choose_devices, inference_layout, sharding
from specjax.models.build import build_target, init_params
from specjax.models.config import Experts
from tests.laws.harness import TINY
dense = dataclasses.replace(TINY, num_heads=8, num_kv_heads=2, qk_norm=True)
facts = Experts(n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=16, bias=True)
mixed = dataclasses.replace(dense, experts=facts)
KINDS = "all-reduce|all-gather|collective-permute|all-to-all|reduce-scatter"
FOUND = rf"= (\S+) ({KINDS})(?:-start)?\("

@functools.partial(jax.jit, static_argnums=0)
def read(model, params, tokens, cache):
    places = jnp.broadcast_to(jnp.arange(4)[None], (2, 4))
    output, cache = model.forward(params, tokens, places, causal(4), cache, 64)
    return model.logits(params, output.hidden), cache

tokens, said = jnp.arange(8).reshape(2, 4), {}
CASES = {"1": dense, "2": dense, "4": dense, "1 mixed": mixed, "4 mixed": mixed, "4 dealt": mixed}
for name, config in CASES.items():
    mesh = choose_devices("cpu", int(name[0]))
    if "dealt" in name:
        config = inference_layout(config, mesh, "cpu", expert_parallel=True)
    check_divisible(config, mesh)
    model, params = build_target(config), init_params(config, jax.random.key(0))
    def place(keys, leaf):
        path = tuple(key.key for key in keys)
        return jax.device_put(leaf, sharding(mesh, config, path, leaf.shape))
    own = jax.tree_util.tree_map_with_path(place, params)
    logits, cache = read(model, own, tokens, model.init_cache(2, 64))
    text = read.lower(model, own, tokens, cache).compile().as_text()
    keys = cache.layers[0].keys.addressable_shards[0].data.shape
    whole = params["embed_tokens"]["weight"].shape[0]
    rows = own["embed_tokens"]["weight"].addressable_shards[0].data.shape[0]
    said[name] = {"sent": [[kind, kept.split("{")[0]] for kept, kind in re.findall(FOUND, text)],
                  "heads": keys[1], "rows": [rows, whole], "logits": np.asarray(logits).tolist()}
print(json.dumps({"layers": config.num_layers, "size": config.hidden_size, "devices": said}))
"""


@pytest.fixture(scope="module")
def said():
    """What passes of a dense model and of mixtures say and send, by devices."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", CHILD]
    ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **flags})
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_compiled_passes_send_what_the_formulas_say(said):
    """On 1, 2 and 4 devices: no sum more, nothing gathered or moved, two key heads on four."""
    shape = theory.Shape(said["layers"], said["size"], 8, 2, bytes_per_value=4)
    alone = np.asarray(said["devices"]["1"]["logits"])
    for size in "124":
        found = said["devices"][size]
        number = theory.num_all_reduces(shape, int(size))
        assert found["sent"] == [["all-reduce", f"f32[8,{said['size']}]"]] * number
        assert theory.all_reduce_bytes(2, 4, shape) == 4 * 8 * said["size"]
        assert np.abs(np.asarray(found["logits"]) - alone).max() < 1e-5
        assert found["rows"][0] * int(size) == found["rows"][1]
        assert found["heads"] == 2 / min(int(size), 2)


def test_experts_that_are_dealt_out_send_a_sum_per_token_and_split_ones_one_per_choice(said):
    shape = theory.Shape(said["layers"], said["size"], 8, 2, bytes_per_value=4)
    alone = np.asarray(said["devices"]["1 mixed"]["logits"])
    usual = theory.all_reduce_bytes(2, 4, shape)
    for name, per_token in (("4 dealt", 1), ("4 mixed", 3)):
        found = said["devices"][name]
        assert np.abs(np.asarray(found["logits"]) - alone).max() < 1e-5
        assert {kind for kind, _ in found["sent"]} == {"all-reduce"}
        sent = [4 * math.prod(map(int, kept[4:-1].split(","))) for _, kept in found["sent"]]
        others = [usual] * (shape.num_layers + 1)
        assert sorted(sent) == sorted([*others, *[per_token * usual] * shape.num_layers])


@pytest.mark.parametrize("tokens", [1, 5, 64])
def test_the_busiest_device_reads_as_many_experts_as_in_a_simulation(tokens):
    rng, most = np.random.default_rng(0), []
    for _ in range(400):
        chosen = np.zeros(128, dtype=bool)
        for _ in range(tokens):
            chosen[rng.permutation(128)[:8]] = True
        most.append(chosen.reshape(8, 16).sum(axis=1).max())
    assert theory.moe_busiest_device(128, 8, tokens, 8) == pytest.approx(np.mean(most), rel=0.03)


def test_the_busiest_of_one_device_reads_them_all_and_a_rest_is_refused():
    assert theory.moe_busiest_device(128, 8, 9, 1) == pytest.approx(
        theory.moe_active_experts(128, 8, 9)
    )
    with pytest.raises(ValueError, match="3 devices do not divide 128 experts"):
        theory.moe_busiest_device(128, 8, 1, 3)


def test_a_host_reads_whole_what_is_split_by_columns():
    assert theory.split_loading(8, 4, 1, 1) == (13, 13)
    assert theory.split_loading(8, 4, 1, 4) == (4, 7)


def test_one_device_pays_nothing_and_time_is_the_roofline():
    assert theory.num_all_reduces(TARGET[1], 1) == theory.all_reduce_time(1e6, 1, NETWORK) == 0
    alone = theory.split_pass_time(8, 5, 2048, *TARGET, H200, 1, NVLINK)
    assert alone == theory.decode_time_roofline(8, 5, 2048, QWEN3_32B, H200)


def test_without_a_link_to_wait_for_devices_divide_the_time():
    free = NVLINK._replace(latency=0.0, bandwidth=float("inf"))
    one, eight = (theory.split_pass_time(8, 5, 2048, *TARGET, H200, n, free) for n in (1, 8))
    assert eight == pytest.approx(one / 8)
    many = theory.split_pass_time(8, 5, 2048, *TARGET, H200, 64, free)
    assert one / 64 < many < eight  # the cache is not divided further than its 8 heads


def test_a_sum_takes_the_latencies_of_halving_and_doubling_and_all_its_bytes_twice():
    assert theory.all_reduce_time(0, 8, NVLINK) == pytest.approx(6 * NVLINK.latency)
    large = theory.all_reduce_time(1e9, 1024, NETWORK)
    assert large == pytest.approx(2e9 / NETWORK.bandwidth, rel=0.01)


def test_a_draft_model_on_every_device_beats_one_that_they_share():
    def time(draft_devices):
        return theory.split_round_time(
            8, 4, 2048, TARGET, DRAFT, H200, 8, NVLINK, draft_devices=draft_devices
        )

    assert time(1) < time(8)
    nothing = theory.split_round_time(8, 4, 2048, TARGET, None, H200, 8, NVLINK)
    assert nothing < time(1)
    draft = theory.split_pass_time(8, 1, 2048, *DRAFT, H200, 1, NVLINK)
    assert time(1) == pytest.approx(nothing + 4 * draft)


def test_what_cannot_be_shared_is_refused():
    with pytest.raises(ValueError, match="at most 64, and make replicas"):
        theory.split_pass_time(8, 1, 2048, *TARGET, H200, 1024, NETWORK)
    with pytest.raises(ValueError, match="num_devices must be at least 1"):
        theory.num_all_reduces(TARGET[1], 0)
    with pytest.raises(ValueError, match="B must be at least 0"):
        theory.all_reduce_bytes(-1, 1, TARGET[1])

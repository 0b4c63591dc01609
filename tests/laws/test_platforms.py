"""The same programs for GPUs and TPUs, as far as this can be seen without one: they lower.

On a CPU products, attention and norms are calls of machine code; elsewhere plain products.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

from specjax.core import decode, ops
from specjax.core.types import Drafter, Engine, Params, PyTree, Target
from specjax.drafters.draft_model import draft_model
from specjax.drafters.feature import feature
from specjax.models.build import build_feature_head, build_target, shapes
from specjax.models.config import ModelConfig
from specjax.verify.rejection import rejection
from specjax.verify.walk import walk
from tests.laws import harness as h

OURS = "specjax_"  # what the names of our machine code begin with
ELSEWHERE = "cuda", "tpu"
DRAFTERS = {"plain": h.PLAIN, "listener": h.LISTENER, **h.CHAINS, **h.GROWN}


def lowered(engine: Engine, params: Params, platforms: tuple[str, ...]) -> list[str]:
    """Return the programs that read a prompt and write a text, lowered: nothing is compiled."""
    init = functools.partial(decode.init_state, engine)
    state = jax.eval_shape(init, params, *h.pack(h.random_rows(3, seed=1)))
    read = jax.jit(decode.prefill, static_argnums=(0, 4)).trace(engine, params, state, 0, 16)
    write = jax.jit(decode.generate, static_argnums=(0, 5)).trace(engine, params, state, 8, 1, 8)
    return [
        traced.lower(lowering_platforms=(platform,)).as_text()
        for platform in platforms
        for traced in (read, write)
    ]


def check(target: Target, drafter: Drafter, params: Params, rule=walk, on_cpu=None) -> None:
    """Lower everywhere; ``on_cpu`` is the engine there, if it has a form of its own."""
    engine = Engine(target, drafter, rule, h.CAPACITY, num_logprobs=2, num_prompt_logprobs=1)
    for text in lowered(engine, params, ELSEWHERE):
        assert OURS not in text
        assert "stablehlo.dot_general" in text
    for text in lowered(on_cpu or engine, params, ("cpu",)):
        assert OURS + "linear" in text


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter_lowers_for_every_platform(name):
    drafter = DRAFTERS[name]
    check(h.TARGET, drafter, h.weights(drafter))


def test_rejection_lowers_for_every_platform():
    drafter = draft_model(h.TARGET, h.K, "probabilistic")
    check(h.TARGET, drafter, h.weights(), rejection)


def test_latent_attention_and_experts_lower_for_every_platform():
    check(build_target(h.LATENT), h.CHAINS["ngram"], Params(shapes(h.LATENT), None))


def stored(config, dtype: str) -> PyTree:
    """Return a model's weights, undrawn, all in the type that a checkpoint stores."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), shapes(config))


def drafters(config: ModelConfig) -> dict[str, tuple[Drafter, PyTree]]:
    """Return drafters of a target with a config, and their weights."""
    head = dataclasses.replace(
        h.FEATURE, block=dataclasses.replace(h.BLOCK, dtype=config.dtype), kind="mtp"
    )
    return {
        "ngram": (h.CHAINS["ngram"], None),
        "draft_model": (draft_model(build_target(config), h.BEST), stored(config, "bfloat16")),
        "mtp": (feature(build_feature_head(head), h.K, "coupled"), stored(head, config.dtype)),
    }


@pytest.mark.parametrize("name", ["ngram", "draft_model", "mtp"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_form_for_inference_lowers_for_every_platform(name, dtype):
    """Matrices joined, weights bfloat16 as stored; of bfloat16 a CPU caches the bits."""
    config = dataclasses.replace(h.TINY, joined=True, dtype=dtype)
    drafter, head = drafters(config)[name]
    params = Params(stored(config, "bfloat16"), head)
    on_cpu = None
    if dtype == "bfloat16":
        bits = dataclasses.replace(config, cache_dtype="uint16")
        own, _ = drafters(bits)[name]
        on_cpu = Engine(build_target(bits, h.TAPS), own, walk, h.CAPACITY)
    check(build_target(config, h.TAPS), drafter, params, on_cpu=on_cpu)


def test_several_devices_that_share_the_arrays_take_plain_products():
    """No machine code of ours where XLA splits arrays; two CPUs are described, not needed."""
    mesh = jax.sharding.AbstractMesh((2,), ("tensor",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "tensor"))
    x, weight = (jax.ShapeDtypeStruct((4, 16), jnp.float32, sharding=split) for _ in range(2))
    text = jax.jit(ops.linear).trace(x, weight).lower(lowering_platforms=("cpu",)).as_text()
    assert OURS not in text
    assert "stablehlo.dot_general" in text

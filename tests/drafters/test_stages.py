"""Medusa's heads run together: the logits of each alone, and a shared LM head is read once."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core.types import Sampling, Text
from specjax.drafters.stages import staged
from specjax.drafters.tree import fixed
from specjax.models.build import build_stages, init_params
from specjax.models.config import MedusaConfig

K, VOCAB, SIZE = 3, 40, 32
OWN = MedusaConfig(num_heads=K, num_layers=1, hidden_size=SIZE, vocab_size=VOCAB)
SHARED = dataclasses.replace(OWN, shared_head=True)
CONFIGS = [OWN, SHARED]


@pytest.mark.parametrize("config", CONFIGS, ids=["own heads", "shared head"])
@pytest.mark.parametrize("depth", [1, K])
def test_together_the_heads_say_what_each_says_alone(config, depth):
    stages, params = build_stages(config), init_params(config, jax.random.key(0))
    hidden = jax.random.normal(jax.random.key(1), (2, SIZE), jnp.float32)
    token = jnp.zeros(2, jnp.int32)
    together = stages.at_once(params, hidden, depth)
    assert together.shape == (2, depth, VOCAB)
    for stage in range(depth):
        _, alone = stages.step(params, hidden, token, stage)
        np.testing.assert_array_equal(together[:, stage], alone)


def readings(jaxpr, weight) -> int:
    """Count the operations of a program that read one of its inputs."""
    return sum(weight in eqn.invars for eqn in jaxpr.eqns)


@pytest.mark.parametrize("shape", [K, fixed([(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)])])
def test_a_shared_lm_head_is_read_once_however_many_tokens_are_drafted(shape):
    drafter = staged(build_stages(SHARED), shape)
    params = init_params(SHARED, jax.random.key(0))
    tokens = jnp.zeros((2, 16), jnp.int32)
    count = jnp.ones(2, jnp.int32)
    text = Text(tokens, starts=count, lengths=count, limits=16 * count, reason=0 * count)
    sampling = Sampling(jnp.zeros(2), max_draft=K * count, stop_ids=jnp.full((2, 1), VOCAB))
    keys = jax.random.split(jax.random.key(2), 2)
    state = jnp.ones((2, SIZE), jnp.float32)

    def propose(params, state):
        return drafter.propose(params, state, text, sampling, keys, 16)

    traced = jax.make_jaxpr(propose)(params, state)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path((params, state))]
    (place,) = [i for i, path in enumerate(paths) if "lm_heads" in jax.tree_util.keystr(path)]
    assert readings(traced.jaxpr, traced.jaxpr.invars[place]) == 1

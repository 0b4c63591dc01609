"""What counts as a loop, and that training against loops breaks one."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.metrics import distinct_bigrams
from specjax.models.build import build_target, init_params
from specjax.topology import causal
from specjax.train.loop import make_step
from specjax.train.options import model_config
from specjax.train.repeats import continue_greedily, repeated, unlikelihood
from tests.train.test_loop import TINY


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_token_is_marked_where_it_ends_an_ngram_seen_before(n):
    tokens = np.random.default_rng(n).integers(0, 3, (4, 40))
    marked = repeated(jnp.asarray(tokens), n)
    for row, marks in zip(tokens.tolist(), marked.tolist(), strict=True):
        seen = set()
        for end, mark in enumerate(marks, start=1):
            ngram = tuple(row[max(0, end - n) : end])
            assert mark == (len(ngram) == n and ngram in seen)
            seen.add(ngram)


def test_the_penalty_is_that_of_its_definition():
    logits = jax.random.normal(jax.random.key(0), (2, 3, 5)) * 3
    tokens = jnp.asarray([[0, 4, 2], [1, 1, 3]])
    marked = jnp.asarray([[True, False, True], [False, False, True]])
    probs = np.take_along_axis(np.asarray(jax.nn.softmax(logits)), tokens[..., None], -1)[..., 0]
    expected = -(np.log1p(-probs) * marked).sum() / 6
    np.testing.assert_allclose(unlikelihood(logits, tokens, marked), expected, rtol=1e-5)
    certain = jnp.asarray([[[50.0, 0.0]]])  # p = 1 in float32: finite, and there is a way down
    value, slope = jax.value_and_grad(unlikelihood)(
        certain, jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), bool)
    )
    assert math.isfinite(value)
    assert slope[0, 0, 0] > 0.9


def test_a_continuation_is_what_plain_greedy_decoding_writes():
    target, params = (
        build_target(model_config(TINY)),
        init_params(model_config(TINY), jax.random.key(1)),
    )
    prefix = jnp.asarray(np.random.default_rng(0).integers(0, 300, (2, 6)), jnp.int32)
    written = jax.jit(continue_greedily, static_argnums=(0, 3))(target, params, prefix, 8)
    assert written.shape == (2, 14)
    np.testing.assert_array_equal(written[:, :6], prefix)

    @jax.jit
    def score(tokens):
        cache = target.init_cache(2, 14)
        positions = jnp.broadcast_to(jnp.arange(14)[None], tokens.shape)
        output, _ = target.forward(params, tokens, positions, causal(14), cache, 14)
        return target.logits(params, output.hidden)

    best = jnp.argmax(score(written), axis=-1)
    np.testing.assert_array_equal(written[:, 6:], best[:, 5:-1])


def test_training_against_loops_breaks_them():
    config = dataclasses.replace(
        TINY, context=64, max_position_embeddings=128, learning_rate=1e-2, batch=4
    )
    looping = jnp.asarray(np.arange(65)[None] % 4 + 10 * np.arange(4)[:, None], jnp.int32)
    share = {}
    for weight in (0.0, 500.0):
        step = make_step(dataclasses.replace(config, unlikelihood=weight), 60)
        update, state = jax.jit(step.update, donate_argnums=0), jax.jit(step.init)()
        for _ in range(60):
            state, loss = update(state, None, looping)
        assert math.isfinite(float(loss))
        target = build_target(model_config(config))
        written = continue_greedily(target, state.params, looping[:, :16], 32)[:, 16:]
        share[weight] = np.mean([distinct_bigrams(row) for row in np.asarray(written).tolist()])
    assert share[0.0] < 0.2
    assert share[500.0] > 2 * share[0.0]

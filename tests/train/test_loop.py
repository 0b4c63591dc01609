"""Laws of training: the same decoder, losses that mean what they say, decay where it belongs."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from specjax.core.cache import keep
from specjax.core.topology import causal
from specjax.models.build import build_target, init_params
from specjax.train.loop import causal_logits, learning_rates, make_step, matrices
from specjax.train.losses import cross_entropy, distillation, divergence
from specjax.train.options import TrainConfig, differences, model_config

TINY = TrainConfig(
    out="unused",
    num_layers=2,
    hidden_size=32,
    intermediate_size=48,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    vocab_size=300,
    max_position_embeddings=64,
    context=24,
    batch=4,
    steps=40,
)


score_all = jax.jit(causal_logits, static_argnums=(0, 3))


@pytest.fixture(scope="module")
def tokens():
    """Return [4, 25] tokens in which the next is the last plus one: easy to learn."""
    return jnp.asarray(np.arange(25)[None] + 40 * np.arange(4)[:, None], jnp.int32)


@pytest.fixture(scope="module")
def params():
    return init_params(model_config(TINY), jax.random.key(1))


@pytest.mark.parametrize("chunk", [5, 24])
def test_training_scores_a_text_as_inference_does(chunk, tokens, params):
    target = build_target(model_config(TINY))

    @jax.jit
    def score(token, cache):
        positions = cache.lengths[:, None]
        output, cache = target.forward(params, token, positions, causal(1), cache, 24)
        return target.logits(params, output.hidden)[:, 0], keep(cache, None, jnp.ones(4, jnp.int32))

    logits, cache = score_all(target, params, tokens[:, :-1], chunk), target.init_cache(4, 24)
    for i in range(24):
        one, cache = score(tokens[:, i, None], cache)
        np.testing.assert_allclose(logits[:, i], one, atol=1e-4)


def test_no_token_sees_its_future(tokens, params):
    target = build_target(model_config(TINY))
    changed = tokens.at[:, 10:].add(7)
    before, after = (score_all(target, params, t, 8) for t in (tokens, changed))
    np.testing.assert_array_equal(before[:, :10], after[:, :10])
    assert (before[:, 10:] != after[:, 10:]).any()


def test_a_fresh_model_is_about_as_surprised_as_a_uniform_one(tokens):
    step = make_step(TINY, 40)
    loss = float(jax.jit(step.measure)(jax.jit(step.init)().params, tokens))
    assert abs(loss - math.log(300)) < 2.0


def test_steps_reduce_the_loss(tokens):
    step = make_step(dataclasses.replace(TINY, learning_rate=1e-2), 40)
    update, state = jax.jit(step.update, donate_argnums=0), jax.jit(step.init)()
    losses = []
    for _ in range(40):
        state, loss = update(state, None, tokens)
        losses.append(float(loss))
    assert losses[-1] < 0.3 * losses[0]
    assert int(state.step) == 40


def test_a_student_approaches_its_teacher(tokens):
    teacher_config = dataclasses.replace(TINY, hidden_size=48, seed=3)
    teacher = build_target(model_config(teacher_config))
    teacher_params = init_params(model_config(teacher_config), jax.random.key(3))
    config = dataclasses.replace(TINY, teacher="x", teacher_weight=1.0, learning_rate=1e-2)
    step = make_step(config, 40, teacher)
    update, state = jax.jit(step.update, donate_argnums=0), jax.jit(step.init)()
    known = score_all(teacher, teacher_params, tokens[:, :-1], 24)

    def distance(params):
        student = build_target(model_config(config))
        return float(divergence(score_all(student, params, tokens[:, :-1], 24), known))

    before = distance(state.params)
    for _ in range(40):
        state, loss = update(state, teacher_params, tokens)
    assert distance(state.params) < 0.3 * before
    assert float(loss) < 0.3 * before


def test_cross_entropy_is_the_mean_negative_log_probability():
    logits = jax.random.normal(jax.random.key(0), (2, 5, 7)) * 3
    targets = jax.random.randint(jax.random.key(1), (2, 5), 0, 7)
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()
    np.testing.assert_allclose(cross_entropy(logits, targets), expected, rtol=1e-6)


def test_divergence_is_zero_for_equal_laws_and_positive_otherwise():
    logits = jax.random.normal(jax.random.key(0), (3, 4, 9))
    np.testing.assert_allclose(divergence(logits + 5.0, logits), 0.0, atol=1e-6)
    p = jax.nn.softmax(logits)
    expected = (p * jnp.log(p * 9)).sum(-1).mean()  # KL(p || uniform)
    np.testing.assert_allclose(divergence(jnp.zeros_like(logits), logits), expected, rtol=1e-5)


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_distillation_mixes_text_and_teacher(weight):
    a, b = jax.random.normal(jax.random.key(0), (2, 3, 4, 9))
    targets = jax.random.randint(jax.random.key(1), (3, 4), 0, 9)
    expected = (1 - weight) * cross_entropy(a, targets) + weight * divergence(a, b)
    np.testing.assert_allclose(distillation(a, b, targets, weight), expected, rtol=1e-6)


def test_only_the_matrices_of_the_layers_decay(params):
    marked = jax.tree_util.tree_flatten_with_path(matrices(params))[0]
    names = {jax.tree_util.keystr(path, simple=True, separator="."): on for path, on in marked}
    assert {name.split(".")[-2] for name, on in names.items() if on} == {
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    }
    assert not names["embed_tokens.weight"]
    assert not names["layers.0.self_attn.q_norm.weight"]


@pytest.mark.parametrize("steps", [1, 2, 40, 5000])
def test_the_learning_rate_warms_up_and_falls(steps):
    rates = [float(learning_rates(TINY, steps)(i)) for i in range(steps)]
    assert max(rates) <= TINY.learning_rate * 1.0001
    assert min(rates) > 0
    if steps >= 40:
        peak = int(np.argmax(rates))
        assert rates[:peak] == sorted(rates[:peak])
        assert rates[peak:] == sorted(rates[peak:], reverse=True)
        assert rates[-1] < 0.05 * TINY.learning_rate


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"steps": 0}, "steps"),
        ({"minutes": 1.0}, "one of steps and minutes"),
        ({"steps": None}, "one of steps and minutes"),
        ({"batch": 0}, "batch"),
        ({"context": 65}, "max_position_embeddings"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": math.nan}, "learning_rate"),
        ({"vocab_size": 256}, "vocab_size"),
        ({"teacher_weight": 1.5}, "teacher_weight"),
        ({"num_heads": 3, "num_kv_heads": 2}, "num_kv_heads"),
        ({"seed": -1}, "seed"),
    ],
    ids=str,
)
def test_a_bad_option_is_refused_by_name(change, named):
    with pytest.raises(ValueError, match=named):
        dataclasses.replace(TINY, **change)


def test_differences_name_the_field_and_both_values():
    stored = dataclasses.asdict(dataclasses.replace(TINY, out="elsewhere"))
    assert differences(stored, TINY) == []
    assert differences(stored, dataclasses.replace(TINY, batch=8)) == ["batch: 4 -> 8"]

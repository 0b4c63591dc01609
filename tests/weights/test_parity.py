"""Our logits are transformers', and every fact of the config and every tensor matters."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from specjax.cache import advance
from specjax.models.build import build_target, shapes
from specjax.topology import causal
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params

TOLERANCE = 1e-4  # of max(1, |logit|)
CLEARLY = 100 * TOLERANCE  # the weakest mutation breaks parity by 0.1
CAPACITY = 64
VARIANTS = list(tiny.VARIANTS)
TIMES = {"high_freq_factor": 4, "beta_fast": 0.5, "beta_slow": 0.25}  # 2 for the other facts


@pytest.fixture(scope="module", params=VARIANTS)
def model(request, tmp_path_factory):
    """A variant's config and weights as we read them, and transformers' logits."""
    source, expected = tiny.reference(request.param)
    folder = tiny.save(source, tmp_path_factory.mktemp(request.param))
    config, _ = read_config(folder)
    return request.param, config, load_params(folder, config), expected


def forward(config, params, tokens, cache, count):
    """Read nodes at each row's end, keep ``count`` of them: (logits, cache)."""
    target = build_target(config)
    nodes = tokens.shape[1]
    positions = cache.lengths[:, None] + jnp.arange(nodes)[None]
    output, cache = target.forward(params, tokens, positions, causal(nodes), cache, CAPACITY)
    return target.logits(params, output.hidden), advance(cache, count)


jitted = jax.jit(forward, static_argnums=0)


def read(config, params, chunks):
    """Read the tokens in chunks of the given sizes; return logits for all of them.

    Single steps run compiled; the rest op by op, which shares its programs across variants.
    """
    call = jitted if max(chunks) == 1 else forward
    cache = build_target(config).init_cache(tiny.ROWS, CAPACITY)
    said, start, tokens = [], 0, jnp.asarray(tiny.tokens())
    for size in chunks:
        count = jnp.full(tiny.ROWS, size)
        piece, cache = call(config, params, tokens[:, start : start + size], cache, count)
        said.append(np.asarray(piece))
        start += size
    return np.concatenate(said, axis=1)


def error(said, expected):
    return float((np.abs(said - expected) / np.maximum(1, np.abs(expected))).max())


@pytest.mark.parametrize(
    "chunks", [(40,), (16, 16, 8), (1,) * 40], ids=["prefill", "chunked", "incremental"]
)
def test_logits_are_transformers_however_the_text_is_cut(model, chunks):
    _, config, params, expected = model
    assert error(read(config, params, chunks), expected) < TOLERANCE


def test_rows_of_different_lengths_share_a_batch(model):
    _, config, params, expected = model
    tokens, lengths, nodes = tiny.tokens(), np.array([7, 19]), 8
    rows, cache = np.arange(2)[:, None], build_target(config).init_cache(2, CAPACITY)
    padded = np.where(np.arange(40)[None] < lengths[:, None], tokens, 0)
    _, cache = forward(config, params, jnp.asarray(padded), cache, jnp.asarray(lengths))
    columns = lengths[:, None] + np.arange(nodes)[None]
    said, _ = forward(
        config, params, jnp.asarray(tokens[rows, columns]), cache, jnp.asarray(lengths)
    )
    assert error(np.asarray(said), expected[rows, columns]) < TOLERANCE


def test_every_fact_of_the_config_matters(model):
    variant, config, params, expected = model
    weak = {}
    for name, changes in config_mutations(config).items():
        wrong = dataclasses.replace(config, **changes)
        off = error(read(wrong, fitted(wrong, params), (40,)), expected)
        if off < CLEARLY:
            weak[name] = off
    assert not weak, f"{variant}: changed without breaking parity: {weak}"


def test_every_tensor_matters(model):
    variant, config, params, expected = model
    weak = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        keys = tuple(key.key for key in path)
        off = error(read(config, put(params, keys, spoilt(keys, leaf)), (40,)), expected)
        if off < CLEARLY and not cancels(config, keys):
            weak[".".join(map(str, keys))] = off
    assert not weak, f"{variant}: spoilt without breaking parity: {weak}"


def config_mutations(config):
    """Name the ways to get one fact wrong and still have tensors that fit."""
    out = {"norm_eps": {"norm_eps": 0.0 if config.norm == "rms" else 1e-2}}
    if config.positions == "rope":
        out["rope_theta"] = {"rope_theta": config.rope_theta * 3}
    else:
        out["position_offset"] = {"position_offset": 0}
    if config.rope_scaling is not None:
        out["rope_scaling"] = {"rope_scaling": None}
        for field in dataclasses.fields(config.rope_scaling):
            value = getattr(config.rope_scaling, field.name) * TIMES.get(field.name, 2)
            if field.name == "mscale_all_dim" and value == 0:
                value = 1.0
            out |= nested(config, "rope_scaling", **{field.name: value})
    for flag in ("qkv_bias", "output_bias", "mlp_bias", "qk_norm"):
        if getattr(config, flag):
            out[flag] = {flag: False}
    if not config.tie_word_embeddings:
        out["tie_word_embeddings"] = {"tie_word_embeddings": True}
    if config.experts is not None:
        out |= nested(config, "experts", num_experts_per_tok=2)
        out |= nested(config, "experts", norm_topk_prob=not config.experts.norm_topk_prob)
        out |= nested(config, "experts", routed_scaling_factor=1.0)
        out |= nested(config, "experts", n_group=2, topk_group=1)
        out |= nested(config, "experts", n_group=4, topk_group=3)
    elif not config.qk_norm:  # the norms' size is head_dim
        heads = {"num_heads": config.num_heads // 2, "num_kv_heads": config.num_kv_heads // 2}
        out["heads"] = heads | {"head_dim": config.head_dim * 2}
    return out


def nested(config, record, **changes):
    """Change fields of a record inside the config."""
    changed = dataclasses.replace(getattr(config, record), **changes)
    return {f"{record}: {changes}": {record: changed}}


def fitted(config, params):
    """Drop the weights a mutated config does not ask for."""

    def prune(wanted, have):
        if isinstance(wanted, dict):
            return {key: prune(wanted[key], have[key]) for key in wanted}
        return have if have.shape == wanted.shape else have[: wanted.shape[0]]

    return prune(shapes(config), params)


def spoilt(keys, leaf):
    """Drop a bias, flatten a norm, mix up a matrix."""
    if keys[-1] == "bias":
        return jnp.zeros_like(leaf)
    return jnp.ones_like(leaf) if leaf.ndim == 1 else jnp.roll(leaf, 1, axis=1)


def cancels(config, keys):
    """Say where mathematics forgives: without RoPE a key bias shifts all scores alike."""
    return config.positions == "learned" and keys[-2:] == ("k_proj", "bias")


def put(params, keys, value):
    """Return the weights with one leaf replaced."""
    if not keys:
        return value
    return params | {keys[0]: put(params[keys[0]], keys[1:], value)}

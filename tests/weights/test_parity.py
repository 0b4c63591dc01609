"""Our logits are transformers', and every fact of the config and every tensor matters."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from specjax.core.cache import keep
from specjax.core.topology import causal
from specjax.core.types import Params
from specjax.drafters.none import none
from specjax.models.build import build_target, shapes
from specjax.models.config import LongRope
from specjax.testing.harness import Row, run
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params
from tests.weights import tiny

TOLERANCE = 1e-4  # of max(1, |logit|)
RECURRENT = 5e-4  # transformers' step by step and its chunked form differ by up to 2.4e-4
CLEARLY = 100 * TOLERANCE  # the weakest mutation breaks parity by 0.1
CAPACITY = 64
VARIANTS = list(tiny.VARIANTS)
WINDOWED = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
PLAIN = {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}
OTHERS = [  # the settings' other values, beside those of the variants
    ("qwen2", WINDOWED),
    ("qwen3", WINDOWED),
    ("qwen3-moe", {"decoder_sparse_step": 2, "mlp_only_layers": [], "norm_topk_prob": False}),
    ("qwen3-moe", {"attention_bias": True, "norm_topk_prob": False}),
    ("mixtral", {"sliding_window": 9}),
    ("glm4-moe", {"use_qk_norm": False, "attention_bias": False, "norm_topk_prob": False}),
    ("glm4", {"attention_bias": False, "tie_word_embeddings": True}),
    ("gpt-oss", {"attention_bias": False, "layer_types": ["full_attention", "sliding_attention"]}),
    ("gemma3", {"attention_bias": True, "final_logit_softcapping": None}),
    ("phi3", PLAIN | {"sliding_window": 9}),
    ("hunyuan", PLAIN | {"attention_bias": False, "tie_word_embeddings": True}),
    ("ernie4_5", {"tie_word_embeddings": False}),
    ("llama4", {"moe_layers": [0, 3], "use_qk_norm": False, "attn_temperature_tuning": False}),
    ("llama4", {"num_experts_per_tok": 2, "attention_chunk_size": None, "attention_bias": True}),
    ("llama4", {"no_rope_layers": [0, 1, 1, 1], "moe_layers": [], "tie_word_embeddings": True}),
    ("qwen3-next", {"mlp_only_layers": [], "norm_topk_prob": False, "attention_bias": True}),
    ("qwen3-5-moe", {"attention_bias": True, "tie_word_embeddings": True}),
]
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
    return target.logits(params, output.hidden), keep(cache, None, count)


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


def tolerance(config):
    return RECURRENT if config.recurrent else TOLERANCE


def error(said, expected):
    return float((np.abs(said - expected) / np.maximum(1, np.abs(expected))).max())


@pytest.mark.parametrize(
    "chunks", [(40,), (16, 16, 8), (1,) * 40], ids=["prefill", "chunked", "incremental"]
)
def test_logits_are_transformers_however_the_text_is_cut(model, chunks):
    _, config, params, expected = model
    assert error(read(config, params, chunks), expected) < tolerance(config)


@pytest.mark.parametrize(("variant", "changes"), OTHERS, ids=[name for name, _ in OTHERS])
def test_a_settings_other_values_are_transformers_too(variant, changes, tmp_path):
    source = tiny.build(variant, **changes)
    config, _ = read_config(tiny.save(source, tmp_path))
    params = load_params(tmp_path, config)
    assert error(read(config, params, (40,)), tiny.logits(source)) < tolerance(config)


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
    assert error(np.asarray(said), expected[rows, columns]) < tolerance(config)


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
        out |= turned(config, theta=config.rope.theta * 3)
        out |= turned(config, paired=not config.rope.paired)
        if config.rope.dim is not None and not isinstance(config.rope.scaling, LongRope):
            out |= turned(config, dim=None)
    else:
        out["position_offset"] = {"position_offset": 0}
    scaling = config.rope.scaling
    if scaling is not None:
        out |= turned(config, scaling=None)
        for field in dataclasses.fields(scaling):
            value = getattr(scaling, field.name)
            if field.name == "truncate":
                value = not value
            elif field.name == "divisors":
                value = value[::-1]
            else:
                value = value * TIMES.get(field.name, 2)
            if field.name == "mscale_all_dim" and value == 0:
                value = 1.0
            changed = dataclasses.replace(scaling, **{field.name: value})
            out |= turned(config, f"{field.name} of scaling", scaling=changed)
    if config.recurrent:
        facts = next(kind.delta for kind in config.layers if kind.delta is not None)
        for field in dataclasses.fields(facts):
            if field.name == "merged":  # has tensors of its own, which ``read_config`` asks for
                continue
            changed = dataclasses.replace(
                facts, **{field.name: getattr(facts, field.name) * 2 // 3}
            )
            kinds = (replaced(kind, delta=kind.delta and changed) for kind in config.layers)
            out[f"delta: {field.name}"] = {"layers": tuple(kinds)}
    elif config.layers:
        out["layers"] = {"layers": ()}
        kinds = config.layers
        for name, change in (("window", lambda n: n + 1), ("window - 1", lambda n: n - 1)):
            changed = [
                k if k.window is None else replaced(k, window=change(k.window)) for k in kinds
            ]
            out[name] = {"layers": tuple(changed)}
        if any(kind.chunked for kind in kinds):
            sliding = tuple(replaced(kind, chunked=False) for kind in kinds)
            out["chunked"] = {"layers": sliding}
        for name in ("scale", "every", None):
            changed = tuple(replaced(k, query_scale=scaled(k.query_scale, name)) for k in kinds)
            if changed != kinds:
                out[f"query_scale: {name}"] = {"layers": changed}
        if len(set(kinds)) > 1:
            out["order of layers"] = {"layers": kinds[1:] + kinds[:1]}
    for name, value in (("norm_offset", 0.0), ("embed_scale", 1.0), ("attention_scale", None)):
        if getattr(config, name) not in (value, None):
            out[name] = {name: value}
    if config.logit_cap is not None:
        out["logit_cap"] = {"logit_cap": None}
    if config.mlp not in ("swiglu", "relu"):
        out["mlp"] = {"mlp": "swiglu"}
    if config.qk_norm_last:
        out["qk_norm_last"] = {"qk_norm_last": False}
    flags = ("qkv_bias", "output_bias", "mlp_bias", "qk_norm", "sinks", "sandwich", "output_gate")
    for flag in flags:
        if getattr(config, flag):
            out[flag] = {flag: False}
    if not config.tie_word_embeddings:
        out["tie_word_embeddings"] = {"tie_word_embeddings": True}
    latent = config.latent
    if latent is not None and latent.indexer is not None:
        for field in dataclasses.fields(latent.indexer):
            half = {field.name: getattr(latent.indexer, field.name) // 2}
            out |= nested(config, "latent", indexer=dataclasses.replace(latent.indexer, **half))
        more = dataclasses.replace(latent.indexer, top_k=latent.indexer.top_k + 1)
        out |= nested(config, "latent", indexer=more)
        out |= nested(config, "latent", indexer=None)
    if config.experts is not None:
        facts = config.experts
        other = "softmax" if facts.scores == "sigmoid" else "sigmoid"
        fewer = facts.num_experts_per_tok - 1
        out |= nested(config, "experts", num_experts_per_tok=fewer or 2)
        if facts.weigh_inputs:
            out |= nested(config, "experts", weigh_inputs=False)
        out |= nested(config, "experts", norm_topk_prob=not facts.norm_topk_prob)
        out |= nested(config, "experts", routed_scaling_factor=facts.routed_scaling_factor * 2)
        out |= nested(config, "experts", scores=other)
        out |= nested(config, "experts", n_group=2, topk_group=1)
        if facts.n_group > 1:
            out |= nested(config, "experts", n_group=4, topk_group=3)
        for flag in ("router_bias", "correction_bias", "bias"):
            if getattr(facts, flag):
                out |= nested(config, "experts", **{flag: False})
        if facts.shared_gate:
            out |= nested(config, "experts", shared_gate=False)
        if facts.n_shared_experts:
            out |= nested(config, "experts", n_shared_experts=0)
    elif not config.qk_norm:  # the norms' size is head_dim
        heads = {"num_heads": config.num_heads // 2, "num_kv_heads": config.num_kv_heads // 2}
        out["heads"] = heads | {"head_dim": config.head_dim * 2}
    return out


def turned(config, name="", **changes):
    """Change fields of RoPE, in all layers."""

    def change(rope):
        return None if rope is None else dataclasses.replace(rope, **changes)

    layers = tuple(dataclasses.replace(kind, rope=change(kind.rope)) for kind in config.layers)
    return {f"rope: {name or changes}": {"rope": change(config.rope), "layers": layers}}


replaced = dataclasses.replace


def scaled(facts, name):
    """Double a field of a query scale, or leave the whole scale out."""
    if facts is None or name is None:
        return None
    return replaced(facts, **{name: 2 * getattr(facts, name)})


def nested(config, record, **changes):
    """Change fields of a record inside the config."""
    changed = dataclasses.replace(getattr(config, record), **changes)
    return {f"{record}: {changes}": {record: changed}}


def fitted(config, params):
    """Drop the weights a mutated config does not ask for."""

    def prune(wanted, have):
        if isinstance(wanted, dict):
            return {key: prune(wanted[key], have[key]) for key in wanted}
        return have[tuple(slice(size) for size in wanted.shape)]

    return prune(shapes(config), params)


def spoilt(keys, leaf):
    """Drop a bias, flatten a norm, mix up a matrix."""
    if keys[-1] == "bias":
        return jnp.zeros_like(leaf)
    if leaf.ndim == 1:
        return jnp.ones_like(leaf)
    return jnp.roll(leaf, 1, axis=1 if leaf.shape[1] > 1 else -1)


def cancels(config, keys):
    """Say where mathematics forgives: without RoPE a key bias shifts all scores alike."""
    return config.positions == "learned" and keys[-2:] == ("k_proj", "bias")


def put(params, keys, value):
    """Return the weights with one leaf replaced."""
    if not keys:
        return value
    return params | {keys[0]: put(params[keys[0]], keys[1:], value)}


def test_greedy_text_of_a_recurrent_model_is_transformers(tmp_path):
    """32 tokens each, of prompts that end in different chunks."""
    source, _ = tiny.reference("qwen3-next")
    config, _ = read_config(tiny.save(source, tmp_path))
    params, tokens, lengths = load_params(tmp_path, config), tiny.tokens(), [9, 21]
    stops = {"stop_ids": (tiny.VOCAB, tiny.VOCAB)}  # none
    prompts = (tuple(text[:n].tolist()) for text, n in zip(tokens, lengths, strict=True))
    rows = [Row(prompt, 32, 0, **stops) for prompt in prompts]
    target = build_target(config)
    ours = run(none, rows, target=target, params=Params(params, None), lean=True).tokens
    with torch.no_grad():
        for row, said in zip(rows, ours, strict=True):
            prompt = torch.tensor([row.prompt])
            text = source.generate(prompt, do_sample=False, max_new_tokens=32, eos_token_id=None)
            assert said == text[0, len(row.prompt) :].tolist()

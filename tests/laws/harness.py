"""The drafters that the laws are tried on, and their weights."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.core import decode as decode
from specjax.core.topology import ancestors, depths
from specjax.core.types import Draft, Drafter, Params, Rule, Target
from specjax.drafters.block import block_drafter
from specjax.drafters.draft_model import draft_model
from specjax.drafters.feature import feature
from specjax.drafters.hidden_states import hidden_states
from specjax.drafters.ngram import ngram
from specjax.drafters.none import none
from specjax.drafters.stages import staged
from specjax.drafters.suffix import suffix
from specjax.drafters.tree import Tree, fixed
from specjax.models.build import (
    HeadConfig,
    build_block_head,
    build_feature_head,
    build_stages,
    build_target,
    init_params,
)
from specjax.models.config import (
    AttentionKind,
    BlockConfig,
    Delta,
    Experts,
    FeatureConfig,
    Latent,
    MedusaConfig,
    Rope,
    SpeculatorConfig,
)
from specjax.testing import harness
from specjax.testing.harness import CAPACITY, TINY, VOCAB, Result, Row, tiny_weights
from specjax.testing.harness import generate as generate
from specjax.testing.harness import init_state as init_state
from specjax.testing.harness import pack as pack
from specjax.testing.harness import prefill as prefill
from specjax.testing.harness import random_rows as random_rows
from specjax.testing.harness import step as step
from specjax.verify.walk import walk

TAPS = 1, 2
TARGET = build_target(TINY, TAPS)
K = 4  # of every chain
BLOCK = dataclasses.replace(TINY, num_layers=1, tie_word_embeddings=False)
LATENT = dataclasses.replace(  # DeepSeek's attention, and its experts in every layer
    TINY,
    num_kv_heads=1,
    qk_norm=False,
    tie_word_embeddings=False,
    rope=Rope(paired=True),
    latent=Latent(
        kv_lora_rank=12, q_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=8, v_head_dim=5
    ),
    experts=Experts(
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        moe_intermediate_size=12,
        n_group=4,
        topk_group=2,
        norm_topk_prob=True,
        routed_scaling_factor=1.5,
        scores="sigmoid",
        correction_bias=True,
    ),
)
DELTA = Delta(num_key_heads=2, num_value_heads=4, key_head_dim=6, value_head_dim=5, conv_kernel=4)
RECURRENT = dataclasses.replace(  # Qwen3-Next's layers, with both layouts of their weights
    TINY,
    num_layers=3,
    layers=(
        AttentionKind(delta=DELTA),
        AttentionKind(rope=TINY.rope),
        AttentionKind(delta=dataclasses.replace(DELTA, merged=True)),
    ),
    norm_offset=1.0,
    output_gate=True,
)
FEATURE = FeatureConfig(kind="eagle", block=BLOCK, target_size=32)
DFLASH = BlockConfig(  # a layer of each kind
    kind="dflash",
    block=dataclasses.replace(BLOCK, num_layers=2),
    target_size=32,
    taps=TAPS,
    mask_token_id=5,
    causal=(False, True),
    sliding_windows=(None, 7),
    draft_vocab_size=VOCAB - 8,
)
DSPARK = BlockConfig(
    kind="dspark",
    block=BLOCK,
    target_size=32,
    taps=TAPS,
    mask_token_id=5,
    causal=(False,),
    sliding_windows=(None,),
    sample_from_anchor=True,
    markov_rank=6,
    confidence="markov",
)
HEADS: dict[str, tuple[HeadConfig, str]] = {  # and draft_sample_method
    "eagle": (FEATURE, "greedy"),
    "eagle3": (
        dataclasses.replace(FEATURE, kind="eagle3", taps=TAPS, draft_vocab_size=VOCAB - 8),
        "coupled",
    ),
    "mtp": (dataclasses.replace(FEATURE, kind="mtp"), "greedy"),
    "deepseek_mtp": (
        dataclasses.replace(FEATURE, kind="mtp", block=dataclasses.replace(LATENT, num_layers=1)),
        "coupled",
    ),
    "medusa": (MedusaConfig(num_heads=K, num_layers=1, hidden_size=32, vocab_size=VOCAB), "greedy"),
    "mlp_speculator": (
        SpeculatorConfig(num_stages=K, hidden_size=32, inner_size=24, vocab_size=VOCAB),
        "coupled",
    ),
    "peagle": (
        dataclasses.replace(FEATURE, kind="eagle3", taps=TAPS, mask_token_id=5, block=DFLASH.block),
        "greedy",
    ),
    "dflash": (DFLASH, "coupled"),
    "dspark": (DSPARK, "greedy"),
}


def with_head(name: str, tree: Tree | int = K, method: str | None = None) -> Drafter:
    """Build the drafter of a head; ``method`` is how it draws, if not as in ``HEADS``."""
    config, usual = HEADS[name]
    method = method or usual
    if isinstance(config, FeatureConfig):
        return feature(build_feature_head(config), tree, method)
    if isinstance(config, BlockConfig):
        return block_drafter(build_block_head(config), tree, method)
    return staged(build_stages(config), tree, method)


@functools.cache
def weights(drafter: Drafter | None = None) -> Params:
    """The target's weights, and a draft: a fresh head, or the target with a little noise."""
    target = tiny_weights()
    for name, (config, _) in HEADS.items():
        if drafter is not None and drafter in (CHAINS.get(name), GROWN.get(name)):
            head = init_params(config, jax.random.key(1))
            if "vocab_rows" in head:  # the last 8 tokens are not in its vocabulary
                head["vocab_rows"] = jnp.minimum(jnp.arange(VOCAB, dtype=jnp.int32), VOCAB - 8)
            return Params(target, head)
    leaves, tree = jax.tree.flatten(target)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noisy = [x + 0.03 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    return Params(target, jax.tree.unflatten(tree, noisy))


def run(
    drafter: Drafter,
    rows: list[Row],
    *,
    rule: Rule = walk,
    target: Target = TARGET,
    params: Params | None = None,
    **shape,
) -> Result:
    """Complete a batch, with the drafter's usual weights if none are given."""
    params = weights(drafter) if params is None else params
    return harness.run(drafter, rows, target=target, params=params, rule=rule, **shape)


class Answers(NamedTuple):
    """The weights of the drafter that knows: what will be said, and how often it is right."""

    tokens: jax.Array  # [B, T]
    skill: jax.Array


@functools.cache
def guided(parents: tuple[int, ...]) -> Drafter:
    """Build a drafter that knows the answer, in any tree, and is wrong now and then.

    Each node carries the true token of its place with probability ``skill``, and a wrong one
    otherwise, so accepted paths wander through the tree.
    """
    tree = jnp.asarray([parents], jnp.int32)
    depth = depths(ancestors(tree))[0]
    nodes = len(parents)

    def propose(params, state, text, sampling, keys, window):
        size = text.tokens.shape[0]
        key = jax.random.fold_in(jax.random.key(5), text.lengths.sum())
        index = jnp.minimum(text.lengths[:, None] - 1 + depth[None], CAPACITY - 1)
        right = jnp.take_along_axis(params.tokens, index, axis=1)
        lucky = jax.random.uniform(key, (size, nodes), jnp.float32) < params.skill
        wrong = (right + 1 + jnp.arange(nodes)[None]) % VOCAB
        root = jnp.take_along_axis(text.tokens, text.lengths[:, None] - 1, axis=1)
        tokens = jnp.where(lucky, right, wrong)
        tokens = jnp.where(jnp.arange(nodes)[None] == 0, root, tokens)
        shape = jnp.broadcast_to(tree, (size, nodes))
        return Draft(tokens, shape, jnp.ones((size, nodes), bool), None), state

    return Drafter(
        init=lambda params, batch_size, capacity: (),
        propose=propose,
        observe=lambda params, state, text, seen, window: state,
        depth=int(depth.max()),
        nodes=nodes,
    )


def knowing(truth: Result, rows: list[Row], skill: float) -> Params:
    """Give ``guided`` its weights: the answers of a run."""
    tokens = np.zeros((len(rows), CAPACITY), np.int32)
    for b, row in enumerate(rows):
        end = len(row.prompt) + len(truth.tokens[b])
        tokens[b, len(row.prompt) : end] = truth.tokens[b]
    return weights()._replace(draft=Answers(jnp.asarray(tokens), jnp.float32(skill)))


def close(a: np.ndarray, b: np.ndarray) -> bool:
    """Say whether logits agree as law 1(b) asks: within 1e-4 x max(1, largest)."""
    return bool(np.abs(a - b).max() <= 1e-4 * max(1.0, float(np.abs(a).max())))


def alone(drafter: Drafter) -> Drafter:
    """Draft without parameters: suffix decoding without what other requests said."""
    return drafter._replace(propose=lambda params, *rest: drafter.propose(None, *rest))


CHAINS = {  # N = 5 for all of them
    "ngram": ngram(K, 3, 1),
    "draft_model greedy": draft_model(TARGET, K, "greedy"),
    "draft_model coupled": draft_model(TARGET, K, "coupled"),
    "pard": draft_model(TARGET, K, mask_token_id=5),
    "suffix": alone(suffix(K, 8)),
    **{name: with_head(name) for name in HEADS},
}
BUSH = fixed([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 1, 0)])
BEST = Tree(depth=3, top_k=3, num_nodes=8)  # as many nodes, other ones every round
GROWN = {
    "draft_model fixed": draft_model(TARGET, BUSH, "coupled"),
    "draft_model best": draft_model(TARGET, BEST, "greedy"),
    "eagle": with_head("eagle", BEST),
    "eagle3": with_head("eagle3", BUSH),
    "mtp": with_head("mtp", BEST),
    "medusa": with_head("medusa", BUSH),
    "dflash": with_head("dflash", BEST),
    "dspark": with_head("dspark", BUSH),
    "peagle": with_head("peagle", BEST),
}
PLAIN = none
LISTENER = hidden_states(len(TAPS), TINY.hidden_size, TINY.dtype)
CHAIN = (0, 0, 1, 2, 3)
TREES = {
    "bush": (0, 0, 0, 0, 1, 1, 2, 4, 4, 7),
    "chain in a larger tree": (0, 0, 1, 2, 3, 0),
    "binary": (0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6),
}

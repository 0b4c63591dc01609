"""Small targets and a driver for the laws: batches in, tokens and log probabilities out."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import decode
from specjax import sampling as s
from specjax.config import (
    Experts,
    FeatureConfig,
    Latent,
    MedusaConfig,
    ModelConfig,
    SpeculatorConfig,
)
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
    build_feature_head,
    build_stages,
    build_target,
    init_params,
)
from specjax.topology import ancestors, depths
from specjax.types import Draft, Drafter, Engine, Params, PyTree, State, Text
from specjax.verify.walk import walk

VOCAB = 40
CAPACITY = 128
HISTORY = 160
TINY = ModelConfig(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_position_embeddings=CAPACITY,
    qk_norm=True,
    tie_word_embeddings=True,
)
TAPS = 1, 2
TARGET = build_target(TINY, TAPS)
K = 4  # of every chain
BLOCK = dataclasses.replace(TINY, num_layers=1, tie_word_embeddings=False)
LATENT = dataclasses.replace(  # DeepSeek's attention, and its experts in every layer
    TINY,
    num_kv_heads=1,
    qk_norm=False,
    tie_word_embeddings=False,
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
        first_k_dense_replace=0,
    ),
)
FEATURE = FeatureConfig(kind="eagle", block=BLOCK, target_size=32)
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
}

prefill = jax.jit(decode.prefill, static_argnums=(0, 4))
generate = jax.jit(decode.generate, static_argnums=(0, 5))
step = jax.jit(decode.step, static_argnums=0)
init_state = jax.jit(decode.init_state, static_argnums=0)


def with_head(name: str, tree: Tree | int = K, method: str | None = None) -> Drafter:
    """Build the drafter of a head; ``method`` is how it draws, if not as in ``HEADS``."""
    config, usual = HEADS[name]
    method = method or usual
    if isinstance(config, FeatureConfig):
        return feature(build_feature_head(config), tree, method)
    return staged(build_stages(config), tree, method)


@functools.cache
def tiny_weights() -> PyTree:
    """The target's: drawn and compiled once for all drafters."""
    return jax.tree.map(lambda leaf: leaf * 1.3, init_params(TINY, jax.random.key(0)))


@functools.cache
def weights(drafter: Drafter | None = None) -> Params:
    """The target's weights, and a draft: a fresh head, or the target with a little noise."""
    target = tiny_weights()
    for name, (config, _) in HEADS.items():
        if drafter is not None and drafter in (CHAINS.get(name), GROWN.get(name)):
            head = init_params(config, jax.random.key(1))
            if "say" in head:  # the last 8 tokens are not in its vocabulary
                head["say"] = jnp.minimum(jnp.arange(VOCAB, dtype=jnp.int32), VOCAB - 8)
            return Params(target, head)
    leaves, tree = jax.tree.flatten(target)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noisy = [x + 0.03 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    return Params(target, jax.tree.unflatten(tree, noisy))


class Row(NamedTuple):
    """A request of the laws: a prompt, how much to write, and how to sample."""

    prompt: tuple[int, ...]
    max_tokens: int
    seed: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = VOCAB
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    max_draft: int = 99


class Result(NamedTuple):
    """What a run gave, per row."""

    tokens: list[list[int]]  # output only
    logprobs: list[np.ndarray]  # [tokens, V] of the raw target law at each emitted position
    reason: list[int]
    infos: decode.StepInfo  # stacked, of the steps (prefill left out)
    rounds: int
    state: State


def pack(
    rows: list[Row], capacity: int = CAPACITY, lean: bool = False
) -> tuple[Text, s.Sampling, jax.Array]:
    """Lay rows out as a batch with every sampling feature present, or none when ``lean``."""
    size = len(rows)
    tokens = np.full((size, capacity), 3, np.int32)
    stops, words = np.full((size, 2), VOCAB, np.int32), np.full((size, 2, 3), VOCAB, np.int32)
    for b, row in enumerate(rows):
        tokens[b, : len(row.prompt)] = row.prompt
        stops[b, : len(row.stop_ids)] = row.stop_ids
        for w, word in enumerate(row.bad_words):
            words[b, w, -len(word) :] = word
    starts = jnp.asarray([len(row.prompt) for row in rows], jnp.int32)
    limits = starts + jnp.asarray([row.max_tokens for row in rows], jnp.int32)
    text = Text(jnp.asarray(tokens), starts, starts, limits, jnp.zeros(size, jnp.int32))

    def column(name, dtype=jnp.float32):
        return jnp.asarray([getattr(row, name) for row in rows], dtype)

    sampling = s.Sampling(
        temperature=column("temperature"),
        max_draft=column("max_draft", jnp.int32),
        stop_ids=jnp.asarray(stops),
        min_tokens=column("min_tokens", jnp.int32),
        top_k=column("top_k", jnp.int32),
        top_p=column("top_p"),
        min_p=jnp.zeros(size, jnp.float32),
        penalties=s.Penalties(column("repetition"), column("presence"), column("frequency")),
        bias=jnp.zeros((size, VOCAB), jnp.float32),
        bad_words=jnp.asarray(words),
    )
    if lean:
        sampling = s.Sampling(sampling.temperature, sampling.max_draft, sampling.stop_ids)
    return text, sampling, jnp.stack([s.row_key(row.seed) for row in rows])


def run(
    drafter: Drafter,
    rows: list[Row],
    *,
    rule=walk,
    target=TARGET,
    params: Params | None = None,
    chunk: int = 16,
    window: int = CAPACITY,
    capacity: int = CAPACITY,
    lean: bool = False,
) -> Result:
    """Complete a batch: prefill in chunks, then one while_loop. Lean runs report no scores."""
    params = weights(drafter) if params is None else params
    engine = Engine(target, drafter, rule, window, num_logprobs=None if lean else VOCAB)
    state = init_state(engine, params, *pack(rows, capacity, lean))
    size, found = len(rows), [[] for _ in rows]
    first = state.text.starts
    for start in range(0, max(len(row.prompt) for row in rows), chunk):
        state, info, _ = prefill(engine, params, state, start, chunk)
        collect(found, info, size)
    state, infos, rounds = generate(engine, params, state, HISTORY, 1, HISTORY)
    text, infos = jax.device_get((state.text, infos))
    for r in range(int(rounds)):
        collect(found, jax.tree.map(lambda leaf, r=r: leaf[r], infos), size)
    tokens = [text.tokens[b, first[b] : text.lengths[b]].tolist() for b in range(size)]
    stacked = [np.array(one) for one in found]
    return Result(tokens, stacked, text.reason.tolist(), infos, int(rounds), state)


def collect(found: list[list], info, size: int) -> None:
    """Append the full log probabilities [V] of every token a round emitted."""
    if info.logprobs is None:
        return
    ids, values, counts = map(
        np.asarray, (info.logprobs.ids, info.logprobs.values, info.num_emitted)
    )
    for b in range(size):
        for j in range(counts[b]):
            dense = np.zeros(VOCAB, np.float32)
            dense[ids[b, j, 1:]] = values[b, j, 1:]
            found[b].append(dense)


def random_rows(size: int, seed: int, *, plain: bool = False, max_tokens: int = 60) -> list[Row]:
    """Draw requests of every kind: greedy and hot, penalised, truncated, stopped."""
    rng = np.random.default_rng(seed)
    rows = []
    for b in range(size):
        prompt = tuple(rng.integers(0, VOCAB, rng.integers(1, 40)).tolist())
        row = Row(prompt, int(rng.integers(1, max_tokens + 1)), int(rng.integers(2**63)))
        if not plain:
            row = row._replace(
                temperature=float(rng.choice([0.0, 0.5, 1.0, 1.5])),
                top_p=float(rng.choice([1.0, 0.7])),
                top_k=int(rng.choice([VOCAB, 5])),
                repetition=float(rng.choice([1.0, 1.3])),
                presence=float(rng.choice([0.0, 0.4])),
                frequency=float(rng.choice([0.0, 0.2])),
                min_tokens=int(rng.choice([0, 6])),
                stop_ids=tuple(rng.integers(0, VOCAB, rng.integers(0, 3)).tolist()),
                bad_words=((int(rng.integers(VOCAB)),), tuple(rng.integers(0, VOCAB, 2).tolist()))
                if b % 2
                else (),
            )
        rows.append(row)
    return rows


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
}
PLAIN = none
LISTENER = hidden_states(len(TAPS), TINY.hidden_size, TINY.dtype)
CHAIN = (0, 0, 1, 2, 3)
TREES = {
    "bush": (0, 0, 0, 0, 1, 1, 2, 4, 4, 7),
    "chain in a larger tree": (0, 0, 1, 2, 3, 0),
    "binary": (0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6),
}

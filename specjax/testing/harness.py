"""A tiny target, random requests, and a loop over batches: what the laws are tried on."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.core import decode
from specjax.core import sampling as s
from specjax.core.types import (
    Drafter,
    Engine,
    Params,
    Penalties,
    PyTree,
    Rule,
    Sampling,
    State,
    StepInfo,
    Target,
    Text,
)
from specjax.models.build import init_params
from specjax.models.config import ModelConfig
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

prefill = jax.jit(decode.prefill, static_argnums=(0, 4))
generate = jax.jit(decode.generate, static_argnums=(0, 5))
step = jax.jit(decode.step, static_argnums=0)
init_state = jax.jit(decode.init_state, static_argnums=0)


@functools.cache
def tiny_weights(config: ModelConfig = TINY) -> PyTree:
    """Return the weights of a tiny target, drawn and compiled once."""
    return jax.tree.map(lambda leaf: leaf * 1.3, init_params(config, jax.random.key(0)))


class Row(NamedTuple):
    """A request: a prompt, how much to write, and how to sample."""

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
    infos: StepInfo  # stacked, of the steps (prefill left out)
    rounds: int
    state: State


def pack(
    rows: list[Row], capacity: int = CAPACITY, lean: bool = False
) -> tuple[Text, Sampling, jax.Array]:
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

    sampling = Sampling(
        temperature=column("temperature"),
        max_draft=column("max_draft", jnp.int32),
        stop_ids=jnp.asarray(stops),
        min_tokens=column("min_tokens", jnp.int32),
        top_k=column("top_k", jnp.int32),
        top_p=column("top_p"),
        min_p=jnp.zeros(size, jnp.float32),
        penalties=Penalties(column("repetition"), column("presence"), column("frequency")),
        bias=jnp.zeros((size, VOCAB), jnp.float32),
        bad_words=jnp.asarray(words),
    )
    if lean:
        sampling = Sampling(sampling.temperature, sampling.max_draft, sampling.stop_ids)
    return text, sampling, jnp.stack([s.row_key(row.seed) for row in rows])


def run(
    drafter: Drafter,
    rows: list[Row],
    *,
    target: Target,
    params: Params,
    rule: Rule = walk,
    chunk: int = 16,
    window: int = CAPACITY,
    capacity: int = CAPACITY,
    lean: bool = False,
) -> Result:
    """Complete a batch: prefill in chunks, then one while_loop. Lean runs report no scores."""
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


def collect(found: list[list], info: StepInfo, size: int) -> None:
    """Append to each of ``size`` rows the log probabilities [V] of every token a round emitted."""
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

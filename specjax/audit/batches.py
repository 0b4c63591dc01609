"""Batches of drafts, probabilities and noise on which any engine's sampler can be replayed.

The same numbers come in our layout (``pad``: rows of chains) and in vLLM's (``flat``: rows
concatenated). A seed always gives the same batch, so that results can be recorded.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.audit.philox import Noise
from specjax.core.topology import chain_parents
from specjax.core.types import Draft
from specjax.verify import noise as v
from specjax.verify.probs_rule import ProbsKernel
from specjax.verify.rejection import reject

ROWS, K, V = 6, 5, 24  # the largest batch; smaller ones are padded to it
KINDS = ("sampled", "one_hot", "zeros", "ties", "greedy", "same")


class Batch(NamedTuple):
    """The inputs of a sampler, padded: R rows, up to K draft tokens, up to V vocabulary entries."""

    counts: np.ndarray  # [R] drafts per row
    draft: np.ndarray  # [R, K]
    target: np.ndarray  # [R, K, V] probabilities
    probs: np.ndarray | None  # [R, K, V]
    accept: np.ndarray  # [R, K] uniforms
    recover: np.ndarray  # [R, V] exponentials, one set per request as in vLLM; or [R, K, V]
    bonus: np.ndarray  # [R]
    greedy: np.ndarray  # [R]


def probabilities(noise: Noise, kind: str, *shape: int) -> np.ndarray:
    """Return random distributions over the last axis.

    ``kind`` "zeros" gives half of the tokens probability 0, "ties" gives them equal pairs.
    """
    weights = noise.uniform(*shape).astype(np.float64) ** 4 + 1e-9
    if kind == "zeros":
        weights *= noise.uniform(*shape) < 0.5
        weights[..., 0] += 1e-3
    if kind == "ties":
        weights = np.repeat(weights, 2, axis=-1)[..., : shape[-1]]
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


def make(seed: int) -> Batch:
    """Return the random batch of a seed: kind, sizes, probabilities, drafts and noise."""
    noise, kind = Noise(seed), KINDS[seed % len(KINDS)]
    rows, depth, size = noise.integer(1, ROWS + 1), noise.integer(1, K + 1), noise.integer(2, V + 1)
    counts = noise.integers(0, depth + 1, rows)
    counts[0] = depth
    target = probabilities(noise, kind, rows, depth, size)
    draft = noise.integers(0, size, rows, depth)
    probs = None
    if kind not in ("one_hot", "greedy"):
        probs = target if kind == "same" else probabilities(noise, kind, rows, depth, size)
        draws = noise.uniform(rows, depth, 1) * probs.sum(-1, keepdims=True)
        draft = (probs.cumsum(axis=-1) < draws).sum(axis=-1)
        draft = np.where(np.take_along_axis(probs, draft[..., None], -1)[..., 0] > 0, draft, 0)
        likely = np.take_along_axis(probs, draft[..., None], -1)[..., 0] > 0
        draft = np.where(likely, draft, probs.argmax(axis=-1))  # vLLM accepts at q(d) = 0
    accept, recover = noise.uniform(rows, depth), noise.exponential(rows, size)
    if kind == "ties":
        recover = np.ones_like(recover)
    greedy = np.full(rows, kind == "greedy") | (noise.uniform(rows) < 0.2)
    bonus = noise.integers(0, size, rows)
    return Batch(counts, draft, target, probs, accept, recover, bonus, greedy)


def flat(batch: Batch) -> dict[str, np.ndarray]:
    """Return a batch in vLLM's layout: the rows' drafts concatenated."""
    real = np.arange(batch.draft.shape[1])[None] < batch.counts[:, None]
    with np.errstate(divide="ignore"):
        logits = np.log(batch.target[real])
    arrays = {
        "counts": batch.counts,
        "draft": batch.draft[real].astype(np.int32),
        "target": logits,
        "accept": batch.accept[real].astype(np.float64),
        "recover": batch.recover,
        "bonus": batch.bonus.astype(np.int32),
        "greedy": batch.greedy,
    }
    return arrays if batch.probs is None else arrays | {"probs": batch.probs[real]}


def save(made: Sequence[Batch], path: Path) -> None:
    """Write batches to the .npz file that the oracle's "rejection" job reads."""
    arrays = {}
    for i, one in enumerate(made):
        arrays |= {f"{i}_{name}": value for name, value in flat(one).items()}
    np.savez(path, **arrays)


def pad(batch: Batch) -> tuple[v.Noise, Draft, jax.Array]:
    """Return a batch in our layout: a chain of K + 1 nodes per row, the target after each node.

    A greedy row's target is one-hot (law 4). After the last draft token the target is one-hot at
    the bonus token, which vLLM receives as an argument.
    """
    rows, depth, size = batch.target.shape
    tokens, valid = np.zeros((ROWS, K + 1), np.int32), np.zeros((ROWS, K + 1), bool)
    tokens[:rows, 1 : depth + 1], valid[:, 0] = batch.draft, True
    valid[:rows, 1 : depth + 1] = np.arange(depth)[None] < batch.counts[:, None]
    best = np.eye(size, dtype=np.float32)[batch.target.argmax(axis=-1)]
    target = np.full((ROWS, K + 1, V), 1 / V, np.float32)
    target[:rows] = 0.0
    target[:rows, :depth, :size] = np.where(batch.greedy[:, None, None], best, batch.target)
    target[np.arange(rows), batch.counts] = np.eye(V)[batch.bonus]
    probs = None
    if batch.probs is not None:
        probs = np.zeros((ROWS, K + 1, V), np.float32)
        probs[:rows, 1 : depth + 1, :size] = batch.probs
    accept = np.full((ROWS, K + 1), 0.5, np.float32)
    accept[:rows, 1 : depth + 1] = batch.accept
    recover = np.ones((ROWS, K + 1, V), np.float32)
    recover[:rows, :depth, :size] = batch.recover.reshape(rows, -1, size)
    arrays = jax.tree.map(jnp.asarray, (tokens, valid, probs, accept, recover, target))
    tokens, valid, probs, accept, recover, target = arrays
    draft = Draft(tokens, chain_parents(ROWS, K + 1), valid, probs)
    return v.Noise(accept, recover), draft, target


def emit(batch: Batch, kernel: ProbsKernel = reject) -> list[list[int]]:
    """Return the tokens that a kernel of ours, by default the rejection one, emits in every row."""
    verdict = jax.jit(kernel, static_argnums=3)(*pad(batch), K)
    counts = np.asarray(verdict.num_accepted) + 1
    tokens = np.asarray(verdict.tokens)
    return [tokens[b, : counts[b]].tolist() for b in range(len(batch.counts))]


def edge() -> Batch:
    """Return a batch of one draft token whose uniform is exactly p / q."""
    p = np.asarray([[[0.25, 0.75]]], np.float32)
    half = np.full_like(p, 0.5)
    one, two = np.ones(1, np.int64), np.ones((1, 2), np.float32)
    accept, no = np.full((1, 1), 0.5, np.float32), np.zeros(1, bool)
    return Batch(one, np.zeros((1, 1), np.int64), p, half, accept, two, one, no)

"""Speculation on toy Markov chains with the shipped ``step``: many runs in one compiled call.

The target is a first-order Markov chain and the draft model another one of a given correlation;
``decode.step`` drafts, verifies and commits, as in the engine. The counts can be compared with
exact sums (``exact_tokens_per_step``), and with rounds drawn from their law (``chain_law``), which
are drawn some forty times as fast.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key
from numpy.random import default_rng
from scipy.special import softmax

from specjax.core import decode
from specjax.core.types import RUNNING, Engine, Params, Sampling, State, Text
from specjax.drafters.draft_model import draft_model
from specjax.models.toy import markov_target
from specjax.simulate.chain_law import accepted_mass, draw_rounds, make_tables, softmax_at
from specjax.simulate.noise import noise_key
from specjax.theory.acceptance import tv
from specjax.theory.arrays import Real, Scalar, Value, require
from specjax.theory.mixtures import markov_tokens
from specjax.verify.rejection import rejection
from specjax.verify.walk import walk

METHODS = {"probabilistic": rejection, "coupled": walk, "greedy": walk}
NUM_START = 4  # rounds that are not counted, until the start is forgotten


class Pair(NamedTuple):
    """A target and a draft: the logits after each token, for one draft or several."""

    target: Float[Array, "V V"]
    draft: Float[Array, "*A V V"]


class Counts(NamedTuple):
    """Counts of each run. Leading axes: see ``chain``."""

    num_rounds: int
    num_drafted: Int[Array, "*G"]
    num_accepted: Int[Array, "*G"]
    num_emitted: Int[Array, "*G"]
    accepted_per_pos: Int[Array, "*G K"]  # rounds that accepted more than i tokens

    @property
    def tokens_per_step(self) -> Float[Array, "*G"]:
        """Emitted tokens per round, the target's own included."""
        return self.num_emitted / self.num_rounds


def correlated_pair(
    alpha: Real, vocab_size: int = 32, sharpness: Scalar = 2.0, seed: int = 0
) -> Pair:
    """Return a random target, and drafts whose tokens it accepts with probability alpha.

    Rows of the target are softmax(sharpness x normal). A draft mixes p with the distribution r that
    has p's ranks reversed: q = (1 - w) p + w r gives sum min(p, q) = 1 - w TV(p, r), so every state
    has exactly this alpha, at temperature 1. ``alpha`` [*A] makes drafts [*A, V, V].
    Raises ValueError for alpha above 1 or below what such a mixture reaches.
    """
    require("alpha", alpha, 0.0, 1.0)
    rng = default_rng(seed)
    p = softmax(sharpness * rng.normal(size=(vocab_size, vocab_size)), axis=-1)
    order = np.argsort(p, axis=-1)
    r = np.empty_like(p)
    np.put_along_axis(r, order, np.take_along_axis(p, order[:, ::-1], axis=-1), axis=-1)
    weight = (1.0 - np.asarray(alpha, np.float64)[..., None]) / tv(p, r)  # [*A, V]
    if (weight > 1.0).any():
        least = float((1.0 - tv(p, r)).max())
        raise ValueError(
            f"alpha must be at least {least:.3f} at sharpness {sharpness:g}, "
            f"got {np.min(alpha):g}; a larger sharpness reaches further down"
        )
    q = (1.0 - weight)[..., None] * p + weight[..., None] * r
    return Pair(jnp.asarray(np.log(p), jnp.float32), jnp.asarray(np.log(q), jnp.float32))


def chain(
    pair: Pair,
    temperatures: Real = (1.0,),
    num_speculative_tokens: Real = 4,
    num_seeds: int = 64,
    num_rounds: int = 64,
    method: str = "probabilistic",
    seed: int = 0,
    by: str = "step",
) -> Counts:
    """Return the counts of every (draft, temperature, K, seed), leading axes [*A, T, D, S].

    One compiled call: vmapped over the drafts; temperatures, K and seeds are rows of one batch,
    as requests are in an engine. All rows run max K nodes, and each its own K through
    ``Sampling.max_draft``, which marks deeper nodes not ``valid``; K = 0 is plain decoding. Equal
    seeds share their noise (common random numbers).
    ``method``: "probabilistic" (rejection sampling), "coupled" or "greedy" (walk).
    ``by``: "step" runs the shipped round; "law" draws rounds of the same law, some forty times as
    fast, to simulate much rather than to test the round.
    ``num_speculative_tokens`` [D] and ``temperatures`` [T] may be single numbers: axes of size 1.
    Raises ValueError for a negative temperature or K, no K above 0, or another method or ``by``.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if by not in ("step", "law"):
        raise ValueError(f"by must be 'step' or 'law', got {by!r}")
    depths = np.atleast_1d(np.asarray(num_speculative_tokens, np.int32))
    hot = np.atleast_1d(np.asarray(temperatures, np.float32))
    require("temperatures", hot, 0.0)
    require("num_speculative_tokens", depths, 0)
    require("the largest K", depths.max(), 1)
    require("num_seeds", num_seeds, 1)
    require("num_rounds", num_rounds, 1)
    if by == "law":
        return draw_grid(pair, noise_key(seed), hot, depths, num_seeds, num_rounds, method)
    return run_grid(
        Pair(*map(jnp.asarray, pair)),
        noise_key(seed),
        hot,
        depths,
        int(depths.max()),
        num_seeds,
        num_rounds,
        method,
    )


def draw_grid(
    pair: Pair,
    key: Value,
    temperatures: Value,
    depths: Value,
    num_seeds: int,
    num_rounds: int,
    method: str,
) -> Counts:
    """Return the counts of the grid, its rounds drawn from their law."""
    target, draft = (np.asarray(one, np.float64) for one in pair)
    size, drafts = len(target), draft.shape[:-2]
    tables = make_tables(target, draft.reshape(-1, size, size), temperatures, method)
    shape = (len(tables.aliases), len(depths), num_seeds)  # laws, K, seeds
    which, max_draft = (
        np.broadcast_to(one, shape).ravel()
        for one in (np.arange(shape[0], dtype=np.int32)[:, None, None], depths[:, None])
    )
    words = jax.random.key_data(jax.random.split(key, num_seeds)).T  # [2, S]
    words = jnp.tile(words, shape[0] * shape[1])
    positions = np.arange(depths.max(), dtype=np.int32)
    rounds = np.int32(NUM_START), np.int32(num_rounds)
    accepted, reached = draw_rounds(tables, words, which, max_draft, positions, *rounds)
    grid = (*drafts, len(temperatures), *shape[1:])
    return Counts(
        num_rounds,
        jnp.asarray(max_draft * num_rounds).reshape(grid),
        accepted.reshape(grid),
        (accepted + num_rounds).reshape(grid),
        reached.T.reshape(*grid, -1),
    )


@functools.partial(jax.jit, static_argnums=(4, 5, 6, 7))
def run_grid(
    pair: Pair,
    key: Value,
    temperatures: Value,
    depths: Value,
    depth: int,
    num_seeds: int,
    num_rounds: int,
    method: str,
) -> Counts:
    """Return the counts of the grid: one compiled call, vmapped over drafts, the rest as rows."""
    shape = (len(temperatures), len(depths), num_seeds)
    hot = jnp.broadcast_to(temperatures[:, None, None], shape).ravel()
    max_draft = jnp.broadcast_to(depths[None, :, None], shape).ravel()
    keys = jnp.broadcast_to(jax.random.split(key, num_seeds)[None, None], shape).ravel()

    def one(draft):
        params = Params(pair.target, draft)
        _, totals = run(params, keys, hot, max_draft, depth, num_rounds, method)
        return tuple(total.reshape(*shape, *total.shape[1:]) for total in totals)

    for _ in range(pair.draft.ndim - 2):
        one = jax.vmap(one)
    return Counts(num_rounds, *one(pair.draft))


def run(
    params: Params,
    keys: Key[Array, "B"],
    temperatures: Float[Array, "B"],
    max_draft: Int[Array, "B"],
    depth: int,
    num_rounds: int,
    method: str,
) -> tuple[State, tuple[Array, ...]]:
    """Return the last state, and per row the drafted, accepted and emitted tokens of its rounds.

    A fourth count [B, K] is how many rounds accepted more than i tokens.
    """
    vocab_size, rows = params.target.shape[0], keys.shape[0]
    model = markov_target(vocab_size)
    engine = Engine(model, draft_model(model, depth, method), METHODS[method], depth + 1)
    capacity = 2 + (NUM_START + num_rounds) * (depth + 1)
    one = jnp.ones(rows, jnp.int32)
    text = Text(
        tokens=jnp.zeros((rows, capacity), jnp.int32),
        starts=one,
        lengths=one,
        limits=one * (capacity + depth + 1),
        reason=one * RUNNING,
    )
    sampling = Sampling(
        temperature=temperatures,
        max_draft=max_draft,
        stop_ids=jnp.full((rows, 1), vocab_size, jnp.int32),
    )
    state = decode.init_state(engine, params, text, sampling, keys)
    state, _, _ = decode.prefill(engine, params, state, jnp.int32(0), 1)
    state, _ = jax.lax.scan(
        lambda state, _: (decode.step(engine, params, state)[0], None), state, length=NUM_START
    )
    position = jnp.arange(depth)[None]

    def count(carry, _):
        state, totals = carry
        state, info = decode.step(engine, params, state)
        reached = (info.num_accepted[:, None] > position).astype(jnp.int32)
        new = (info.num_drafted, info.num_accepted, info.num_emitted, reached)
        return (state, jax.tree.map(jnp.add, totals, new)), None

    zero = jnp.zeros(rows, jnp.int32)
    start = (zero, zero, zero, jnp.zeros((rows, depth), jnp.int32))
    (state, totals), _ = jax.lax.scan(count, (state, start), length=num_rounds)
    return state, totals


def exact_tokens_per_step(
    pair: Pair, temperature: Scalar, num_speculative_tokens: int, method: str = "probabilistic"
) -> float:
    """Return the expected emitted tokens per round in the long run, of one pair of models.

    With M[s, x] the chance that x is drafted and accepted after s, and P the target's chain, a
    round that starts in s ends in y with chance sum_{j<K} M^j (P - M) + M^K P; its stationary
    distribution is where rounds start, and ``theory.markov_tokens`` does the rest.
    M is ``accepted_mass``.
    """
    p, q = (softmax_at(logits, temperature) for logits in pair)
    accepted = accepted_mass(p, q, method)
    depth, size = num_speculative_tokens, len(p)
    ends = np.linalg.matrix_power(accepted, depth) @ p
    for j in range(depth):
        ends = ends + np.linalg.matrix_power(accepted, j) @ (p - accepted)
    system = np.concatenate([ends.T - np.eye(size), np.ones((1, size))])
    start = np.linalg.lstsq(system, np.eye(size + 1)[-1], rcond=None)[0]
    alphas = accepted.sum(axis=-1)
    moves = np.where(alphas[:, None] > 0, accepted / np.maximum(alphas, 1e-300)[:, None], p)
    return float(markov_tokens(np.maximum(start, 0), moves, np.minimum(alphas, 1), depth))

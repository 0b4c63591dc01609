"""Run one round with noise of the caller's choice: a drafter and a rule as functions of bits.

The words of this enumeration: a *race* samples a token, a *threshold* accepts one (``races``).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from specjax.audit import noise_table as table
from specjax.audit.noise_table import Block
from specjax.audit.races import Region, whole, won_by
from specjax.core import decode
from specjax.core.topology import place
from specjax.core.types import Draft, Engine, Params, PyTree, State, StepInfo

ROWS = 512  # of one call, so that each function is compiled once


class Race(NamedTuple):
    """A sample: the first of the tokens not taken, of exponential numbers over weights."""

    block: Block
    weights: tuple[float, ...]
    token: int
    taken: tuple[int, ...] = ()


class Threshold(NamedTuple):
    """A uniform number in low .. high - 1, in units of 2^-23."""

    number: Block
    low: int
    high: int


Read = Race | Threshold


@runtime_checkable
class Step(Protocol):
    """Run one round of an engine, as ``decode.step`` does."""

    def __call__(self, engine: Engine, params: Params, state: State, /) -> tuple[State, StepInfo]:
        """Return the state after the round, and its counts."""
        ...


class Machine(NamedTuple):
    """An engine over rows of a batch, and the addresses of its noise in this round."""

    engine: Engine
    step: Step
    params: Params
    addresses: np.ndarray  # [A]
    columns: int
    proposing: dict[int, int]  # address: words, of those that the drafter draws
    drawing: dict[int, int]  # of those that drafter or rule draw

    @property
    def size(self) -> int:
        """The vocabulary size."""
        return self.engine.target.vocab_size

    def even(self, rows: int) -> np.ndarray:
        """Return bits [R, A, C] of exponential numbers that are all 1."""
        shape = rows, len(self.addresses), self.columns
        return np.broadcast_to(table.bits_of_exponentials(np.ones(1)), shape).copy()

    def slot(self, address: int) -> int:
        """Return the row of the table of an address."""
        return int(np.flatnonzero(self.addresses == address)[0])

    def run(
        self,
        function: Callable[..., PyTree],
        states: State,
        index: np.ndarray,
        bits: np.ndarray,
        *more: PyTree,
    ) -> Any:
        """Return ``function(engine, params, state, *more)`` of rows of states with these bits."""
        found = []
        for first in range(0, len(index), ROWS):
            turn = np.resize(np.arange(first, min(first + ROWS, len(index))), ROWS)
            keys = table.table_keys(self.addresses, bits[turn])
            state = pick(states._replace(keys=None), index[turn])._replace(keys=keys)
            out = function(self.engine, self.params, state, *pick(more, turn))
            found.append(jax.device_get(out))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(index)], *found)


def pick(rows: PyTree, index: np.ndarray) -> PyTree:
    """Return these rows of every array."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[index]), rows)


@functools.partial(jax.jit, static_argnums=0)
def propose(engine: Engine, params: Params, state: State) -> Draft:
    """Return the draft of a round."""
    text, _, own, sampling, keys = state
    draft, _ = engine.drafter.propose(params.draft, own, text, sampling, keys, engine.window)
    return decode.limit_draft_depth(draft, sampling)


@functools.partial(jax.jit, static_argnums=0)
def look(engine: Engine, params: Params, state: State, draft: Draft) -> tuple[PyTree, jax.Array]:
    """Return the rule's noise for a draft, and the target's logits after each of its nodes."""
    text, cache, _, sampling, keys = state
    noise = engine.rule.draw_noise(keys, text, draft, sampling, engine.target.vocab_size)
    positions, visible = place(draft, cache.lengths)
    order = "chain" if engine.drafter.nodes == engine.drafter.depth + 1 else "tree"
    output, _ = engine.target.forward(
        params.target, draft.tokens, positions, visible, cache, engine.window, None, draft.valid,
        order,
    )  # fmt: skip
    return noise, engine.target.logits(params.target, output.hidden)


@functools.cache
def compiled(step: Step) -> Callable[[Engine, Params, State], tuple[State, StepInfo]]:
    """Return a round as a compiled function whose states have no keys."""

    def run(engine: Engine, params: Params, state: State) -> tuple[State, StepInfo]:
        state, info = step(engine, params, state)
        return state._replace(keys=None), info  # pyright: ignore

    return jax.jit(run, static_argnums=0)


def machine_for(engine: Engine, step: Step, params: Params, states: State) -> Machine:
    """Return the machine for a round from these states: addresses are recorded for every text."""
    text, size = states.text, len(states.text.lengths)
    known = {text.tokens[row, : text.lengths[row]].tobytes(): row for row in range(size)}
    rows = np.array(list(known.values()))
    rows = np.resize(rows, -(-len(rows) // 128) * 128)  # so that it is compiled once
    state = pick(states._replace(keys=None), rows)._replace(keys=table.recording_keys(len(rows)))
    table.SEEN.clear()
    draft = jax.block_until_ready(propose(engine, params, state))
    proposing = dict(table.SEEN)
    jax.block_until_ready(look(engine, params, state, draft))
    drawing = dict(table.SEEN)
    slots = -(-max(len(drawing), 1) // 32) * 32
    unused = np.arange(2**32 - slots, 2**32)  # no address: they are folded from small numbers
    addresses = np.concatenate([np.array(sorted(drawing), int), unused])[:slots]
    size = engine.target.vocab_size
    columns = max([size, engine.drafter.nodes, *drawing.values()])
    return Machine(engine, step, params, addresses, columns, proposing, drawing)


@functools.cache
def region(size: int, races: tuple[Race, ...]) -> Region:
    """Return what is known of the numbers of a block after these races."""
    if not races:
        return whole(size)
    *before, last = races
    known = region(size, tuple(before))
    return won_by(known, np.array(last.weights), last.token, last.taken)


def write_race(machine: Machine, bits: np.ndarray, block: Block, point: np.ndarray) -> np.ndarray:
    """Return bits [A, C] with the exponential numbers ``point``, scaled, at a block."""
    (address, first), changed = block, bits.copy()
    words = table.bits_of_exponentials(point * len(point))
    changed[machine.slot(address), first : first + len(point)] = words
    return changed

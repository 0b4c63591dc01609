"""Find every draft of a text and the races that draw it, without knowledge of the drafter.

A sampled draft token wins a race among V exponential numbers. At which address, and with which
weights, is found by running the shipped ``propose``: the numbers of one address are changed, and
the node's token is looked at. A later node is searched for after each token of the earlier ones.
"""

from typing import NamedTuple

import jax
import numpy as np

from specjax.audit import noise_table as table
from specjax.audit.noise_partition import GRID, count
from specjax.audit.noise_table import Block
from specjax.audit.one_round import Machine, Race, propose, region, write_race
from specjax.audit.races import inner_points, random_point
from specjax.core.types import Draft, State

LATE = 16.0  # about the largest exponential number that a key can give
EARLY = 2.0**-30


class Drafted(NamedTuple):
    """One draft of one text, and what was read to make it."""

    owner: int  # the text
    reads: tuple[Race, ...]
    draft: Draft  # NumPy rows


def find_drafts(machine: Machine, states: State) -> list[Drafted]:
    """Return every draft of every state [R], with the races that it won."""
    size, nodes = machine.size, machine.engine.drafter.nodes
    blocks = [
        (address, first)
        for address, words in sorted(machine.proposing.items())
        for first in range(0, words - size + 1, size)
    ]
    owners = np.arange(len(states.text.lengths))
    partial: list[tuple[tuple[Race, ...], dict[int, Race]]] = [((), {}) for _ in owners]
    bits = machine.even(len(owners))
    for node in range(1, nodes):
        draft = machine.run(propose, states, owners, bits)
        block_of = find_blocks(machine, states, owners, bits, node, blocks, draft.valid[:, node])
        weights, rows = np.zeros((len(owners), size)), np.array(sorted(block_of), int)
        if len(rows):
            chosen = [block_of[row] for row in rows]
            weights[rows] = find_weights(machine, states, owners[rows], bits[rows], node, chosen)
        following, new_bits, new_owners = [], [], []
        for row, (reads, races) in enumerate(partial):
            options: list[Race | None] = [None]
            sibling = previous_sibling(draft, row, node, races)
            if row in block_of:
                found = tuple((weights[row] / weights[row].sum()).tolist())
                options = [Race(block_of[row], found, i) for i in range(size)]
            elif sibling is not None and draft.valid[row, node]:
                taken = (*sibling.taken, sibling.token)
                options = [
                    sibling._replace(token=i, taken=taken) for i in range(size) if i not in taken
                ]
            for race in options:
                own, changed = reads, bits[row]
                if race is not None:
                    own = (*reads, race)
                    among = tuple(one for one in own if one.block == race.block)
                    known = region(size, among)
                    if known.mass == 0:
                        continue
                    changed = write_race(machine, changed, race.block, inner_points(known)[0])
                following.append((own, races if race is None else {**races, node: race}))
                new_bits.append(changed)
                new_owners.append(owners[row])
        partial, bits, owners = following, np.stack(new_bits), np.array(new_owners)
    draft = machine.run(propose, states, owners, bits)
    check_drafts(machine, states, owners, draft, [reads for reads, _ in partial])
    every = (jax.tree.map(lambda leaf, row=row: leaf[row], draft) for row in range(len(owners)))
    return [
        Drafted(int(owner), reads, one)
        for owner, (reads, _), one in zip(owners, partial, every, strict=True)
    ]


def check_drafts(
    machine: Machine, states: State, owners: np.ndarray, draft: Draft,
    reads: list[tuple[Race, ...]],
) -> None:  # fmt: skip
    """Raise ValueError unless random numbers that satisfy a draft's races always draw it."""
    rng = np.random.default_rng(0)
    shape = len(owners), len(machine.addresses), machine.columns
    for _ in range(4):
        bits = rng.integers(0, 2**32, shape, np.uint32)
        for row, races in enumerate(reads):
            for block in {race.block for race in races}:
                known = region(machine.size, tuple(r for r in races if r.block == block))
                bits[row] = write_race(machine, bits[row], block, random_point(known, rng))
        again = machine.run(propose, states, owners, bits)
        differs = ((again.tokens != draft.tokens) & draft.valid).any(axis=1)
        if differs.any():
            row = int(differs.argmax())
            raise ValueError(
                f"the draft {again.tokens[row]} is drawn where {draft.tokens[row]} was: its tokens "
                "do not come from one race each, with noise that no other node has; that cannot be "
                "enumerated"
            )


def previous_sibling(draft: Draft, row: int, node: int, races: dict[int, Race]) -> Race | None:
    """Return the race that the last sampled sibling before a node has won."""
    parents = np.asarray(draft.parents)[row]
    before = [other for other in races if parents[other] == parents[node]]
    return races[max(before)] if before else None


def find_blocks(
    machine: Machine, states: State, owners: np.ndarray, bits: np.ndarray, node: int,
    blocks: list[Block], valid: np.ndarray,
) -> dict[int, Block]:  # fmt: skip
    """Return, by row, the block not read before whose numbers decide the token of a node."""
    size, rows = machine.size, np.flatnonzero(valid)
    found: dict[int, Block] = {}
    probes = np.where(np.eye(size, dtype=bool), EARLY, LATE)
    untouched = table.bits_of_exponentials(np.ones(1))[0]
    for address, first in blocks:
        slot = machine.slot(address)
        where = slot, slice(first, first + size)
        fresh = rows[(bits[rows, slot, first : first + size] == untouched).all(axis=-1)]
        if not len(fresh):
            continue
        tried = np.repeat(bits[fresh][:, None], size, axis=1)
        tried[:, :, where[0], where[1]] = table.bits_of_exponentials(probes)
        tokens = machine.run(
            propose, states, owners[fresh].repeat(size), tried.reshape(-1, *bits.shape[1:])
        ).tokens[:, node].reshape(-1, size)  # fmt: skip
        for row in fresh[(tokens != tokens[:, :1]).any(axis=1)].tolist():
            if row in found:
                raise ValueError(
                    f"draft node {node} reads the noise of {found[row]} and {(address, first)}: "
                    "a node that is not sampled by one race cannot be enumerated"
                )
            found[row] = address, first
    return found


def find_weights(
    machine: Machine, states: State, owners: np.ndarray, bits: np.ndarray, node: int,
    blocks: list[Block],
) -> np.ndarray:  # fmt: skip
    """Return the weights [R, V] of each row's race for a node, relative to the likeliest token."""
    size, every, rows = machine.size, np.arange(machine.size), np.arange(len(owners))
    slots = np.array([machine.slot(address) for address, _ in blocks])
    columns = np.array([first for _, first in blocks])[:, None] + every

    def winner(exponentials: np.ndarray) -> np.ndarray:  # [M, R, V]
        tried = np.repeat(bits[None], len(exponentials), axis=0)
        words = table.bits_of_exponentials(exponentials)
        tried[:, rows[:, None], slots[:, None], columns] = words
        index = np.tile(owners, len(exponentials))
        draft = machine.run(propose, states, index, tried.reshape(-1, *bits.shape[1:]))
        return draft.tokens[:, node].reshape(len(exponentials), -1)

    likeliest = winner(np.ones((1, len(rows), size)))[0, :, None] == every
    others, rival = np.where(likeliest, 1.0, LATE), np.eye(size, dtype=bool)[:, None]

    def wins(points: np.ndarray) -> np.ndarray:  # [1 V R]
        tried = np.where(rival, points[0, ..., None] / GRID, others)
        return (winner(tried) == every[:, None])[None]

    return count(wins, (size, len(rows)), at_once=1).T / GRID

"""Find every outcome of verifying a draft and what it reads, without knowledge of the rule.

Thresholds and races are found as for ``exact`` (``noise_partition``). Here they are kept with the
addresses of their numbers, each with as few reads as decide it, so that a number that was read
before can be recognised. The rule's ``draw_noise`` is run with numbers that are labels.
"""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.audit import noise_table as table
from specjax.audit.draft_reads import Drafted
from specjax.audit.exact import judge
from specjax.audit.noise_partition import GRID, NEVER, SOON, RunKernel, find_edge, find_rates
from specjax.audit.noise_table import Block
from specjax.audit.one_round import (
    ROWS,
    Machine,
    Race,
    Read,
    Threshold,
    look,
    pick,
    propose,
    region,
    write_race,
)
from specjax.audit.races import inner_points
from specjax.core.types import Draft, PyTree, Rule, Sampling, State, Text, Verdict


class Judged(NamedTuple):
    """One outcome of verification, and what was read to reach it."""

    reads: tuple[Read, ...]
    tokens: tuple[int, ...]  # accepted ones, and the one after them
    nodes: tuple[int, ...]  # the accepted ones


def find_verdicts(
    machine: Machine, states: State, drafts: list[Drafted], walks: bool
) -> list[list[Judged]]:
    """Return the outcomes of verification of each draft."""
    nodes, size = machine.engine.drafter.nodes, machine.size
    owners = np.array([one.owner for one in drafts])
    bits = machine.even(len(drafts))
    for row, one in enumerate(drafts):
        for block in {race.block for race in one.reads}:
            known = region(size, tuple(race for race in one.reads if race.block == block))
            bits[row] = write_race(machine, bits[row], block, inner_points(known)[0])
    draft = machine.run(propose, states, owners, bits)
    labels = np.arange(1, bits[0].size + 1).reshape(1, *bits.shape[1:])
    labels = table.bits_of_points(labels).repeat(len(drafts), axis=0)
    noise, logits = machine.run(look, states, owners, labels, draft)
    uniforms, exponentials = labels_of(noise, walks, (len(drafts), nodes, size))
    found: list[list[Judged]] = [[] for _ in drafts]
    shapes = [tuple(int(p) for p in one) for one in draft.parents]
    for shape in sorted(set(shapes)):
        rows = np.array([row for row, own in enumerate(shapes) if own == shape])
        for first in range(0, len(rows), ROWS):
            some = rows[first : first + ROWS]
            padded = np.resize(some, ROWS)
            run = judge_of(
                machine.engine.rule, machine.engine.drafter.depth, walks,
                *pick((draft, logits), padded),
                *pick((states.text, states.sampling), owners[padded]),
            )  # fmt: skip
            tokens = np.asarray(draft.tokens)[padded]
            rates = np.stack(
                [find_rates(run, node, shape, tokens, size) for node in range(nodes)], axis=1
            )
            if walks:
                outcomes = walked(run, rates, len(some))
            else:
                edges = [find_edge(run, node, shape, tokens, size) for node in range(1, nodes)]
                outcomes = thresholded(
                    run, np.array(edges).reshape(nodes - 1, ROWS), rates, len(some)
                )
            for here, judged in outcomes:
                row = some[here]
                found[row].append(labelled(judged, machine, uniforms[row], exponentials[row]))
    return found


def judge_of(
    rule: Rule, K: int, walks: bool, draft: Draft, logits: jax.Array, text: Text,
    sampling: Sampling,
) -> RunKernel:  # fmt: skip
    """Return the rule on these drafts, as a function of the noise alone."""

    def run(uniforms: np.ndarray, exponentials: np.ndarray) -> Verdict:
        noise = jnp.asarray(uniforms, jnp.float32), jnp.asarray(exponentials, jnp.float32)
        return jax.device_get(judge(rule, K, walks, *noise, draft, logits, text, sampling))

    return run


def labels_of(noise: PyTree, walks: bool, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels of each node's uniform [R, N] and exponential numbers [R, N, V]."""
    if walks:
        return np.zeros(shape[:2], int), table.labels_of_exponentials(
            np.exp(-np.asarray(noise, float))
        )
    accept, recover = noise
    return table.labels_of_uniforms(accept), table.labels_of_exponentials(recover)


def labelled(
    judged: Judged, machine: Machine, uniforms: np.ndarray, exponentials: np.ndarray
) -> Judged:
    """Return an outcome whose reads name addresses, where they named nodes."""

    def entry(label: int) -> Block:
        if label < 1:
            raise ValueError("a rule decides by a number that its noise does not have")
        slot, column = divmod(label - 1, machine.columns)
        return int(machine.addresses[slot]), column

    reads: list[Read] = []
    for read in judged.reads:
        if isinstance(read, Threshold):
            reads.append(read._replace(number=entry(int(uniforms[read.number[0]]))))
            continue
        own = exponentials[read.block[0]]
        if (np.diff(own) != 1).any():
            raise ValueError(f"the exponential numbers of a node are not one block: labels {own}")
        reads.append(read._replace(block=entry(int(own[0]))))
    return judged._replace(reads=tuple(reads))


def thresholded(
    run: RunKernel, edges: np.ndarray, rates: np.ndarray, rows: int
) -> Iterator[tuple[int, Judged]]:
    """Yield (row, outcome) of a rule with thresholds [N - 1, R] and one race, by node."""
    _, nodes, size = rates.shape
    sides = list(itertools.product((True, False), repeat=nodes - 1))
    middles = np.stack([edges // 2, (edges + GRID) // 2])
    paths, counts, tokens = [], [], []
    for first in range(0, len(sides), size):
        some = [sides[i % len(sides)] for i in range(first, first + size)]
        uniforms = np.zeros((size, len(rates), nodes))
        for i, accepted in enumerate(some):
            for node, yes in enumerate(accepted):
                uniforms[i, :, node + 1] = middles[0 if yes else 1, node] / GRID
        verdict = run(uniforms, np.ones((*uniforms.shape, size)))
        paths.append(verdict.path)
        counts.append(verdict.num_accepted)
        tokens.append(verdict.tokens)
    path, number, token = (np.concatenate(leaf) for leaf in (paths, counts, tokens))
    for row in range(rows):
        possible = {}
        for i, accepted in enumerate(sides):
            own = edges[:, row]
            if all(
                edge > 0 if yes else edge < GRID for edge, yes in zip(own, accepted, strict=True)
            ):
                upto = int(number[i, row])
                possible[accepted] = (
                    tuple(int(n) for n in path[i, row, : upto + 1]),
                    tuple(int(t) for t in token[i, row, :upto]),
                )
        for reads, (way, emitted) in outcomes_of(possible, edges[:, row], ()):
            for last in np.flatnonzero(rates[row, way[-1]]):
                weights = rates[row, way[-1]] / rates[row, way[-1]].sum()
                race = Race((way[-1], 0), tuple(weights.tolist()), int(last))
                sure = (race,) if (weights > 0).sum() > 1 else ()
                yield row, Judged((*reads, *sure), (*emitted, int(last)), way[1:])


def outcomes_of(possible: dict, edges: np.ndarray, chosen: tuple[bool, ...]) -> Iterator[tuple]:
    """Yield thresholds and the outcome that they leave, with as few thresholds as decide it."""
    left = {outcome for sides, outcome in possible.items() if sides[: len(chosen)] == chosen}
    if len(left) <= 1:
        reads = ()
        for outcome in left:
            yield reads, outcome
        return
    node, edge = len(chosen) + 1, int(edges[len(chosen)])
    for yes, low, high in ((True, 0, edge), (False, edge, GRID)):
        for reads, outcome in outcomes_of(possible, edges, (*chosen, yes)):
            mine = (Threshold((node, 0), low, high),) if 0 < edge < GRID else ()
            yield (*mine, *reads), outcome


def walked(run: RunKernel, rates: np.ndarray, rows: int) -> Iterator[tuple[int, Judged]]:
    """Yield (row, outcome) of a rule that runs a race at every node of the path."""
    batch, nodes, size = rates.shape
    items = [(row, (), (0,)) for row in range(rows)]  # row, races, path
    while items:
        grown = [
            (row, (*races, Race((path[-1], 0), tuple(weights.tolist()), token)), path)
            for row, races, path in items
            for weights in (rates[row, path[-1]] / rates[row, path[-1]].sum(),)
            for token in np.flatnonzero(weights).tolist()
        ]
        items = []
        for some in in_turns(grown, size):
            exponentials = np.ones((size, batch, nodes, size))
            for layer, (row, races, _) in some:
                for race in races:
                    won = np.arange(size) == race.token
                    exponentials[layer, row, race.block[0]] = np.where(won, SOON, NEVER)
            verdict = run(np.zeros((size, batch, nodes)), exponentials)
            for layer, (row, races, _) in some:
                upto = int(verdict.num_accepted[layer, row])
                taken = tuple(int(n) for n in verdict.path[layer, row, : upto + 1])
                if upto >= len(races):
                    items.append((row, races, taken[: len(races) + 1]))
                else:
                    emitted = tuple(int(t) for t in verdict.tokens[layer, row, : upto + 1])
                    real = tuple(race for race in races if max(race.weights) < 1)
                    yield row, Judged(real, emitted, taken[1:])


def in_turns(items: list, most: int) -> Iterator[list[tuple[int, Any]]]:
    """Yield groups of (layer, item) in which no row has more than ``most`` items."""
    groups: list[list[tuple[int, Any]]] = []
    seen: dict[int, int] = {}
    for item in items:
        number = seen.get(item[0], 0)
        seen[item[0]] = number + 1
        turn, layer = divmod(number, most)
        if turn == len(groups):
            groups.append([])
        groups[turn].append((layer, item))
    yield from groups

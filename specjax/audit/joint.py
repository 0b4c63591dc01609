"""Enumerate the exact distribution of what a drafter and a rule write together, over rounds.

``exact`` takes drafts from q as given, with noise of their own. Here the shipped drafter draws them
by the shipped functions of its key, and the shipped rule judges them by its functions of the same
key, for two rounds, the state of the first carried into the second. How noise is enumerated:

- Every random number has an address, what was folded into its key, and a key of ``noise_table``
  gives the numbers of a table at each address: whatever shares an address shares the numbers.
- What a round reads is found by running it (``draft_reads``, ``verdict_reads``): races among the V
  exponential numbers of an address, and thresholds of a uniform number.
- After some races all that is known of an address's numbers is a polytope (``races``), whose volume
  is its probability; of a uniform number it is an interval. A number that is read again, by the
  rule or in the next round, is cut further: so that its outcomes depend on the earlier ones exactly
  as they do in a run. A number read for the first time is independent of all others.
- Every cell that results is run by ``decode.step`` at two of its points, as a whole, and must do
  what was found: the probability of cells that do not is the ``doubt``.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.audit import noise_table as table
from specjax.audit.draft_reads import Drafted, find_drafts
from specjax.audit.exact import reads_gumbel_noise
from specjax.audit.noise_partition import GRID
from specjax.audit.noise_table import Block
from specjax.audit.one_round import (
    Machine,
    Race,
    Read,
    Step,
    compiled,
    machine_for,
    region,
    write_race,
)
from specjax.audit.plain_text import absorbing, after_prompt, plain_sampling, plain_text
from specjax.audit.prefixes import continued, num_contexts, texts
from specjax.audit.races import inner_points
from specjax.audit.request import plain_distribution
from specjax.audit.verdict_reads import Judged, find_verdicts
from specjax.core import decode
from specjax.core.types import (
    RUNNING,
    Drafter,
    Engine,
    Params,
    Rule,
    Sampling,
    State,
    Target,
)
from specjax.models.toy import markov_target

LEAST = 1e-15  # the probability below which a cell is dropped
# What earlier reads say of the noise: by address, its races, or the bounds of a uniform number.
Known = tuple[tuple[Block, tuple], ...]


class Joint(NamedTuple):
    """What a drafter and a rule write together from one prompt."""

    tv: float  # total variation between the texts and plain decoding's
    carried: float  # the same of what follows the first round, given its tokens and their number
    doubt: float  # probability of cells that a run contradicts: bounds the error of both
    rereads: float  # expected number of rounds in which a number decides that has decided before
    expected_length: tuple[float, ...]  # tokens per round
    joint: np.ndarray  # [V ** H] the probability of each text of H = rounds * (K + 1) tokens
    target: np.ndarray  # [V ** H] plain decoding's
    cells: int  # how many were run


class Branch(NamedTuple):
    """One way through a round."""

    start: int  # the state that it starts from
    draft: Drafted
    judged: Judged
    known: Known
    mass: float
    reread: bool  # whether a number decides that has decided before


def joint(
    drafter: Drafter,
    rule: Rule,
    params: Params,
    *,
    prompt: tuple[int, ...] = (0,),
    sampling: Sampling | None = None,
    rounds: int = 2,
    target: Target | None = None,
    reference: Target | None = None,
    step: Step = decode.step,
) -> Joint:
    """Return the exact distribution of the text that a drafter and a rule write together.

    Args:
        drafter: as shipped; its models are toys of V tokens.
        rule: the verification rule, as shipped.
        params: of the target, for the default one the logits [V, V] after each token; and of the
            drafter.
        prompt: token ids.
        sampling: one row's sampling parameters; temperature 1 and nothing else if None.
        rounds: how many rounds are enumerated; shorter texts are continued by ``reference``.
        target: what the engine runs, with its cache; a Markov chain without one if None.
        reference: the target whose plain decoding is the law; ``target`` itself if None.
        step: runs a round; another one than ``decode.step`` can be a faulty engine.

    Raises:
        ValueError: noise is read in a way that cannot be enumerated: not by races and thresholds,
            or with keys that are split.

    >>> from specjax.drafters.draft_model import draft_model
    >>> from specjax.verify.rejection import rejection
    >>> tables = Params(np.log([[0.6, 0.4], [0.5, 0.5]]), np.log([[0.2, 0.8], [0.5, 0.5]]))
    >>> found = joint(draft_model(markov_target(2), 1, "probabilistic"), rejection, tables)
    >>> found.tv < 1e-6
    True
    """
    target = markov_target(len(params.target)) if target is None else target
    size, width = target.vocab_size, rounds * (drafter.depth + 1)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.float32) if isinstance(leaf, np.ndarray) else leaf,
        params,
    )
    sampling = plain_sampling(size, drafter.depth) if sampling is None else sampling
    capacity = len(prompt) + 1 + width + drafter.room
    engine = Engine(target, drafter, rule, window=capacity)
    states = after_prompt(engine, params, prompt, sampling, capacity)
    begin = len(prompt) + 1
    request = plain_text(target if reference is None else reference, params, states, width)
    p_tree = absorbing(plain_distribution(request), np.asarray(sampling.stop_ids)[0])
    walks = reads_gumbel_noise(rule, size)
    # a state: (lengths after each round, text) and what is known, with its probability
    names: list[tuple[tuple[int, ...], Known]] = [((begin,), ())]
    masses = np.ones(1)
    doubt = rereads = 0.0
    lengths, cells, first = [], 0, None
    machine = machine_for(engine, step, params, states)
    for number in range(rounds):
        alive = np.flatnonzero(states.text.reason == RUNNING)
        branches = branches_of(machine, states, alive, names, masses, walks)
        after, wrong = run_branches(machine, states, branches)
        share = np.array([branch.mass for branch in branches])
        doubt += float(share @ wrong)
        rereads += float(share @ np.array([branch.reread for branch in branches]))
        cells += len(branches)
        before = states.text.lengths[[branch.start for branch in branches]]
        lengths.append(float(share @ (after.text.lengths - before) / share.sum()))
        ended = np.setdiff1d(np.arange(len(masses)), alive)
        kept = pick_rows(states, ended), [names[row] for row in ended], masses[ended]
        machine = machine_for(engine, step, params, after)
        states, names, masses = merged(
            machine.drawing, after, branches, [names[branch.start][0] for branch in branches], kept,
        )  # fmt: skip
        if number == 0:
            first = by_length(states, names, masses, begin, size, width)
    assert first is not None
    last = by_length(states, names, masses, begin, size, width)
    found = continued(sum_of(last), p_tree, width)[0]
    plain = texts(p_tree, width)[0]
    apart = [
        abs(continued(last[n], p_tree, width) - continued(first[n], p_tree, width)).sum() / 2
        for n in first
    ]
    return Joint(
        tv=float(abs(found - plain).sum() / 2),
        carried=float(sum(apart)),
        doubt=doubt,
        rereads=rereads,
        expected_length=tuple(lengths),
        joint=found,
        target=plain,
        cells=cells,
    )


def read_all(reads: tuple[Read, ...], known: Known, size: int) -> tuple[Known, float, bool]:
    """Return what is known after further reads, their probability, and whether one was a reread."""
    facts, chance, again = dict(known), 1.0, False
    for read in reads:
        if isinstance(read, Race):
            before = facts.get(read.block, ())
            again |= bool(before) and not read.taken
            after = (*before, read)
            mass = region(size, before).mass
            chance *= region(size, after).mass / mass if mass else 0.0
            facts[read.block] = after
        else:
            low, high = facts.get(read.number, (0, GRID))
            again |= read.number in facts
            bounds = max(low, read.low), min(high, read.high)
            chance *= max(bounds[1] - bounds[0], 0) / (high - low)
            facts[read.number] = bounds
        if chance < LEAST:
            break
    return tuple(sorted(facts.items(), key=lambda item: item[0])), chance, again


def branches_of(
    machine: Machine, states: State, alive: np.ndarray, names: list, masses: np.ndarray,
    walks: bool,
) -> list[Branch]:  # fmt: skip
    """Return every way through a round from every running state, found once for equal states."""
    number: dict[bytes, int] = {}
    same = identities(states)
    owner = [number.setdefault(same[row], len(number)) for row in alive]
    examples = np.array([alive[owner.index(i)] for i in range(len(number))])
    chosen = pick_rows(states, examples)
    drafts = find_drafts(machine, chosen)
    verdicts = find_verdicts(machine, chosen, drafts, walks)
    of_kind: list[list[int]] = [[] for _ in number]
    for i, one in enumerate(drafts):
        of_kind[one.owner].append(i)
    read = functools.cache(functools.partial(read_all, size=machine.size))
    found = []
    for row, kind in zip(alive.tolist(), owner, strict=True):
        for i in of_kind[kind]:
            drafted = drafts[i]
            known, chance, again = read(drafted.reads, names[row][1])
            if chance < LEAST:
                continue
            for judged in verdicts[i]:
                after, share, too = read(judged.reads, known)
                mass = float(masses[row]) * chance * share
                if share >= LEAST and mass >= LEAST:
                    found.append(Branch(row, drafted, judged, after, mass, again or too))
    return found


def run_branches(
    machine: Machine, states: State, branches: list[Branch]
) -> tuple[State, np.ndarray]:
    """Return the states after each branch, and which part of two runs [B] contradicts it."""
    start = np.array([branch.start for branch in branches])
    rng, shape = np.random.default_rng(0), (len(branches), len(machine.addresses), machine.columns)
    drawn = rng.integers(0, 2**32, shape, np.uint32)
    wrong, after = np.zeros(len(branches)), None
    for end in (1, 0):
        bits = drawn.copy()
        for row, branch in enumerate(branches):
            for block, fact in branch.known:
                if isinstance(fact[0], Race):
                    points = inner_points(region(machine.size, fact))
                    bits[row] = write_race(machine, bits[row], block, points[end])
                else:
                    point = fact[0] if end else fact[1] - 1
                    bits[row, machine.slot(block[0]), block[1]] = table.bits_of_points(
                        np.array([point])
                    )[0]
        after, info = machine.run(compiled(machine.step), states, start, bits)
        for row, branch in enumerate(branches):
            draft, emitted = branch.draft.draft, branch.judged.tokens
            drafted = np.where(draft.valid, draft.tokens, -1)[1:]
            same = (info.drafted[row] == drafted).all()
            same &= info.num_accepted[row] == len(emitted) - 1
            same &= tuple(info.tokens[row, : len(emitted)]) == emitted
            wrong[row] += 0.0 if same else 0.5
    assert after is not None
    return after, wrong


def identities(states: State) -> list[bytes]:
    """Return, by row, what target and rule may read: states of which it is equal go on alike.

    A drafter's state is not part of it: it follows from the text.
    """
    leaves = jax.tree.leaves((states.cache, states.sampling))
    return [
        b"".join([
            states.text.tokens[row, :length].tobytes(), *(leaf[row].tobytes() for leaf in leaves)
        ])
        for row, length in enumerate(states.text.lengths)
    ]  # fmt: skip


def pick_rows(states: State, rows: np.ndarray) -> State:
    """Return these rows of NumPy states."""
    return jax.tree.map(lambda leaf: leaf[rows], states)


def merged(
    live: dict[int, int], after: State, branches: list[Branch], names: list, kept: tuple
) -> tuple[State, list, np.ndarray]:
    """Return the states after a round, equal ones added up.

    Of what is known of the noise only that of the addresses ``live``, which the next round can
    read, is kept.
    """
    number: dict[tuple, int] = {}
    rows, masses, labels = [], [], []
    same = identities(after)
    for row, branch in enumerate(branches):
        known = tuple(fact for fact in branch.known if fact[0][0] in live)
        length = int(after.text.lengths[row])
        name = (*names[row], length), known
        key = name, same[row]
        if key not in number:
            number[key] = len(rows)
            rows.append(row)
            masses.append(0.0)
            labels.append(name)
        masses[number[key]] += branch.mass
    ended, ended_names, ended_masses = kept
    some = pick_rows(after, np.array(rows, int))
    states = jax.tree.map(lambda *leaves: np.concatenate(leaves), some, ended)
    longer = [((*name[0], name[0][-1]), name[1]) for name in ended_names]
    return states, labels + longer, np.concatenate([masses, ended_masses])


def by_length(
    states: State, names: list, masses: np.ndarray, begin: int, size: int, width: int
) -> dict[int, np.ndarray]:
    """Return the probability of each text [1, C], by its length after the first round."""
    found: dict[int, np.ndarray] = {}
    for row, (lengths, _) in enumerate(names):
        context = 0
        for token in states.text.tokens[row, begin : states.text.lengths[row]]:
            context = context * size + 1 + int(token)
        own = found.setdefault(lengths[1], np.zeros((1, num_contexts(size, width))))
        own[0, context] += masses[row]
    return found


def sum_of(parts: dict[int, np.ndarray]) -> np.ndarray:
    """Return the sum of arrays."""
    return np.sum(list(parts.values()), axis=0)

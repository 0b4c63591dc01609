"""A broken verifier beside a sound one, and the audit of both.

``examine`` enumerates one round with drafts from q (``exact``), and whether a number decides twice
(``noise_reuse``); where the fault lies between drafter and rule, or in what a round leaves behind,
two rounds of all (``joint``).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from specjax.audit.cases import random_cases
from specjax.audit.exact import exact_distribution
from specjax.audit.joint import joint
from specjax.audit.noise_reuse import noise_reuse_rate
from specjax.audit.one_round import Step
from specjax.audit.prefixes import texts
from specjax.audit.request import Request, plain_distribution, plain_request
from specjax.core import decode
from specjax.core.types import Drafter, Params, Penalties, Rule, Sampling, Target
from specjax.theory.arrays import Value
from specjax.theory.goodness import samples_for_chi2
from specjax.verify.rejection import rejection

SIZE, DEPTH, CASES = 4, 2, 16
CLEAR = 1e-3  # a total variation that no rounding makes
SIBLINGS = (0, 0, 0)


class Options(NamedTuple):
    """The sampling parameters of a request; those that are None do not apply."""

    temperature: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    bad_words: tuple[tuple[int, int], ...] = ()


def random_tables(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random logits [V, V] after each token, of a target and of a draft model."""
    target, draft = np.random.default_rng(1).dirichlet(np.ones(size), (2, size))
    return np.log(target), np.log(draft)


class Specimen(NamedTuple):
    """A broken pipeline, and the rule that would be sound in it."""

    rule: Rule
    sound: Rule = rejection
    # (the q that the rule receives) -> what drafts are drawn from
    drawn: Callable[[Value], Value] | None = None
    options: Options | None = None
    siblings: bool = False
    replacement: bool = True  # whether siblings are drawn with replacement
    absent: bool = False  # the last node does not exist
    parts: int = 1  # see ``noise_partition``; more than 1 if its uniforms interact
    # Of faults that two rounds show, of a drafter and a rule with a target and its cache:
    drafter: Drafter | None = None
    sound_drafter: Drafter | None = None
    target: Target | None = None
    sound_target: Target | None = None
    step: Step = decode.step
    request: Callable[[], Sampling] | None = None
    tables: Callable[[int], tuple[np.ndarray, np.ndarray]] = random_tables
    size: int = 2  # of that drafter's vocabulary


class Finding(NamedTuple):
    """The audit's findings, each over the worst case; all 0 up to rounding for a sound rule."""

    tv: float
    stray: float
    doubt: float
    reused: float
    samples: int  # texts by which a chi-square test finds the worst case, at 1% with power 90%

    @property
    def by(self) -> str:
        """What convicts it; nothing if it is sound."""
        if self.stray > 0:
            return "texts that the target never writes"
        if self.tv - self.doubt > CLEAR:
            return "total variation"
        return "noise that decides twice" if self.reused > 0 else ""


@functools.cache
def examine(specimen: Specimen, *, sound: bool = False) -> Finding:
    """Return the audit's findings on a specimen, or on the sound rule beside it."""
    if specimen.drafter is not None:
        return examine_pair(specimen, sound)
    if sound:
        specimen = specimen._replace(rule=specimen.sound, drawn=None, parts=1)
    p_tree, q_tree = random_cases(CASES, SIZE, DEPTH)
    request = None
    if specimen.options:
        request = demanding_request(p_tree.shape, specimen.options)
        p_tree = plain_distribution(request)
    K = 1 if specimen.siblings else DEPTH
    parents = SIBLINGS if specimen.siblings else (0, 0, 1)
    found = exact_distribution(
        specimen.rule,
        p_tree,
        q_tree,
        K,
        parents=parents,
        valid=(True, True, False) if specimen.absent else None,
        replacement=specimen.replacement,
        drawn=None if specimen.drawn is None else specimen.drawn(q_tree),
        request=request,
        parts=specimen.parts,
    )
    reused = noise_reuse_rate(specimen.rule, parents=parents, size=SIZE, rounds=CASES * SIZE**2)
    worst = found.tv.argmax()
    samples = samples_to_convict(texts(p_tree, K + 1)[worst], found.joint[worst])
    tv, stray, doubt = (float(one.max()) for one in (found.tv, found.stray, found.doubt))
    return Finding(tv, stray, doubt, reused, samples)


def examine_pair(specimen: Specimen, sound: bool) -> Finding:
    """Return the findings on a drafter and a rule over two rounds."""
    drafter, rule, target = specimen.drafter, specimen.rule, specimen.target
    if sound:
        drafter, rule, target = specimen.sound_drafter or drafter, specimen.sound, None
    assert drafter is not None
    found = joint(
        drafter, rule, Params(*specimen.tables(specimen.size)),
        sampling=specimen.request() if specimen.request else None,
        target=target or specimen.sound_target,
        reference=specimen.sound_target,
        step=decode.step if sound else specimen.step,
    )  # fmt: skip
    stray = float(np.where(found.target == 0, found.joint, 0.0).sum())
    samples = samples_to_convict(found.target, found.joint)
    return Finding(found.tv, stray, found.doubt, 0.0, samples)


def samples_to_convict(target: np.ndarray, found: np.ndarray) -> int:
    """Return how many texts a chi-square test needs at 1% with power 90%; 0 for equal ones."""
    if abs(target - found).sum() < CLEAR:
        return 0
    if found[target == 0].sum() > 0:  # such a text tells at once
        return int(np.ceil(np.log(0.1) / np.log1p(-min(found[target == 0].sum(), 1 - 1e-9))))
    return samples_for_chi2(target / target.sum(), found / found.sum(), level=0.01, power=0.9)


def demanding_request(shape: tuple[int, ...], options: Options) -> Request:
    """Return a request with these options, and some tokens of output."""
    plain = plain_request(np.ones(shape), 3 + DEPTH)
    written = plain.text.tokens.at[0, :3].set(jnp.asarray([1, 0, 2]))
    text = plain.text._replace(tokens=written, lengths=jnp.full(1, 3, jnp.int32))
    sampling, none = plain.sampling, jnp.zeros(1)
    if options.temperature is not None:
        sampling = sampling._replace(temperature=none + options.temperature)
    if options.top_k is not None:
        sampling = sampling._replace(top_k=jnp.full(1, options.top_k, jnp.int32))
    if options.min_p is not None:
        sampling = sampling._replace(min_p=none + options.min_p)
    if options.frequency_penalty is not None:
        penalties = Penalties(none + 1.0, none, none + options.frequency_penalty)
        sampling = sampling._replace(penalties=penalties)
    if options.bad_words:
        sampling = sampling._replace(bad_words=jnp.asarray([options.bad_words], jnp.int32))
    return Request(np.random.default_rng(0).normal(size=shape), text, sampling)

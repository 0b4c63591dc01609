"""How often ``audit server``'s test flags a shipped rule, which it must not at more than alpha.

A run draws texts from the exact distribution of what a rule writes (``exact``), and judges them as
those of a server are judged: against the target's probabilities, or against a reference's texts.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np
from scipy import stats

from specjax.audit.cases import random_cases
from specjax.audit.exact import exact_distribution
from specjax.audit.prefixes import texts
from specjax.audit.rules import EXACT, LOSSLESS, RULES
from specjax.audit.server import Plan, judge_prompts, rows

SIZE, K = 3, 2
PROMPTS = ("one", "two", "three", "four")
MODES = {1: "its own logprobs", 2: "a reference"}


class Alarms(NamedTuple):
    """How many of so many audits of a sound rule flagged it."""

    rule: str
    against: str
    runs: int
    alarms: int
    most: int  # exceeded with probability 1e-4 at most, if each run has probability alpha

    @property
    def kept(self) -> bool:
        """Whether the level is kept."""
        return self.alarms <= self.most


def count_alarms(runs: int, alpha: float = 0.01, seed: int = 0) -> list[Alarms]:
    """Return the false alarms of ``runs`` audits of every shipped rule, in both modes.

    Raises:
        ValueError: there are no runs.
    """
    if runs < 1:
        raise ValueError(f"runs must be at least 1, got {runs}")
    p_tree, q_tree = random_cases(len(PROMPTS), SIZE, K)
    p_tree, q_tree = p_tree[: len(PROMPTS)], q_tree[: len(PROMPTS)]
    laws, most = texts(p_tree, K + 1), int(stats.binom.isf(1e-4, runs, alpha))
    rng, found = np.random.default_rng(seed), []
    for name, (promise, rule) in RULES.items():
        if promise not in (LOSSLESS, EXACT):
            continue
        written = exact_distribution(rule, p_tree, q_tree, K).joint
        for samples, against in MODES.items():
            plan = Plan(prompts=PROMPTS, tokens=K + 1, alpha=alpha, tv=0.05)
            flagged = sum(is_flagged(plan, written, laws, samples, rng) for _ in range(runs))
            found.append(Alarms(name, against, runs, flagged, most))
    return found


def is_flagged(
    plan: Plan, written: np.ndarray, laws: np.ndarray, samples: int, rng: np.random.Generator
) -> bool:
    """Return whether one audit flags what is drawn from ``written`` [prompts, texts]."""
    draws, words = plan.num_draws(samples), list(np.ndindex((SIZE,) * (K + 1)))

    def draw(probs: np.ndarray) -> list:
        counts = rng.multinomial(draws, probs / probs.sum())
        return rows(Counter(dict(zip(words, counts.tolist(), strict=True))))

    asked = []
    for prompt, own, law in zip(plan.prompts, written, laws, strict=True):
        expected = {(): 0.0, **dict(zip(words, law.tolist(), strict=True))}
        asked.append({
            "prompt": prompt, "base": draw(own),
            "reference": draw(law) if samples == 2 else None,
            "law": rows(expected) if samples == 1 else None,
        })  # fmt: skip
    return any(one.differs for one in judge_prompts(plan, asked, samples))

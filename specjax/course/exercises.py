"""The exercises: what to write, right answers, and the mistakes that people make, with hints.

An answer is compared with the right one on random inputs. If it differs, and is what a known
mistake would return on all of them, the mistake's hint is printed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from specjax import theory

Draw = Callable[[np.random.Generator], tuple]  # returns random arguments


class Mistake(NamedTuple):
    """A wrong answer that is often given."""

    answer: Callable[..., Any]
    hint: str


class Exercise(NamedTuple):
    """A function to write."""

    signature: str
    task: str  # its docstring
    right: Callable[..., Any]
    draw: Draw
    mistakes: tuple[Mistake, ...]

    @property
    def name(self) -> str:
        """Return the function's name."""
        return self.signature.partition("(")[0]


def two_distributions(rng: np.random.Generator) -> tuple:
    """Return random p and q [V]; no entry is zero."""
    size = int(rng.integers(2, 7))
    return tuple(rng.dirichlet(np.ones(size)) * 0.97 + 0.03 / size for _ in range(2))


def alpha_and_depth(rng: np.random.Generator) -> tuple:
    """Return a random acceptance alpha, now and then 1, and K."""
    return (1.0 if rng.random() < 0.2 else float(rng.uniform(0.1, 0.95))), int(rng.integers(1, 9))


def with_cost(rng: np.random.Generator) -> tuple:
    """Return those, and c."""
    return *alpha_and_depth(rng), float(rng.uniform(0.02, 0.5))


def draft_and_choices(rng: np.random.Generator) -> tuple:
    """Return a draft of K tokens, and the target's greedy choices at its K + 1 places."""
    size = int(rng.integers(1, 7))
    draft = rng.integers(0, 2, size)
    choices = np.where(rng.random(size) < 0.7, draft, 1 - draft)
    return draft.tolist(), [*choices.tolist(), int(rng.integers(0, 2))]


def counts(rng: np.random.Generator) -> tuple:
    """Return how many drafts there were, and how many had their i-th token accepted."""
    drafts, size = int(rng.integers(50, 500)), int(rng.integers(2, 6))
    left, accepted = drafts, []
    for _ in range(size):
        left = int(rng.binomial(left, rng.uniform(0.3, 0.9)))
        accepted.append(max(left, 1))
    return drafts, accepted


def some_tree(rng: np.random.Generator) -> tuple:
    """Return each node's parent; node 0 is the root, its own parent."""
    return ([0, *(int(rng.integers(0, i)) for i in range(1, int(rng.integers(3, 9))))],)


def p_values(rng: np.random.Generator) -> tuple:
    """Return the p-values of several prompts."""
    return (rng.uniform(0.0005, 1.0, int(rng.integers(2, 30))).tolist(),)


def emit(draft: list[int], choices: list[int]) -> list[int]:
    """Return what a round of greedy verification emits."""
    count = next((i for i, token in enumerate(draft) if token != choices[i]), len(draft))
    return choices[: count + 1]


def ancestors(parents: list[int]) -> np.ndarray:
    """Return the mask of the nodes on each node's path, itself included."""
    seen = np.eye(len(parents), dtype=bool)
    for node, parent in enumerate(parents[1:], start=1):
        seen[node] |= seen[parent]
    return seen


def parents_only(parents: list[int]) -> np.ndarray:
    """Return the mask of each node and its parent alone."""
    seen = np.eye(len(parents), dtype=bool)
    seen[np.arange(len(parents)), parents] = True
    return seen


def tokens(alpha: float, K: int) -> float:
    """Return the expected tokens of a round."""
    return float(theory.tokens_per_step(alpha, K))


LESSONS: dict[int, tuple[Exercise, ...]] = {
    2: (
        Exercise(
            "emit(draft, choices)",
            "Return the list of tokens that one round of greedy verification emits.\n\n"
            "draft: the K drafted tokens. choices: the target's greedy token at each of the K + 1\n"
            "places, the first one before any draft.",
            emit,
            draft_and_choices,
            (
                Mistake(
                    lambda draft, choices: emit(draft, choices)[:-1],
                    "Count the target's own token too: a round is never in vain.",
                ),
                Mistake(
                    lambda draft, choices: [
                        *(one for one, own in zip(draft, choices, strict=False) if one == own),
                        choices[-1],
                    ],
                    "What follows a token that was refused was drafted after another text.",
                ),
                Mistake(
                    lambda draft, choices: draft,
                    "A draft is a proposal: where does the target come in?",
                ),
            ),
        ),
    ),
    3: (
        Exercise(
            "residual(p, q)",
            "Return the distribution that a refused draft is replaced from [V].\n\n"
            "p: the target's distribution. q: the draft's. Both are NumPy arrays [V].",
            lambda p, q: np.maximum(p - q, 0) / np.maximum(p - q, 0).sum(),
            two_distributions,
            (
                Mistake(
                    lambda p, q: p,
                    "Then tokens that q likes come too often: they had a chance before.",
                ),
                Mistake(lambda p, q: np.maximum(p - q, 0), "Is that a distribution? Add it up."),
                Mistake(
                    lambda p, q: np.maximum(q - p, 0) / np.maximum(q - p, 0).sum(),
                    "Which tokens has the draft proposed too rarely? Those are missing.",
                ),
                Mistake(
                    lambda p, q: np.abs(p - q) / np.abs(p - q).sum(),
                    "Tokens that the draft proposed too often need no second chance.",
                ),
            ),
        ),
        Exercise(
            "acceptance(p, q)",
            "Return the probability that a token drawn from q is accepted.\n\n"
            "p, q: as before. A drafted token x is accepted with min(1, p(x) / q(x)).",
            lambda p, q: float(np.minimum(p, q).sum()),
            two_distributions,
            (
                Mistake(
                    lambda p, q: float((p * q).sum()),
                    "That is how often two independent draws agree; the rule accepts more.",
                ),
                Mistake(
                    lambda p, q: float(1 - np.abs(p - q).sum()),
                    "Total variation distance has a factor in front of its sum.",
                ),
                Mistake(
                    lambda p, q: float(np.minimum(1, p / q).mean()),
                    "Tokens are not drafted equally often: weigh each by its chance.",
                ),
            ),
        ),
    ),
    4: (
        Exercise(
            "tokens_per_round(alpha, K)",
            "Return the expected number of tokens that a round emits.\n\n"
            "alpha: the chance of each drafted token to be accepted, if those before it were; it\n"
            "may be 1. K: the number of drafted tokens. The target's own token counts.",
            tokens,
            alpha_and_depth,
            (
                Mistake(
                    lambda alpha, K: 1 + alpha * K,
                    "Position 3 counts only if positions 1 and 2 were accepted.",
                ),
                Mistake(
                    lambda alpha, K: tokens(alpha, K) - 1, "The target adds a token of its own."
                ),
                Mistake(
                    lambda alpha, K: np.nan if alpha == 1 else tokens(alpha, K),
                    "What happens at alpha = 1? Take the limit, or add up the powers.",
                ),
                Mistake(
                    lambda alpha, K: 1 / (1 - alpha) if alpha < 1 else np.inf,
                    "That is a draft without end; yours stops after K tokens.",
                ),
            ),
        ),
        Exercise(
            "speedup(alpha, K, c)",
            "Return the speedup over plain decoding.\n\n"
            "c: what drafting one token costs, in plain steps. Verifying costs one plain step.",
            lambda alpha, K, c: tokens(alpha, K) / (K * c + 1),
            with_cost,
            (
                Mistake(
                    lambda alpha, K, c: tokens(alpha, K) / (K * c),
                    "Who verifies? A round also has a pass of the target.",
                ),
                Mistake(
                    lambda alpha, K, c: tokens(alpha, K) / (c + 1),
                    "Every one of the K tokens is drafted by a step of its own.",
                ),
                Mistake(
                    lambda alpha, K, c: tokens(alpha, K),
                    "Tokens per round are not time: what does a round cost?",
                ),
            ),
        ),
        Exercise(
            "break_even_cost(alpha, K)",
            "Return the c at which speculation is exactly as fast as plain decoding.",
            lambda alpha, K: (tokens(alpha, K) - 1) / K,
            alpha_and_depth,
            (
                Mistake(
                    lambda alpha, K: tokens(alpha, K) / K,
                    "Set the speedup to 1: the target's pass costs a step as well.",
                ),
                Mistake(
                    lambda alpha, K: tokens(alpha, K) - 1,
                    "That is what the whole draft may cost; c is for one token of it.",
                ),
            ),
        ),
    ),
    5: (
        Exercise(
            "mean_acceptance_length(drafts, accepted)",
            "Return vLLM's mean acceptance length, the target's own token included.\n\n"
            "drafts: how many drafts there were. accepted: [a_1, ..., a_K], how many drafts had\n"
            "their i-th token accepted.",
            lambda drafts, accepted: 1 + sum(accepted) / drafts,
            counts,
            (
                Mistake(
                    lambda drafts, accepted: sum(accepted) / drafts,
                    "vLLM counts the token that the target adds.",
                ),
                Mistake(
                    lambda drafts, accepted: 1 + sum(accepted) / (drafts * len(accepted)),
                    "Per draft, not per drafted token.",
                ),
            ),
        ),
        Exercise(
            "alpha(drafts, accepted)",
            "Return the share of accepted tokens among those that were judged.\n\n"
            "A token is judged if all tokens before it in its draft were accepted.",
            lambda drafts, accepted: sum(accepted) / (drafts + sum(accepted[:-1])),
            counts,
            (
                Mistake(
                    lambda drafts, accepted: sum(accepted) / (drafts * len(accepted)),
                    "That is the acceptance rate in the log: tokens behind a refused one count in "
                    "it as refused, and nobody looked at them.",
                ),
                Mistake(
                    lambda drafts, accepted: accepted[0] / drafts,
                    "You use the first position only; the others know something too.",
                ),
            ),
        ),
    ),
    8: (
        Exercise(
            "visible(parents)",
            "Return the mask [N, N] of a tree draft: row i is True at each node that i may see.\n\n"
            "parents: the parent of each node; node 0 is the root and its own parent. A node sees\n"
            "itself and the nodes on its path from the root.",
            ancestors,
            some_tree,
            (
                Mistake(parents_only, "A grandparent is on the path as well."),
                Mistake(lambda parents: ancestors(parents).T, "Rows look, columns are looked at."),
                Mistake(
                    lambda parents: ancestors(parents) & ~np.eye(len(parents), dtype=bool),
                    "A node also sees itself.",
                ),
                Mistake(
                    lambda parents: np.tril(np.ones((len(parents),) * 2, bool)),
                    "That is a chain's mask: here it shows a node its siblings.",
                ),
            ),
        ),
        Exercise(
            "depths(parents)",
            "Return how many edges each node is below the root, as a list.",
            lambda parents: (ancestors(parents).sum(axis=1) - 1).tolist(),
            some_tree,
            (
                Mistake(
                    lambda parents: ancestors(parents).sum(axis=1).tolist(),
                    "You count nodes of the path; the root is at depth 0.",
                ),
                Mistake(
                    lambda parents: list(range(len(parents))),
                    "Only in a chain is that a node's number. Siblings share a position.",
                ),
            ),
        ),
    ),
    10: (
        Exercise(
            "total_variation(p, q)",
            "Return the total variation distance of two distributions [V].",
            lambda p, q: float(np.abs(p - q).sum() / 2),
            two_distributions,
            (
                Mistake(
                    lambda p, q: float(np.abs(p - q).sum()),
                    "For two distributions without a common token it must be 1.",
                ),
                Mistake(
                    lambda p, q: float(np.abs(p - q).max()),
                    "An event may have several tokens: take the worst event, not the worst token.",
                ),
            ),
        ),
        Exercise(
            "smallest_adjusted(p_values)",
            "Return Holm's adjusted value of the smallest p-value, at most 1.",
            lambda p_values: min(1.0, len(p_values) * min(p_values)),
            p_values,
            (
                Mistake(
                    lambda p_values: min(p_values),
                    "With twenty prompts one of them is below 0.05 by chance alone.",
                ),
                Mistake(
                    lambda p_values: len(p_values) * min(p_values),
                    "A probability of more than 1?",
                ),
                Mistake(
                    lambda p_values: float(np.mean(p_values)),
                    "One prompt with a bug among many without would disappear in a mean.",
                ),
            ),
        ),
    ),
}

"""What acceptance a method has elsewhere: published tokens per round by method, text and K."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from specjax.theory.lengths import tokens_per_step
from specjax.theory.published import LEVIATHAN_TABLE_4, SUFFIX_BENCHMARK

SPECULATORS = "vllm-project/speculators issue 563, Llama head for Qwen3-8B, temperature 0.6"
GUIDE = "the vllm-ascend guide, Qwen3-32B, suffix decoding of at most 3 tokens"


class Usual(NamedTuple):
    """What a method reached on a kind of text: tokens per round by K, or a share of the drafts."""

    method: str
    text: str
    source: str
    lengths: Mapping[int, float]  # mean acceptance length, the target's own token included
    rate: float | None = None  # accepted / drafted, where rounds draft unlike numbers of tokens


USUAL = (
    Usual(
        "eagle3",
        "coding",
        SPECULATORS,
        {1: 1.79, 2: 2.35, 3: 2.71, 4: 2.88, 5: 3.00, 6: 3.06, 7: 3.10},
    ),
    Usual(
        "eagle3",
        "math",
        SPECULATORS,
        {1: 1.81, 2: 2.42, 3: 2.87, 4: 3.12, 5: 3.30, 6: 3.42, 7: 3.45},
    ),
    Usual(
        "eagle3",
        "summarization",
        SPECULATORS,
        {1: 1.67, 2: 2.05, 3: 2.25, 4: 2.33, 5: 2.37, 6: 2.38, 7: 2.39},
    ),
    Usual("eagle3", "MT-bench", "vllm-project/vllm issue 26191, Llama 3.1 8B, greedy", {7: 3.53}),
    Usual(
        "mtp",
        "GSM8K",
        "vllm-project/vllm pull request 48892, greedy, 64 at a time",
        {1: 1.84, 8: 4.40},
    ),
    Usual(
        "mtp",
        "random tokens",
        "vllm-project/vllm pull request 41044, DeepSeek-V4-Flash, temperature 1",
        {2: 1.99},
    ),
    Usual("ngram", "code edits", "vllm-project/vllm pull request 24344, greedy", {5: 4.59}),
    *(
        Usual(
            "draft_model",
            f"{'translation' if row.task == 'EnDe' else 'summarization'}, {row.draft}",
            "Leviathan et al. 2023 (arXiv 2211.17192), Table 4, T5-XXL",
            {k: float(tokens_per_step(row.alpha, k)) for k in range(1, 9)},
        )
        for row in LEVIATHAN_TABLE_4
        if row.temperature == 0
    ),
    *(
        Usual("suffix", row.dataset, GUIDE, {}, row.ratio)
        for row in SUFFIX_BENCHMARK
        if row.concurrency == 1
    ),
)
METHODS = tuple(sorted({one.method for one in USUAL}))


class Range(NamedTuple):
    """The least and the most that a method reached, on which texts, and the sources."""

    least: float
    most: float
    least_text: str
    most_text: str
    sources: tuple[str, ...]


def usual_length(method: str, k: int) -> tuple[int, Range] | None:
    """Return the largest K up to ``k`` that lengths are published for, and their range; or None."""
    known = [one for one in USUAL if one.method == method]
    depths = [depth for one in known for depth in one.lengths if depth <= k]
    if not depths:
        return None
    best = max(depths)
    return best, spread([(one, one.lengths[best]) for one in known if best in one.lengths])


def usual_rate(method: str) -> Range | None:
    """Return the range of accepted / drafted that is published of a method; None: no rate is."""
    known = [(one, one.rate) for one in USUAL if one.method == method and one.rate is not None]
    return spread(known) if known else None


def spread(found: Sequence[tuple[Usual, float]]) -> Range:
    """Return the range of some values. ``found`` is not empty."""
    (low, least), (high, most) = (pick(found, key=lambda each: each[1]) for pick in (min, max))
    sources = dict.fromkeys(one.source for one, _ in found)
    return Range(least, most, low.text, high.text, tuple(sources))

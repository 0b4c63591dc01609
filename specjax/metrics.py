"""Count speculation the way vLLM does: four counters, and the rates derived from them."""

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

PREFIX = "vllm:spec_decode_"
LEAST_DISTINCT = 0.5  # share of distinct bigrams: below it a text is a loop


class Counter(NamedTuple):
    """Hold one number that only grows (vLLM's reader type of the same name)."""

    name: str
    value: int


class Vector(NamedTuple):
    """Hold one growing number per draft position."""

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class SpecDecodeCounters:
    """Count drafts, drafted tokens and accepted tokens, in total and per position.

    A draft is one step of one request whose draft is not empty. ``num_accepted_tokens_per_pos``
    [K] counts, at i, the drafts that accepted more than i tokens; it sums to
    ``num_accepted_tokens``. Rates are None, never NaN, while nothing was drafted.
    """

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: tuple[int, ...]

    def __post_init__(self):
        per_pos = self.num_accepted_tokens_per_pos
        if sum(per_pos) != self.num_accepted_tokens:
            raise ValueError(f"per-position counts must sum to num_accepted_tokens, got {self}")
        if not 0 <= self.num_accepted_tokens <= self.num_draft_tokens:
            raise ValueError(f"need 0 <= num_accepted_tokens <= num_draft_tokens, got {self}")

    @classmethod
    def zeros(cls, num_speculative_tokens: int) -> "SpecDecodeCounters":
        """Start counting for drafts of at most ``num_speculative_tokens`` (K) tokens."""
        return cls(0, 0, 0, (0,) * num_speculative_tokens)

    def add(self, drafted: Sequence[int], accepted: Sequence[int]) -> "SpecDecodeCounters":
        """Count request-steps: ``drafted[i]`` tokens of which ``accepted[i]`` were accepted.

        Entries that drafted 0 tokens are no drafts and change nothing. Accepted is what the
        verdict says, before any truncation of the text.

        Raises:
            ValueError: unequal lengths, or not 0 <= accepted <= min(drafted, K) somewhere (a tree
                drafts more than K).
        """
        num_positions = len(self.num_accepted_tokens_per_pos)
        if len(drafted) != len(accepted):
            raise ValueError(f"got {len(drafted)} drafted and {len(accepted)} accepted counts")
        for num_drafted, num_accepted in zip(drafted, accepted, strict=True):
            if not 0 <= num_accepted <= min(num_drafted, num_positions):
                raise ValueError(
                    f"need 0 <= accepted <= drafted, and accepted <= {num_positions}, "
                    f"got accepted {num_accepted} of {num_drafted} drafted"
                )
        return self.merge(
            SpecDecodeCounters(
                num_drafts=sum(1 for d in drafted if d > 0),
                num_draft_tokens=sum(int(d) for d in drafted),
                num_accepted_tokens=sum(int(a) for a in accepted),
                num_accepted_tokens_per_pos=tuple(
                    sum(1 for a in accepted if a > i) for i in range(num_positions)
                ),
            )
        )

    def merge(self, other: "SpecDecodeCounters") -> "SpecDecodeCounters":
        """Add another set of counters; the shorter per-position tuple is padded with zeros."""
        ours, theirs = self.num_accepted_tokens_per_pos, other.num_accepted_tokens_per_pos
        length = max(len(ours), len(theirs))
        ours, theirs = ours + (0,) * (length - len(ours)), theirs + (0,) * (length - len(theirs))
        return SpecDecodeCounters(
            num_drafts=self.num_drafts + other.num_drafts,
            num_draft_tokens=self.num_draft_tokens + other.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens + other.num_accepted_tokens,
            num_accepted_tokens_per_pos=tuple(a + b for a, b in zip(ours, theirs, strict=True)),
        )

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens a draft brings: 1 + accepted / drafts, the recovered or bonus token included."""
        return 1.0 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted tokens / drafted tokens."""
        if not self.num_draft_tokens:
            return None
        return self.num_accepted_tokens / self.num_draft_tokens

    @property
    def acceptance_rate_per_pos(self) -> tuple[float, ...] | None:
        """Per position i [K]: the share of drafts that accepted more than i tokens."""
        if not self.num_drafts:
            return None
        return tuple(count / self.num_drafts for count in self.num_accepted_tokens_per_pos)

    def to_metrics(self) -> list[Counter | Vector]:
        """Return the counters under vLLM's names, as `LLM.get_metrics` lists them."""
        per_pos = self.num_accepted_tokens_per_pos
        return [
            Counter(PREFIX + "num_drafts", self.num_drafts),
            Counter(PREFIX + "num_draft_tokens", self.num_draft_tokens),
            Counter(PREFIX + "num_accepted_tokens", self.num_accepted_tokens),
            Vector(PREFIX + "num_accepted_tokens_per_pos", per_pos),
        ]


def distinct_bigrams(tokens: Sequence[Hashable]) -> float:
    """Return the share of distinct ones among a text's pairs of neighbours, 1 for no pair.

    Low where a text repeats itself (distinct-2 of Li et al. 2016): speculation is then easy,
    and a speed measured on it says little.
    """
    pairs = list(itertools.pairwise(tokens))
    return len(set(pairs)) / len(pairs) if pairs else 1.0

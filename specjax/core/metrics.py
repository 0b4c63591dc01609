"""vLLM's metrics of speculative decoding: four counters, and the rates derived from them."""

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

PREFIX = "vllm:spec_decode_"
LEAST_DISTINCT = 0.5  # share of distinct bigrams: below it a text is a loop


class Counter(NamedTuple):
    """A counter, as vLLM's ``LLM.get_metrics`` returns it."""

    name: str
    value: int


class Vector(NamedTuple):
    """A counter per draft position, as vLLM's ``LLM.get_metrics`` returns it."""

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class SpecDecodeCounters:
    """Numbers of drafts, drafted tokens and accepted tokens, in total and per position.

    A draft is one step of one request whose draft is not empty. ``num_accepted_tokens_per_pos``
    [K] counts, at i, the drafts that accepted more than i tokens; it sums to
    ``num_accepted_tokens``. Rates are None, never NaN, while nothing was drafted.

    >>> counters = SpecDecodeCounters.zeros(3).add(drafted=[3, 3, 0], accepted=[2, 0, 0])
    >>> counters.num_accepted_tokens_per_pos
    (1, 1, 0)
    >>> counters.mean_acceptance_length
    2.0
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
        """Return counters of nothing, for drafts of ``num_speculative_tokens`` (K) at most."""
        return cls(0, 0, 0, (0,) * num_speculative_tokens)

    def add(self, drafted: Sequence[int], accepted: Sequence[int]) -> "SpecDecodeCounters":
        """Return the counters with further drafts added.

        Args:
            drafted: how many tokens each draft has; entries of 0 are no drafts and add nothing.
            accepted: how many of them were accepted, before any truncation of the text.

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
        """Return the sums of two sets of counters, of any K."""
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
        """vLLM's mean acceptance length, 1 + accepted / drafts: with the bonus token."""
        return 1.0 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted tokens / drafted tokens."""
        if not self.num_draft_tokens:
            return None
        return self.num_accepted_tokens / self.num_draft_tokens

    @property
    def acceptance_rate_per_pos(self) -> tuple[float, ...] | None:
        """The share of drafts that accepted more than i tokens, for each position i."""
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
    """Return distinct-2 (Li et al. 2016): distinct bigrams / bigrams, 1 if there are none.

    It is low where a text repeats itself: speculation is then easy, and a speed measured on it
    means little.

    >>> distinct_bigrams("abcabc")
    0.6
    """
    pairs = list(itertools.pairwise(tokens))
    return len(set(pairs)) / len(pairs) if pairs else 1.0

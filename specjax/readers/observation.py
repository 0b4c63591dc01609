"""What a server was seen to do during a time window: the one type that every reader returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

Count = float | int


class Latency(NamedTuple):
    """The distribution of a time [s]; None where the source does not say."""

    mean: Count
    p50: Count | None = None
    p90: Count | None = None
    p99: Count | None = None
    count: Count | None = None  # observations
    std: Count | None = None  # their standard deviation


class Part(NamedTuple):
    """The drafts of a shorter window."""

    num_drafts: Count
    num_draft_tokens: Count
    num_accepted_tokens: Count


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A server during a time window. None: not known, and ``why`` says why.

    Counts are those of the window. Acceptance is vLLM's: ``num_accepted_tokens`` without the
    target's own token, ``mean_acceptance_length`` with it, ``acceptance_per_position[i]`` the share
    of drafts that accepted more than i tokens.
    """

    engine: str
    source: str  # what was read, for a sentence
    model: str | None = None
    start: datetime | None = None
    end: datetime | None = None
    seconds: Count | None = None
    num_drafts: Count | None = None
    num_draft_tokens: Count | None = None
    num_accepted_tokens: Count | None = None
    acceptance_rate: Count | None = None
    mean_acceptance_length: Count | None = None
    acceptance_per_position: tuple[Count, ...] | None = None
    parts: tuple[Part, ...] = ()  # shorter windows, for intervals
    running: Count | None = None  # requests that are served side by side, mean
    waiting: Count | None = None  # requests in the queue, mean
    num_requests: Count | None = None  # finished
    prompt_tokens: Count | None = None
    generation_tokens: Count | None = None
    generation_throughput: Count | None = None  # tok/s
    num_steps: Count | None = None  # of the engine
    preemptions: Count | None = None
    kv_cache_usage: Count | None = None  # 0 to 1
    ttft: Latency | None = None
    tpot: Latency | None = None  # per request, after the first token
    itl: Latency | None = None  # gaps between chunks: one per round, not per token
    e2e: Latency | None = None
    queue: Latency | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)  # field -> why it is None
    derived: Mapping[str, str] = field(default_factory=dict)  # field -> what it was computed from
    unread: Mapping[str, int] = field(default_factory=dict)  # lines not understood -> how many

    def why(self, name: str) -> str:
        """Return why a field is None."""
        return self.reasons.get(name, f"{self.source} does not hold it")

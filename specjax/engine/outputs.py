"""vLLM's output records, and the speculative metrics of a request."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from specjax.core.metrics import SpecDecodeCounters


class Logprob(NamedTuple):
    """A token's log probability, its rank (1 is the most likely) and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(frozen=True)
class SpecDecodeMetrics:
    """Acceptance of one request's drafts; a step counts only if it drafted something.

    ``mean_acceptance_length`` = 1 + accepted / steps includes the recovered or bonus token;
    ``draft_acceptance_rate`` = accepted / drafted. Both are None when nothing was drafted.
    ``acceptance_histogram[j]`` is the number of steps that accepted exactly j draft tokens,
    j = 0 .. K. Accepted is counted before the text is cut at a stop or at ``max_tokens``.
    """

    mean_acceptance_length: float | None
    draft_acceptance_rate: float | None
    acceptance_histogram: tuple[int, ...]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    per_step_accepted: tuple[int, ...]
    per_step_drafted: tuple[int, ...]

    @classmethod
    def from_steps(
        cls,
        per_step_drafted: Sequence[int],
        per_step_accepted: Sequence[int],
        num_speculative_tokens: int,
    ) -> "SpecDecodeMetrics":
        """Return the metrics of one pair of counts per step; steps that drafted 0 do not count.

        Raises:
            ValueError: unequal lengths, or not 0 <= accepted <= min(drafted, K) at some step.
        """
        counters = SpecDecodeCounters.zeros(num_speculative_tokens)
        counters = counters.add(per_step_drafted, per_step_accepted)
        steps = zip(per_step_drafted, per_step_accepted, strict=True)
        steps = [(int(drafted), int(accepted)) for drafted, accepted in steps if drafted > 0]
        accepted_counts = tuple(accepted for _, accepted in steps)
        return cls(
            mean_acceptance_length=counters.mean_acceptance_length,
            draft_acceptance_rate=counters.acceptance_rate,
            acceptance_histogram=tuple(
                accepted_counts.count(j) for j in range(num_speculative_tokens + 1)
            ),
            num_spec_steps=counters.num_drafts,
            num_accepted_draft_tokens=counters.num_accepted_tokens,
            num_draft_tokens=counters.num_draft_tokens,
            per_step_accepted=accepted_counts,
            per_step_drafted=tuple(drafted for drafted, _ in steps),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


@dataclass(frozen=True)
class CompletionOutput:
    """One completion of a request.

    ``finish_reason`` is "stop" (EOS, a stop token or a stop string), "length", or None while
    running; ``stop_reason`` is the stop string or stop token id, None for EOS. ``token_ids``
    ends with the token that completed the stop, ``text`` before it. ``logprobs`` has one
    mapping (token id -> `Logprob`) per token. ``drafts`` (specjax's own) has, for every step
    that drafted something, how many tokens were committed, prompt included, and the draft.
    """

    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None = None
    logprobs: Sequence[Mapping[int, Logprob]] | None = None
    finish_reason: Literal["stop", "length", "abort", "error"] | None = None
    stop_reason: int | str | None = None
    spec_decode_metrics: SpecDecodeMetrics | None = None
    drafts: Sequence[tuple[int, Sequence[int]]] = ()

    def finished(self) -> bool:
        """Return whether this completion has ended."""
        return self.finish_reason is not None


@dataclass(frozen=True)
class RequestOutput:
    """A request and its completions. ``prompt`` is None when token ids were given.

    ``prompt_logprobs`` has one entry per prompt token; the first is None.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: Sequence[int]
    prompt_logprobs: Sequence[Mapping[int, Logprob] | None] | None
    outputs: Sequence[CompletionOutput]
    finished: bool
    metrics: Any = None
    kv_transfer_params: Mapping[str, Any] | None = None

"""vLLM's /metrics: version 1's names, version 0's where they differ; vllm-ascend's and ours too.

Version 0 counts draft tokens that the target would have accepted behind a rejection: its
``num_accepted_tokens`` is no length. ``num_emitted_tokens`` is: accepted in order, and one more.
"""

from typing import Any

from specjax.core.metrics import PREFIX, SpecDecodeCounters
from specjax.readers.observation import Observation
from specjax.readers.scrape import Change

OWNED = "vllm:"
PER_POSITION = f"{PREFIX}num_accepted_tokens_per_pos_total"
EMITTED = f"{PREFIX}num_emitted_tokens_total"  # version 0 alone
NOT_DRAFTED = "the server does not speculate: it has no vllm:spec_decode_* counters"
ROWS = "(generated - accepted tokens) / steps of the engine: the mean batch"
IDLE = "nothing was drafted in this time"


def read_vllm(change: Change) -> Observation:
    """Return what a change of vLLM's metrics says."""
    drafted, reasons = speculation(change)
    steps = change.increase("vllm:iteration_tokens_total_count")
    tokens = change.increase("vllm:generation_tokens_total")
    rows = (
        (tokens - (drafted.get("num_accepted_tokens") or 0)) / steps if steps and tokens else None
    )
    version = "version 0's names" if change.after.total(EMITTED) is not None else "vLLM's names"
    return Observation(
        engine="vLLM",
        source=f"{change.after.source} ({version})",
        running=change.gauge("vllm:num_requests_running") if rows is None else rows,
        waiting=change.gauge("vllm:num_requests_waiting"),
        num_requests=change.increase("vllm:request_success_total"),
        prompt_tokens=change.increase("vllm:prompt_tokens_total"),
        generation_tokens=tokens,
        num_steps=steps,
        preemptions=change.increase("vllm:num_preemptions_total"),
        kv_cache_usage=change.gauge("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        ttft=change.latency("vllm:time_to_first_token_seconds"),
        tpot=change.latency("vllm:request_time_per_output_token_seconds"),
        itl=change.latency(  # the second was the name before 0.11, of the same gaps
            "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"
        ),
        e2e=change.latency("vllm:e2e_request_latency_seconds"),
        queue=change.latency("vllm:request_queue_time_seconds"),
        reasons=reasons,
        derived={} if rows is None else {"running": ROWS},
        **drafted,
    )


def speculation(change: Change) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the fields of acceptance, and why those that are missing are."""
    names = (*SPECULATIVE, "mean_acceptance_length", "acceptance_rate")
    tokens = change.increase(f"{PREFIX}num_draft_tokens_total")
    if tokens is None:
        return {}, dict.fromkeys(names, NOT_DRAFTED)
    if change.after.total(EMITTED) is not None:
        return version_0(change, tokens)
    counted = counters(change)
    if not counted.num_drafts:
        return {"num_drafts": 0}, dict.fromkeys(names[1:], IDLE)
    return {
        "num_drafts": counted.num_drafts,
        "num_draft_tokens": counted.num_draft_tokens,
        "num_accepted_tokens": counted.num_accepted_tokens,
        "acceptance_rate": counted.acceptance_rate,
        "mean_acceptance_length": counted.mean_acceptance_length,
        "acceptance_per_position": counted.acceptance_rate_per_pos,
    }, {}


SPECULATIVE = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "acceptance_per_position")


def counters(change: Change) -> SpecDecodeCounters:
    """Return the drafts and accepted tokens of a window."""
    grown = change.by_label(PER_POSITION, "position")
    per_position = tuple(int(grown[key]) for key in sorted(grown, key=int))
    drafts, tokens = (
        int(change.increase(f"{PREFIX}num_{name}_total") or 0)
        for name in ("drafts", "draft_tokens")
    )
    return SpecDecodeCounters(drafts, tokens, sum(per_position), per_position)


def version_0(change: Change, tokens: float) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what vLLM's version 0 counted, and why its other fields are missing.

    K follows from its efficiency, emitted / (drafts (K + 1)).
    """
    why = "vLLM's version 0 counts neither drafts nor accepted tokens by position"
    found: dict[str, Any] = {"num_draft_tokens": tokens}
    reasons = {"acceptance_per_position": why}
    emitted = change.increase(EMITTED) or 0.0
    share, total, all_emitted = (
        change.after.total(name)
        for name in (f"{PREFIX}efficiency", f"{PREFIX}num_draft_tokens_total", EMITTED)
    )
    ratio = share * total / all_emitted if share and total and all_emitted else 0.0
    k = ratio / (1.0 - ratio) if 0 < ratio < 1 else 0.0  # K / (K + 1) is the ratio
    if not tokens or k < 0.9 or abs(k - round(k)) > 0.1:
        return found, {**dict.fromkeys((*SPECULATIVE, "mean_acceptance_length"), why), **reasons}
    drafts = tokens / round(k)
    accepted = emitted - drafts
    return {
        **found,
        "num_drafts": drafts,
        "num_accepted_tokens": accepted,
        "acceptance_rate": accepted / tokens,
        "mean_acceptance_length": emitted / drafts,
    }, reasons

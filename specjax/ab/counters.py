"""The drafts and accepted tokens of one unit, as the difference of a server's counters."""

from specjax.core.metrics import PREFIX, SpecDecodeCounters
from specjax.readers.scrape import Change, parse_scrape
from specjax.readers.vllm_metrics import counters


def read_counters(text: str) -> SpecDecodeCounters | None:
    """Return the counters in /metrics, summed over engines; None if the server does not speculate.

    Raises ValueError for what is no Prometheus text or counts that contradict each other.
    """
    since_start = Change(None, parse_scrape(text, "/metrics"))
    if since_start.increase(f"{PREFIX}num_draft_tokens_total") is None:
        return None
    return counters(since_start)


def difference(
    after: SpecDecodeCounters | None, before: SpecDecodeCounters | None
) -> SpecDecodeCounters | None:
    """Return after - before; None if either is None or a restart reset the counters."""
    if after is None or before is None or after.num_drafts < before.num_drafts:
        return None
    old = before.num_accepted_tokens_per_pos
    old += (0,) * (len(after.num_accepted_tokens_per_pos) - len(old))
    per_pos = tuple(
        new - was for new, was in zip(after.num_accepted_tokens_per_pos, old, strict=True)
    )
    return SpecDecodeCounters(
        after.num_drafts - before.num_drafts,
        after.num_draft_tokens - before.num_draft_tokens,
        sum(per_pos),
        per_pos,
    )

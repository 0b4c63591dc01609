"""A server's speculative counters, by difference: what a unit drafted and accepted."""

from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

from specjax.metrics import PREFIX, SpecDecodeCounters

TOTALS = tuple(f"{PREFIX}num_{name}_total" for name in ("drafts", "draft_tokens"))
PER_POS = f"{PREFIX}num_accepted_tokens_per_pos_total"


def read_counters(text: str) -> SpecDecodeCounters | None:
    """Read /metrics, summed over engines; None where the server does not speculate.

    Raises ValueError for what is no Prometheus text or counts that contradict each other.
    """
    totals, per_pos = defaultdict(int), defaultdict(int)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in TOTALS:
                totals[sample.name] += int(sample.value)
            elif sample.name == PER_POS:
                per_pos[int(sample.labels["position"])] += int(sample.value)
    if not totals:
        return None
    counts = tuple(per_pos[i] for i in range(max(per_pos, default=-1) + 1))
    drafts, tokens = (totals[name] for name in TOTALS)
    return SpecDecodeCounters(drafts, tokens, sum(counts), counts)


def difference(
    after: SpecDecodeCounters | None, before: SpecDecodeCounters | None
) -> SpecDecodeCounters | None:
    """Return what was counted in between; None if either is unknown or a restart reset them."""
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

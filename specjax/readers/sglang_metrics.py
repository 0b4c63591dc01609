"""SGLang's /metrics. Acceptance is a gauge of its last logging interval, not a counter.

``spec_accept_length`` counts the target's own token in all versions. ``spec_accept_rate`` changed
its meaning (with that token over K + 1, later without it over K), so it is computed here.
"""

from specjax.readers.observation import Observation
from specjax.readers.scrape import Change

OWNED = "sglang:"
GAUGE = "SGLang has a gauge of its last logging interval, and no counter"


def read_sglang(change: Change) -> Observation:
    """Return what a change of SGLang's metrics says; of tensor-parallel ranks the first."""

    def first_rank(labels):
        named = dict(labels)
        return all(named.get(rank, "0") == "0" for rank in ("tp_rank", "pp_rank", "moe_ep_rank"))

    before = None if change.before is None else change.before.where(first_rank)
    one = Change(before, change.after.where(first_rank))
    length = one.gauge("sglang:spec_accept_length") or None
    if length is not None and length < 1.0:
        length = None  # 0 while nothing was drafted
    drafts = one.increase("sglang:spec_verify_calls_total")
    verified = one.gauge("sglang:spec_num_draft_tokens")  # the root among them
    per_draft = verified - 1.0 if verified else None
    accepted = drafts * (length - 1.0) if drafts is not None and length else None
    drafted = drafts * per_draft if drafts is not None and per_draft else None
    return Observation(
        engine="SGLang",
        source=f"{change.after.source} (SGLang's names)",
        num_drafts=drafts,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        mean_acceptance_length=length,
        acceptance_rate=(length - 1.0) / per_draft if length and per_draft else None,
        running=one.gauge("sglang:num_running_reqs"),
        waiting=one.gauge("sglang:num_queue_reqs"),
        num_requests=one.increase("sglang:num_requests_total"),
        prompt_tokens=one.increase("sglang:prompt_tokens_total"),
        generation_tokens=one.increase("sglang:generation_tokens_total"),
        preemptions=one.increase("sglang:num_retracted_requests_total"),
        kv_cache_usage=one.gauge("sglang:token_usage"),
        ttft=one.latency("sglang:time_to_first_token_seconds"),
        tpot=one.latency("sglang:time_per_output_token_seconds"),
        itl=one.latency("sglang:inter_token_latency_seconds"),
        e2e=one.latency("sglang:e2e_request_latency_seconds"),
        queue=one.latency("sglang:queue_time_seconds"),
        reasons={
            "acceptance_per_position": "SGLang does not count by position",
            "acceptance_rate": f"{GAUGE}; K (sglang:spec_num_draft_tokens) is not there",
            "num_drafts": "this version has no sglang:spec_verify_calls_total",
            "num_draft_tokens": "K (sglang:spec_num_draft_tokens) is not there",
            "num_accepted_tokens": GAUGE,
            "mean_acceptance_length": "SGLang reports no drafts",
            "preemptions": "SGLang's counter appears with the first retraction",
        },
    )

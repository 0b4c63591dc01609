"""Text Generation Inference's /metrics; a message of n tokens records n - 1 as skipped."""

from specjax.readers.observation import Observation
from specjax.readers.scrape import Change

OWNED = "tgi_"


def read_tgi(change: Change) -> Observation:
    """Return what a change of TGI's metrics says.

    A request's first message is its prefill's token; each further one is a round.
    """
    messages = change.increase("tgi_request_skipped_tokens_count")
    skipped = change.increase("tgi_request_skipped_tokens_sum")
    finished = change.increase("tgi_request_generated_tokens_count") or 0.0
    rounds = None if messages is None else messages - finished
    speculated = bool(rounds and rounds > 0 and skipped)
    return Observation(
        engine="TGI",
        source=f"{change.after.source} (TGI's names)",
        num_drafts=rounds if speculated else None,
        num_accepted_tokens=skipped if speculated else None,
        mean_acceptance_length=1.0 + skipped / rounds
        if speculated and rounds and skipped
        else None,
        running=change.gauge("tgi_batch_current_size"),
        waiting=change.gauge("tgi_queue_size"),
        num_requests=change.increase("tgi_request_success"),
        generation_tokens=change.increase("tgi_request_generated_tokens_sum"),
        tpot=change.latency("tgi_request_mean_time_per_token_duration"),
        e2e=change.latency("tgi_request_duration"),
        queue=change.latency("tgi_request_queue_duration"),
        reasons={
            **dict.fromkeys(
                ("num_drafts", "num_accepted_tokens", "mean_acceptance_length"),
                "no message had more than one token: TGI did not speculate",
            ),
            "num_draft_tokens": "TGI does not count drafted tokens",
            "acceptance_rate": "TGI does not count drafted tokens",
            "acceptance_per_position": "TGI does not count by position",
            "ttft": "TGI has no histogram of first tokens",
        },
    )

"""GuideLLM's report, ``benchmarks.json``: one benchmark per rate or concurrency."""

from collections.abc import Mapping
from typing import Any

from specjax.readers.observation import Latency, Observation
from specjax.readers.vllm_bench import CLIENT


def is_guidellm(saved: Mapping[str, Any]) -> bool:
    """Return whether an object is a report with benchmarks."""
    runs = saved.get("benchmarks")
    return isinstance(runs, list) and all(
        isinstance(one, dict) and "metrics" in one for one in runs
    )


def read_guidellm(run: Mapping[str, Any], source: str) -> Observation:
    """Return what one benchmark of a report says, over its successful requests.

    Raises ValueError if a metric is not where the report's versions 1 and 2 have it.
    """
    metrics = run["metrics"]

    def distribution(name: str) -> Mapping[str, Any] | None:
        found = metrics.get(name)
        if found is None:
            return None
        try:
            return found["successful"]
        except (TypeError, KeyError):
            raise ValueError(f"{source}: metrics.{name} has no 'successful' distribution") from None

    def seconds(name: str, scale: float) -> Latency | None:
        found = distribution(name)
        if found is None or not found.get("count"):
            return None
        tails = found.get("percentiles") or {}
        p90, p99 = (None if tails.get(p) is None else tails[p] * scale for p in ("p90", "p99"))
        mean, middle, std = (found[key] * scale for key in ("mean", "median", "std_dev"))
        return Latency(mean, middle, p90, p99, found["count"], std)

    def mean(name: str) -> float | None:
        found = distribution(name)
        return None if found is None else found.get("mean")

    tokens, length = mean("output_token_count"), distribution("output_token_count")
    number = None if length is None else length.get("count")
    return Observation(
        engine="unknown",
        source=f"{source} (GuideLLM)",
        seconds=run.get("duration"),
        running=mean("request_concurrency"),
        num_requests=number,
        generation_tokens=tokens * number if tokens and number else None,
        generation_throughput=mean("output_tokens_per_second"),
        ttft=seconds("time_to_first_token_ms", 1e-3),
        # its time_per_output_token is E2E / tokens; after the first token it is the other
        tpot=seconds("inter_token_latency_ms", 1e-3),
        e2e=seconds("request_latency", 1.0),
        reasons={
            "itl": "GuideLLM's inter_token_latency is per token of a request: TPOT elsewhere",
            **dict.fromkeys(
                ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "acceptance_rate",
                 "mean_acceptance_length", "acceptance_per_position", "waiting", "queue",
                 "preemptions", "kv_cache_usage"),
                CLIENT,
            ),
        },
    )  # fmt: skip

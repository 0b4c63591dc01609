"""Results of ``vllm bench serve --save-result`` and ``sglang.bench_serving --output-file``.

The two tools write the same names: ``mean_tpot_ms``, ``duration``, ``completed``, ...; vLLM's adds
the server's acceptance as ``spec_decode_*`` with rates in percent, SGLang's ``accept_length``.
"""

from collections.abc import Mapping
from typing import Any

from specjax.readers.observation import Latency, Observation

NEEDED = ("duration", "completed", "total_output_tokens")
CLIENT = "the client does not see it: read the server's /metrics or log"


def is_bench(saved: Mapping[str, Any]) -> bool:
    """Return whether an object is a result of either tool."""
    return all(isinstance(saved.get(name), (int, float)) for name in NEEDED)


def read_bench(saved: Mapping[str, Any], source: str) -> Observation:
    """Return what a result says. ``is_bench`` holds."""
    sglang = "accept_length" in saved or "mean_e2e_latency_ms" in saved
    engine = str(saved.get("backend") or saved.get("endpoint_type") or "unknown")
    drafts, drafted, accepted = (
        saved.get(f"spec_decode_{name}")
        for name in ("num_drafts", "draft_tokens", "accepted_tokens")
    )
    rates = saved.get("spec_decode_per_position_acceptance_rates") or None
    length = saved.get("spec_decode_acceptance_length", saved.get("accept_length"))
    seconds = float(saved["duration"])
    return Observation(
        engine=engine,
        source=f"{source} ({'sglang.bench_serving' if sglang else 'vllm bench serve'})",
        model=saved.get("model_id"),
        seconds=seconds,
        num_drafts=drafts,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        acceptance_rate=accepted / drafted if drafted and accepted is not None else None,
        mean_acceptance_length=length,
        acceptance_per_position=None if rates is None else tuple(rates),
        running=saved.get("concurrency") or side_by_side(saved, seconds),
        num_requests=saved["completed"],
        prompt_tokens=saved.get("total_input_tokens"),
        generation_tokens=saved["total_output_tokens"],
        generation_throughput=saved["total_output_tokens"] / seconds if seconds else None,
        ttft=milliseconds(saved, "ttft"),
        tpot=milliseconds(saved, "tpot"),
        itl=milliseconds(saved, "itl"),
        e2e=milliseconds(saved, "e2el") or milliseconds(saved, "e2e_latency"),
        reasons={
            **dict.fromkeys(
                ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "acceptance_rate",
                 "mean_acceptance_length", "acceptance_per_position"),
                "the result has no acceptance: the server did not speculate, or the tool is older",
            ),
            **dict.fromkeys(("waiting", "queue", "preemptions", "kv_cache_usage"), CLIENT),
        },
        derived={"running": "end-to-end latencies / duration (Little's law)"},
    )  # fmt: skip


def milliseconds(saved: Mapping[str, Any], name: str) -> Latency | None:
    """Return a latency whose statistics are columns in milliseconds."""
    if (mean := saved.get(f"mean_{name}_ms")) is None:
        return None
    p50, p90, p99, std = (
        None if (value := saved.get(f"{which}_{name}_ms")) is None else value / 1e3
        for which in ("median", "p90", "p99", "std")
    )
    return Latency(mean / 1e3, p50, p90, p99, saved["completed"], std)


def side_by_side(saved: Mapping[str, Any], seconds: float) -> float | None:
    """Return the mean number of requests in flight."""
    mean = saved.get("mean_e2el_ms")
    return mean / 1e3 * saved["completed"] / seconds if mean and seconds else None

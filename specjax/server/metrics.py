"""The Prometheus metrics of ``/metrics``, under vLLM's names."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from specjax.core.metrics import Vector
from specjax.engine.service import ITERATION_BUCKETS, RequestStream, Stats

LABELS = ("model_name", "engine")
SECONDS = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)
FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20)
GAPS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)
HISTOGRAMS = {  # name after "vllm:" -> what it measures, buckets (vLLM's)
    "time_to_first_token_seconds": ("Arrival to first token.", FIRST),
    "inter_token_latency_seconds": ("Gap between two deltas of a sample.", GAPS),
    "request_time_per_output_token_seconds": ("Decode time per token after the first.", GAPS),
    "e2e_request_latency_seconds": ("Arrival to last token.", SECONDS),
    "request_queue_time_seconds": ("Arrival to the reading of the prompt.", SECONDS),
    "request_inference_time_seconds": ("Reading of the prompt to last token.", SECONDS),
    "request_prefill_time_seconds": ("Reading of the prompt to first token.", SECONDS),
    "request_decode_time_seconds": ("First token to last.", SECONDS),
    "request_prompt_tokens": ("Tokens of a prompt.", TOKENS),
    "request_generation_tokens": ("Tokens of a sample.", TOKENS),
    "request_params_n": ("Samples that a request asks for.", (1, 2, 5, 10, 20)),
    "request_params_max_tokens": ("Most tokens that a sample may have.", TOKENS),
    "request_num_preemptions": ("Preemptions of a sample: none, here.", (1, 2, 5, 10, 20)),
}


class Meters:
    """The metrics of one server: totals, read from the service when scraped, and histograms."""

    def __init__(self, stats: Callable[[], Stats], model: str, depth: int, method: str = ""):
        self.registry = CollectorRegistry()
        self.registry.register(Totals(stats, model, depth, method))
        ProcessCollector(registry=self.registry)
        self._histograms = {
            name: Histogram(
                f"vllm:{name}", what, LABELS, buckets=buckets, registry=self.registry
            ).labels(model, "0")
            for name, (what, buckets) in HISTOGRAMS.items()
        }

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)

    def observe_gap(self, seconds: float) -> None:
        """Observe one gap between two deltas (inter-token latency)."""
        self._histograms["inter_token_latency_seconds"].observe(seconds)

    def observe(self, stream: RequestStream, num_tokens: int) -> None:
        """Observe a finished sample, unless it was aborted before its first token."""
        times = stream.times
        if times.started is None or times.first_token is None or times.finished is None:
            return
        decode = times.finished - times.first_token
        seen = {
            "time_to_first_token_seconds": times.first_token - times.arrived,
            "e2e_request_latency_seconds": times.finished - times.arrived,
            "request_queue_time_seconds": times.started - times.arrived,
            "request_inference_time_seconds": times.finished - times.started,
            "request_prefill_time_seconds": times.first_token - times.started,
            "request_decode_time_seconds": decode,
            "request_prompt_tokens": len(stream.prompt_token_ids),
            "request_generation_tokens": num_tokens,
            "request_params_max_tokens": stream.max_tokens,
            "request_num_preemptions": 0,
        }
        if stream.index == 0:
            seen["request_params_n"] = stream.params.n
        if num_tokens > 1:
            seen["request_time_per_output_token_seconds"] = decode / (num_tokens - 1)
        for name, value in seen.items():
            self._histograms[name].observe(value)


class Totals(Collector):
    """Collects the service's totals."""

    def __init__(self, stats: Callable[[], Stats], model: str, depth: int, method: str):
        self._stats, self._labels = stats, (model, "0")
        self._depth, self._method = depth, method

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; the speculative counters only if there is a drafter."""
        stats = self._stats()
        yield self._one(GaugeMetricFamily, "num_requests_running", stats.running)
        yield self._one(GaugeMetricFamily, "num_requests_waiting", stats.waiting)
        waiting = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason", "Waiting samples.", labels=(*LABELS, "reason")
        )
        waiting.add_metric((*self._labels, "capacity"), stats.waiting)
        yield waiting
        rows = stats.max_num_seqs
        cache = {
            "num_rows": rows,
            "enable_prefix_caching": stats.prefix_cache_queries is not None,
            "kv_cache_size_tokens": rows * stats.capacity,
            "kv_cache_max_concurrency": float(rows),  # each row holds the longest text
        }
        config = GaugeMetricFamily(
            "vllm:cache_config_info",
            "The KV cache: a row for each running sample.",
            labels=(*LABELS, *cache),
        )
        config.add_metric((*self._labels, *map(str, cache.values())), 1)
        yield config
        yield self._one(GaugeMetricFamily, "kv_cache_usage_perc", stats.cache_usage)
        yield self._one(CounterMetricFamily, "num_preemptions", 0)  # not done here
        queries, hits = stats.prefix_cache_queries or 0, stats.prefix_cache_hits
        yield self._one(CounterMetricFamily, "prefix_cache_queries", queries)
        yield self._one(CounterMetricFamily, "prefix_cache_hits", hits)
        yield self._one(CounterMetricFamily, "admission_rejections", stats.num_rejected)
        yield self._iterations(stats)
        yield self._one(CounterMetricFamily, "prompt_tokens", stats.num_prompt_tokens)
        yield self._one(CounterMetricFamily, "generation_tokens", stats.num_generation_tokens)
        reasons = CounterMetricFamily(
            "vllm:request_success", "Finished samples.", labels=(*LABELS, "finished_reason")
        )
        for reason, count in stats.num_finished.items():
            reasons.add_metric((*self._labels, reason), count)
        yield reasons
        if not self._depth:
            return
        drafter = GaugeMetricFamily(
            "specjax:speculative_config_info",
            "The method of speculation, and K.",
            labels=(*LABELS, "method", "num_speculative_tokens"),
        )
        drafter.add_metric((*self._labels, self._method, str(self._depth)), 1)
        yield drafter
        for metric in stats.counters.to_metrics():
            name = metric.name.removeprefix("vllm:")
            if isinstance(metric, Vector):
                family = CounterMetricFamily(metric.name, name, labels=(*LABELS, "position"))
                for position, count in enumerate(metric.values):
                    family.add_metric((*self._labels, str(position)), count)
                yield family
            else:
                yield self._one(CounterMetricFamily, name, metric.value)

    def _iterations(self, stats: Stats) -> Metric:
        """Return the histogram of tokens per step."""
        made = HistogramMetricFamily(
            "vllm:iteration_tokens_total", "Tokens read and generated by a step.", labels=LABELS
        )
        totals = itertools.accumulate(stats.iterations)
        buckets = [(floatToGoString(b), n) for b, n in zip(ITERATION_BUCKETS, totals, strict=True)]
        made.add_metric(
            self._labels, buckets, stats.num_prompt_tokens + stats.num_generation_tokens
        )
        return made

    def _one(self, family: Any, name: str, value: int | float) -> Metric:
        made = family(f"vllm:{name}", name.replace("_", " "), labels=LABELS)
        made.add_metric(self._labels, value)
        return made

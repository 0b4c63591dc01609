"""OpenTelemetry traces under vLLM's names: one span ``llm_request`` per sample that finishes."""

import importlib.util
import os
import time
from collections.abc import Mapping
from typing import Any

from specjax import __version__
from specjax.engine.service import RequestStream

NEEDED = ("opentelemetry.sdk", "opentelemetry.exporter.otlp")
PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"  # OpenTelemetry's variable: grpc, http/protobuf
SPAN = "llm_request"


def check_endpoint(endpoint: str | None) -> None:
    """Raise an error if traces are wanted and cannot be sent.

    Raises:
        ImportError: OpenTelemetry is not installed.
        ValueError: the environment asks for another protocol.
    """
    if endpoint is None:
        return
    try:
        missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    except ModuleNotFoundError:
        missing = list(NEEDED)
    if missing:
        raise ImportError("--otlp-traces-endpoint needs OpenTelemetry: pip install 'specjax[otel]'")
    protocol = os.environ.get(PROTOCOL, "grpc")
    if protocol not in ("grpc", "http/protobuf"):
        raise ValueError(f"{PROTOCOL}={protocol!r} is not one of grpc, http/protobuf.")


def exporter(endpoint: str) -> Any:
    """Return OpenTelemetry's exporter for the protocol of the environment, by default gRPC."""
    if os.environ.get(PROTOCOL, "grpc") == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter(endpoint=endpoint, insecure=True)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint)


class Tracer:
    """Sends spans to a collector, from a thread of its own.

    Args:
        endpoint: the collector's address, as ``--otlp-traces-endpoint`` gives it.

    Raises:
        ImportError: OpenTelemetry is not installed.
        ValueError: the environment asks for another protocol.
    """

    def __init__(self, endpoint: str):
        check_endpoint(endpoint)
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create({"service.name": "specjax", "service.version": __version__})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter(endpoint)))
        self._tracer = self._provider.get_tracer("specjax.server")

    def record(
        self, stream: RequestStream, num_tokens: int, request_id: str, headers: Mapping[str, str]
    ) -> None:
        """Send the span of a finished sample; a ``traceparent`` in the headers is its parent."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        attributes = describe(stream, num_tokens, request_id)
        if not attributes:
            return
        age = time.perf_counter() - stream.times.arrived
        span = self._tracer.start_span(
            SPAN,
            context=TraceContextTextMapPropagator().extract(headers),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=time.time_ns() - int(age * 1e9),
        )
        span.end()

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def describe(stream: RequestStream, num_tokens: int, request_id: str) -> dict[str, Any]:
    """Return the attributes of a sample's span; none if it ended before its first token."""
    times, params = stream.times, stream.params
    if times.started is None or times.first_token is None or times.finished is None:
        return {}
    found = {
        "gen_ai.latency.time_to_first_token": times.first_token - times.arrived,
        "gen_ai.latency.e2e": times.finished - times.arrived,
        "gen_ai.latency.time_in_queue": times.started - times.arrived,
        "gen_ai.usage.prompt_tokens": len(stream.prompt_token_ids),
        "gen_ai.usage.completion_tokens": num_tokens,
        "gen_ai.latency.time_in_model_prefill": times.first_token - times.started,
        "gen_ai.latency.time_in_model_decode": times.finished - times.first_token,
        "gen_ai.latency.time_in_model_inference": times.finished - times.started,
        "gen_ai.request.id": request_id,
    }
    optional = {  # where they are neither None nor 0
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.n": params.n,
    }
    return found | {name: value for name, value in optional.items() if value}

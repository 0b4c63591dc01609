"""OpenTelemetry traces: vLLM's span and attributes, sent by either protocol to a collector."""

import concurrent.futures
import contextlib
import http.server
import json
import threading

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as services

from specjax.server.app import create_app
from specjax.server.tracing import PROTOCOL, Tracer, check_endpoint

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ATTRIBUTES = {  # of vLLM 0.32.0's span, vllm/v1/engine/output_processor.py
    *(f"gen_ai.latency.{name}" for name in ("time_to_first_token", "e2e", "time_in_queue")),
    *(f"gen_ai.latency.time_in_model_{name}" for name in ("prefill", "decode", "inference")),
    *(f"gen_ai.usage.{name}_tokens" for name in ("prompt", "completion")),
    *(f"gen_ai.request.{name}" for name in ("id", "top_p", "max_tokens", "temperature", "n")),
}


@contextlib.contextmanager
def http_collector():
    """Collect what comes by HTTP; yield the endpoint, and the requests."""
    found = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.append(messages.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", found
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def grpc_collector():
    """Collect what comes by gRPC; yield the endpoint, and the requests."""
    found = []

    class Service(services.TraceServiceServicer):
        def Export(self, request, context):
            found.append(request)
            return messages.ExportTraceServiceResponse()

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    services.add_TraceServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}", found
    server.stop(None).wait()


def spans(found):
    """Return all spans of some requests."""
    return [
        span
        for request in found
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def value(attribute):
    """Return an attribute's value."""
    return getattr(attribute.value, attribute.value.WhichOneof("value"))


@pytest.mark.parametrize(
    ("protocol", "collector"), [("grpc", grpc_collector), ("http/protobuf", http_collector)]
)
def test_every_sample_that_finishes_has_vllms_span(
    protocol, collector, deployment, call, monkeypatch
):
    monkeypatch.setenv(PROTOCOL, protocol)
    body = {"prompt": [7, 8, 9], "max_tokens": 4, "ignore_eos": True, "temperature": 0.5, "n": 2}
    with collector() as (endpoint, found):
        tracer = Tracer(endpoint)
        app = create_app(deployment, tracer=tracer)
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        reply = call("POST", "/v1/completions", body, app=app, **headers)
        call("POST", "/v1/completions", {**body, "n": 1, "stream": True}, app=app)
        tracer.close()
    first, second, third = spans(found)
    for span in (first, second):
        assert (span.name, span.kind) == ("llm_request", span.SPAN_KIND_SERVER)
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
        got = {one.key: value(one) for one in span.attributes}
        assert got.keys() == ATTRIBUTES
        assert got["gen_ai.request.id"] == json.loads(reply.body)["id"]
        assert (got["gen_ai.usage.prompt_tokens"], got["gen_ai.usage.completion_tokens"]) == (3, 4)
        assert (got["gen_ai.request.n"], got["gen_ai.request.temperature"]) == (2, 0.5)
        parts = got["gen_ai.latency.time_in_queue"] + got["gen_ai.latency.time_in_model_inference"]
        assert parts == pytest.approx(got["gen_ai.latency.e2e"])
        assert span.end_time_unix_nano > span.start_time_unix_nano
    assert third.parent_span_id == b""


def test_what_cannot_be_traced_is_said_before_loading(monkeypatch):
    check_endpoint(None)
    monkeypatch.setenv(PROTOCOL, "smoke")
    with pytest.raises(ValueError, match="'smoke' is not one of grpc"):
        check_endpoint("http://127.0.0.1:1")
    monkeypatch.setattr("specjax.server.tracing.NEEDED", ("opentelemetry.absent",))
    with pytest.raises(ImportError, match=r"specjax\[otel\]"):
        check_endpoint("http://127.0.0.1:1")

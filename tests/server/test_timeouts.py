"""A request that takes longer than ``--request-timeout`` ends with one status; its slot is free."""

import asyncio
import time

import pytest

from specjax.engine.service import RequestStream
from specjax.server.app import create_app
from specjax.server.deployment import Deployment
from tests.server.conftest import QUEUE

PROMPT = {"prompt": [7, 8, 9], "max_tokens": 100, "ignore_eos": True, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": "import os"}], "max_tokens": 60}
PATIENCE, SECONDS = 60.0, 3.0  # a first token comes within 3 s


@pytest.fixture
def limited(deployment):
    """Return an application whose requests may take so many seconds."""

    def make(seconds):
        names = {"service": deployment.service, "names": deployment.names, "max_queued": QUEUE}
        return create_app(Deployment(**names, request_timeout=seconds))

    return make


@pytest.fixture
def slots(deployment):
    """Check, afterwards, that nothing runs any more."""
    yield
    until = time.monotonic() + PATIENCE
    while (stats := deployment.service.stats()).running or stats.waiting:
        assert time.monotonic() < until, stats
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", PROMPT),
        ("/v1/completions", {**PROMPT, "max_tokens": 20, "use_beam_search": True, "n": 2}),
        ("/v1/chat/completions", CHAT),
        ("/v1/responses", {"input": "import os"}),
    ],
)
def test_what_has_not_begun_in_time_is_a_504(call, limited, slots, path, body, stream):
    body = body if "use_beam_search" in body else {**body, "stream": stream}
    reply = call("POST", path, body, app=limited(1e-4))
    assert reply.status == 504, reply.body
    assert "longer than" in reply.json()["error"]["message"]
    assert reply.json()["error"]["type"] == "TimeoutError"


def test_anthropics_error_says_so_too(call, limited, slots):
    reply = call("POST", "/v1/messages", {"model": "tiny", **CHAT}, app=limited(1e-4))
    assert (reply.status, reply.json()["error"]["type"]) == (504, "timeout_error")


@pytest.mark.parametrize(
    ("path", "body", "last"),
    [
        ("/v1/completions", PROMPT, b"data: [DONE]"),
        ("/v1/messages", {"model": "tiny", **CHAT}, b"timeout_error"),
        ("/v1/responses", {"input": "import os"}, b"response.failed"),
    ],
)
def test_a_stream_that_has_begun_ends_cleanly(call, limited, slots, monkeypatch, path, body, last):
    usual = RequestStream.__aiter__

    async def slowly(self):
        async for delta in usual(self):
            yield delta
            await asyncio.sleep(2 * SECONDS)

    monkeypatch.setattr(RequestStream, "__aiter__", slowly)
    reply = call("POST", path, {**body, "stream": True}, app=limited(SECONDS))
    assert reply.status == 200, reply.body
    events = reply.body.strip().split(b"\n\n")
    assert last in events[-1]
    assert b"longer than" in b"".join(events[-2:])

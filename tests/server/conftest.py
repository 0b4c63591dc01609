"""One tiny model behind the real application: in process, and on a socket."""

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from specjax import LLM, SamplingParams
from specjax.engine.service import Service
from specjax.server.app import create_app
from specjax.server.deployment import Deployment
from tests.server.running import Reply, running

CONFIG = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}
MAX_MODEL_LEN, SLOTS, QUEUE = 128, 4, 256


def make_llm(model: str) -> LLM:
    """Load the model as the server does."""
    return LLM(model, speculative_config=CONFIG, max_model_len=MAX_MODEL_LEN, max_num_seqs=SLOTS)


@pytest.fixture(scope="session")
def offline(pair):
    """Return the same model's offline completions of token ids."""
    llm = make_llm(pair.target)

    def complete(prompts: list[Any], **options: Any):
        params = SamplingParams(**{"temperature": 0.0, **options})
        prompts = [p if isinstance(p, str) else {"prompt_token_ids": p} for p in prompts]
        return [one.outputs[0] for one in llm.generate(prompts, params, use_tqdm=False)]

    return complete


@pytest.fixture(scope="session")
def deployment(pair) -> Iterator[Deployment]:
    """Serve the tiny model; whoever makes an application of it leaves the service running."""
    llm = make_llm(pair.target)
    service = Service(llm.core, max_waiting=QUEUE, prefix_cache_bytes=2**26)
    service.warm_up()
    yield Deployment(service=service, names=("tiny", "alias"), max_queued=QUEUE)
    service.close(drain=False)


@pytest.fixture(scope="session")
def application(deployment):
    """Return the application that all tests share; one with options is ``create_app``'s."""
    return create_app(deployment)


@pytest.fixture(scope="session")
def url(application) -> Iterator[str]:
    """Serve on a socket; the service outlives it, for the tests in process."""
    with running(application, lifespan="off") as address:
        yield address


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    """Keep one event loop for requests in process."""
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="session")
def call(application, runner):
    """Return ``call(method, path, body)``: a request in process, without a socket."""

    def ask(method: str, path: str, body: Any = None, app=application, **headers: str) -> Reply:
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body)
        content = content.encode() if isinstance(content, str) else content
        given = {"content_type": "application/json", **headers}
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "scheme": "http",
            "server": ("test", 80),
            "client": ("test", 1),
            "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in given.items()],
        }
        found = SimpleNamespace(status=0, body=b"", headers=())

        async def run() -> None:
            parts = [{"type": "http.request", "body": content, "more_body": False}]
            done = asyncio.Event()

            async def receive():
                if parts:
                    return parts.pop()
                await done.wait()
                return {"type": "http.disconnect"}

            async def send(message):
                if message["type"] == "http.response.start":
                    found.status, found.headers = message["status"], tuple(message["headers"])
                else:
                    found.body += message.get("body", b"")

            await app(scope, receive, send)
            done.set()

        runner.run(run())
        return Reply(found.status, found.body, found.headers)

    return ask

"""The application: every address the server answers."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from specjax import __version__
from specjax.server import log
from specjax.server.answers import Exchange
from specjax.server.deployment import Deployment
from specjax.server.errors import Refusal, install
from specjax.server.guard import MOST_BYTES, Guard
from specjax.server.metrics import Meters
from specjax.server.protocol import Chat, Completion, Detokenize, Tokenize
from specjax.server.streams import Events, whole

PAGE = "status.html"
PAGE_POLICY = (  # the page loads nothing, and talks to nobody but us
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


def create_app(
    served: Deployment, *, api_keys: Sequence[str] = (), most_bytes: int = MOST_BYTES
) -> FastAPI:
    """Build the application around a deployment; its service ends with the application."""
    service, names, tokenizer = served.service, served.names, served.llm.intake.tokenizer
    meters, created = Meters(service.stats, names[0], served.depth), int(time.time())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        reporting = asyncio.create_task(log.report(service.stats))
        yield
        reporting.cancel()
        await asyncio.to_thread(service.close, drain=True)

    app = FastAPI(
        title="specjax", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.add_middleware(Guard, keys=api_keys, most_bytes=most_bytes)
    install(app)

    async def generate(request: Request, asked: Completion | Chat) -> Response:
        tickets = await served.admit(asked)
        exchange = Exchange(asked, tickets, names[0], tokenizer, served.depth)
        if asked.stream:
            return Events(exchange, meters)
        return await whole(request, exchange, meters)

    @app.post("/v1/completions")
    async def completions(request: Request, asked: Completion) -> Response:
        return await generate(request, asked)

    @app.post("/v1/chat/completions")
    async def chats(request: Request, asked: Chat) -> Response:
        return await generate(request, asked)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        known = {"object": "model", "created": created, "owned_by": "specjax", "parent": None}
        known |= {"max_model_len": served.llm.max_model_len, "permission": []}
        return {"object": "list", "data": [{"id": n, "root": names[0], **known} for n in names]}

    @app.post("/tokenize")
    async def tokenize(asked: Tokenize) -> dict[str, Any]:
        served.check_name(asked.model)
        try:
            text = asked.prompt
            if asked.messages is not None:
                text = served.render(asked.messages, asked)
            special = asked.messages is None
            if asked.add_special_tokens is not None:
                special = asked.add_special_tokens
            ids = await served.encode(text or "", special)
        except ValueError as error:
            raise Refusal(400, str(error)) from None
        written = [tokenizer.backend.id_to_token(i) for i in ids]
        return {
            "count": len(ids),
            "max_model_len": served.llm.max_model_len,
            "tokens": ids,
            "token_strs": written if asked.return_token_strs else None,
        }

    @app.post("/detokenize")
    async def detokenize(asked: Detokenize) -> dict[str, str]:
        served.check_name(asked.model)
        return {"prompt": tokenizer.decode(asked.tokens, skip_special_tokens=False)}

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=200 if service.alive else 503)

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(meters.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/")
    async def status() -> Response:
        page = files("specjax.server").joinpath(PAGE).read_bytes()
        headers = {"Content-Security-Policy": PAGE_POLICY, "X-Content-Type-Options": "nosniff"}
        return Response(page, media_type="text/html", headers=headers)

    return app

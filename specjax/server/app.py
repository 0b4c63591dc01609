"""The FastAPI application: the endpoints that generate, and what all endpoints share."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from specjax import __version__
from specjax.server import beam, log, messages
from specjax.server.deployment import Deployment
from specjax.server.errors import ERRORS, STREAMED, APIError, install
from specjax.server.guard import MOST_BYTES, Guard
from specjax.server.instruments import add_instruments
from specjax.server.metrics import Meters
from specjax.server.openapi import complete
from specjax.server.protocol import Chat, Completion
from specjax.server.request_ids import RequestIds, request_id
from specjax.server.responses import ResponseBuilder
from specjax.server.responses_api import Responses
from specjax.server.responses_events import Envelope
from specjax.server.streams import event_response, full_response, stream_events
from specjax.server.tokens import add_tokens
from specjax.server.tracing import Tracer

Model = TypeVar("Model", bound=BaseModel)


class JSONRoute(APIRoute):
    """A route that accepts JSON only: a page of another site cannot make a browser send it.

    A browser asks first (CORS preflight) before it sends JSON to another site, and is refused.
    """

    def get_route_handler(self) -> Callable[[Request], Any]:
        """Return the handler, behind a check of the Content-Type of requests with a body."""
        handle, has_body = super().get_route_handler(), self.body_field is not None

        async def checked(request: Request) -> Response:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if has_body and kind != "application/json":
                raise APIError(415, "the body must be JSON: Content-Type: application/json.")
            return await handle(request)

        return checked


def create_app(
    served: Deployment,
    *,
    api_keys: Sequence[str] = (),
    most_bytes: int = MOST_BYTES,
    hosts: Sequence[str] | None = None,
    protect_metrics: bool = False,
    root_path: str = "",
    enable_request_id_headers: bool = False,
    enable_tokenizer_info_endpoint: bool = False,
    tracer: Tracer | None = None,
) -> FastAPI:
    """Return the application of a deployment; it closes the service when it ends.

    Args:
        api_keys: requests need one of them, if there are any.
        most_bytes: of a body.
        hosts: accepted names in a Host header, as ``Guard``'s.
        protect_metrics: ``Guard``'s.
        root_path: the prefix that a proxy removes from paths.
        enable_request_id_headers: send X-Request-Id back, or a new one.
        enable_tokenizer_info_endpoint: serve ``/tokenizer_info``.
        tracer: for the traces of requests; it is closed with the service.
    """
    service, core = served.service, served.core
    method = "" if core.speculative_config is None else core.speculative_config.name
    meters = Meters(service.stats, served.names[0], core.depth, method)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        reporting = asyncio.create_task(log.report(service.stats))
        yield
        reporting.cancel()
        await asyncio.to_thread(service.close, drain=True)
        if tracer is not None:
            await asyncio.to_thread(tracer.close)

    app = FastAPI(
        title="specjax",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        root_path=root_path,
        responses=ERRORS,
    )
    app.router.route_class = JSONRoute
    limits = {"most_bytes": most_bytes, "hosts": hosts, "protect_metrics": protect_metrics}
    app.add_middleware(Guard, keys=api_keys, **limits)
    if enable_request_id_headers:
        app.add_middleware(RequestIds)
    install(app)

    async def start(request: Request, body: Completion | Chat) -> ResponseBuilder:
        admitted = await served.admit(body)
        name = request_id(request.headers) or body.request_id
        args = body, admitted, served.names[0], core.tokenizer, core.depth
        return ResponseBuilder(
            *args,
            request_id=name,
            new_calls=served.calls_of(body),
            seconds=served.request_timeout,
            traced=tracer and partial(tracer.record, headers=request.headers),
        )

    async def generate(request: Request, body: Completion | Chat) -> Response:
        body = served.with_defaults(body)
        if body.use_beam_search:
            name = request_id(request.headers) or body.request_id
            made = await beam.respond(request, served, body, name)
            return Response(status_code=400) if made is None else JSONResponse(made)
        builder = await start(request, body)
        if body.stream:
            return await event_response(request, builder, stream_events(builder, meters))
        return await full_response(request, builder, meters, builder.response)

    @app.post("/v1/completions", responses=STREAMED)
    async def completions(request: Request, body: Completion) -> Response:
        return await generate(request, body)

    @app.post("/v1/chat/completions", responses=STREAMED)
    async def chats(request: Request, body: Chat) -> Response:
        return await generate(request, body)

    @app.post("/v1/responses", responses=STREAMED)
    async def responses(request: Request, body: Responses) -> Response:
        builder = await start(request, validated(Chat, body.to_chat()))
        envelope = Envelope(body, builder)
        if body.stream:
            return await event_response(request, builder, envelope.events(meters))
        return await full_response(request, builder, meters, envelope.finished)

    @app.post("/v1/messages", responses=STREAMED)
    async def converse(request: Request, body: messages.Messages) -> Response:
        builder = await start(request, validated(Chat, body.to_chat()))
        if body.stream:
            return await event_response(request, builder, messages.events(builder, meters))
        make = partial(messages.message, builder)
        return await full_response(request, builder, meters, make)

    @app.post("/v1/messages/count_tokens")
    async def count_tokens(body: messages.CountTokens) -> dict[str, int]:
        served.check_name(body.model)
        return {"input_tokens": len(await served.read_chat(validated(Chat, body.to_chat())))}

    @app.post("/invocations", responses=STREAMED)
    async def invocations(request: Request, body: dict[str, Any]) -> Response:
        return await generate(request, validated(Chat if "messages" in body else Completion, body))

    add_tokens(app, served, with_info=enable_tokenizer_info_endpoint)
    add_instruments(app, served, meters)
    read, told = app.openapi, {"with_keys": bool(api_keys), "protect_metrics": protect_metrics}
    app.openapi = cache(lambda: complete(read(), **told))
    return app


def validated(kind: type[Model], body: dict[str, Any]) -> Model:
    """Return a checked body. Raises RequestValidationError, as FastAPI does."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None

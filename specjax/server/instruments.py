"""The endpoints about the server itself: its models, health, load, metrics and status page."""

import time
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic_core import to_jsonable_python

from specjax import __version__
from specjax.server.deployment import Deployment
from specjax.server.metrics import Meters

PAGE = "status.html"
PAGE_POLICY = (  # the page loads nothing, and connects to this server only
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


def add_instruments(app: FastAPI, served: Deployment, meters: Meters) -> None:
    """Add the endpoints to an application."""
    service, core, names, created = served.service, served.core, served.names, int(time.time())

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        known = {"object": "model", "created": created, "owned_by": "specjax", "parent": None}
        known |= {"max_model_len": core.max_model_len, "permission": []}
        return {"object": "list", "data": [{"id": n, "root": names[0], **known} for n in names]}

    @app.get("/ping", response_class=Response)
    @app.post("/ping", response_class=Response)
    @app.get("/health", response_class=Response)
    async def health() -> Response:
        return Response(status_code=200 if service.alive else 503)

    @app.get("/load")
    async def load() -> dict[str, int]:
        stats = service.stats()
        return {"server_load": stats.running + stats.waiting}

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @app.get("/server_info")
    async def server_info() -> dict[str, Any]:
        config = core.speculative_config
        found = {
            "model": names[0],
            "max_model_len": core.max_model_len,
            "max_num_seqs": core.max_num_seqs,
            "speculative_config": None if config is None else asdict(config),
        }
        return {"vllm_config": to_jsonable_python(found, fallback=str)}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(meters.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/", response_class=HTMLResponse)
    async def status() -> Response:
        page = files("specjax.server").joinpath(PAGE).read_bytes()
        headers = {"Content-Security-Policy": PAGE_POLICY, "X-Content-Type-Options": "nosniff"}
        return Response(page, media_type="text/html", headers=headers)

"""Errors of the API: one JSON object for all of them, as in OpenAI and vLLM."""

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

logger = logging.getLogger(__name__)
TYPES = {400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError"}
TYPES |= {500: "InternalServerError", 503: "ServiceUnavailableError"}
TYPES |= {504: "TimeoutError"}
ANTHROPIC_TYPES = {400: "invalid_request_error", 401: "authentication_error"}
ANTHROPIC_TYPES |= {403: "permission_error", 404: "not_found_error", 413: "request_too_large"}
ANTHROPIC_TYPES |= {503: "overloaded_error", 504: "timeout_error"}
ERRORS: dict[int | str, dict[str, Any]] = {  # for the OpenAPI document
    status: {"description": f"{HTTPStatus(status).phrase}: an OpenAI error object"}
    for status in (400, 401, 403, 404, 408, 413, 415, 422, 500, 503, 504)
}
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
UNKNOWN_TROUBLE = "the server failed to answer; its log says why."
RETRY_AFTER = "1"  # seconds
BOUNDS = ("greater_than_equal", "less_than_equal")  # pydantic's names, which vLLM's messages have
MAX_PROBLEMS = 3  # per response: a union has one for each of its branches


class APIError(HTTPException):
    """An error response to a request; ``param`` is the field that is wrong, if there is one.

    A full server (503) says when to ask again.
    """

    def __init__(self, status: int, message: str, param: str | None = None):
        super().__init__(status, message, {"Retry-After": RETRY_AFTER} if status == 503 else None)
        self.param = param


def error_body(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """Return OpenAI's error object; ``code`` is the HTTP status, as in vLLM."""
    kind = TYPES.get(status) or HTTPStatus(status).phrase
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def anthropic_error(status: int, message: str) -> dict[str, Any]:
    """Return Anthropic's error object."""
    kind = ANTHROPIC_TYPES.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def respond(path: str, status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """Return the error object of the API that an address belongs to."""
    if path.startswith("/v1/messages"):
        return anthropic_error(status, message)
    return error_body(status, message, param)


def describe(problems: Sequence[Any]) -> tuple[str, str | None]:
    """Return a message of pydantic's problems, without the values, and the first field."""
    found = []
    for problem in problems[:MAX_PROBLEMS]:
        where = [str(part) for part in problem["loc"] if part != "body" and "[" not in str(part)]
        what = problem["msg"].removeprefix("Value error, ")
        if problem["type"] in BOUNDS:
            what = f"{what} ({problem['type']})"
        found.append(f"{'.'.join(where)}: {what}" if where else what)
    fields = [part for part in problems[0]["loc"] if part != "body"]
    return "; ".join(found), str(fields[0]) if fields else None


def install(app: FastAPI) -> None:
    """Make the application respond to every exception with an error object."""

    async def refuse(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        told = error.status_code, error.detail, getattr(error, "param", None)
        body = respond(request.url.path, *told)
        return JSONResponse(body, error.status_code, error.headers)

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError | ValidationError)
        return JSONResponse(respond(request.url.path, 400, *describe(error.errors())), 400)

    async def fail(request: Request, error: Exception) -> JSONResponse:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return JSONResponse(respond(request.url.path, 500, UNKNOWN_TROUBLE), 500)

    app.add_exception_handler(HTTPException, refuse)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, fail)

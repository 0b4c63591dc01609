"""Refusals: one error object for every reason not to answer, as OpenAI and vLLM write it."""

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
UNKNOWN_TROUBLE = "the server failed to answer; its log says why."
MOST_TOLD = 3  # problems per answer: a union has one for each of its branches


class Refusal(HTTPException):
    """A request is not answered; ``param`` is the field at fault, where there is one."""

    def __init__(self, status: int, message: str, param: str | None = None):
        super().__init__(status, message)
        self.param = param


def error_body(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """Write OpenAI's error object; ``code`` is the status, as in vLLM."""
    kind = TYPES.get(status) or HTTPStatus(status).phrase
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def describe(problems: Sequence[Any]) -> tuple[str, str | None]:
    """Say what pydantic found wrong, and in which field, without the values themselves."""
    told = []
    for problem in problems[:MOST_TOLD]:
        where = [str(part) for part in problem["loc"] if part != "body"]
        what = problem["msg"].removeprefix("Value error, ")
        told.append(f"{'.'.join(where)}: {what}" if where else what)
    fields = [part for part in problems[0]["loc"] if part != "body"]
    return "; ".join(told), str(fields[0]) if fields else None


def install(app: FastAPI) -> None:
    """Answer every exception with an error object."""

    async def refuse(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        body = error_body(error.status_code, error.detail, getattr(error, "param", None))
        return JSONResponse(body, error.status_code, error.headers)

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError | ValidationError)
        return JSONResponse(error_body(400, *describe(error.errors())), 400)

    async def fail(request: Request, error: Exception) -> JSONResponse:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return JSONResponse(error_body(500, UNKNOWN_TROUBLE), 500)

    app.add_exception_handler(HTTPException, refuse)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, fail)

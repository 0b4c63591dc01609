"""The OpenAPI document: what FastAPI reads from the code, and what it does not see there."""

from typing import Any

from pydantic import TypeAdapter

from specjax.engine.options.structured_outputs import StructuredOutputsParams
from specjax.server.guard import OPEN, WATCHED
from specjax.server.request_ids import HEADER, VALID

SCHEMAS = "#/components/schemas/"
KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
HEADERS = [
    {
        "name": HEADER,
        "in": "header",
        "description": "The client's own name for the request.",
        "schema": {"type": "string", "pattern": f"^{VALID.pattern}$"},
    },
    {
        "name": "traceparent",
        "in": "header",
        "description": "W3C trace context: the parent of the request's spans.",
        "schema": {"type": "string"},
    },
]
TEXT = {"type": "string"}
ERROR = {
    "type": "object",
    "properties": {
        "message": TEXT,
        "type": TEXT,
        "param": {"anyOf": [TEXT, {"type": "null"}]},
        "code": {"type": "integer"},
    },
    "required": ["message", "type", "param", "code"],
}
ANTHROPIC_ERROR = {
    "type": "object",
    "properties": {"message": TEXT, "type": TEXT},
    "required": ["message", "type"],
}


def complete(document: dict[str, Any], *, with_keys: bool, protect_metrics: bool) -> dict[str, Any]:
    """Add headers, API keys, error objects and the bodies that code checks by itself.

    Args:
        document: FastAPI's, which is changed.
        with_keys: requests need an API key.
        protect_metrics: they need one for ``/metrics`` and ``/`` too.
    """
    schemas = document["components"]["schemas"]
    for one in list(schemas.values()):
        if "structured_outputs" in one.get("properties", ()):
            form = {"$ref": f"{SCHEMAS}StructuredOutputs"}
            one["properties"]["structured_outputs"]["anyOf"] = [form, {"type": "null"}]
    forms = TypeAdapter(StructuredOutputsParams).json_schema()
    schemas["StructuredOutputs"] = forms | {"description": forms["description"].split("\n")[0]}
    schemas["Error"] = object_of({"error": ERROR})
    schemas["AnthropicError"] = object_of({"type": {"const": "error"}, "error": ANTHROPIC_ERROR})
    either = {"anyOf": [{"$ref": f"{SCHEMAS}{name}"} for name in ("Completion", "Chat")]}
    body = document["paths"]["/invocations"]["post"]["requestBody"]
    body["content"]["application/json"]["schema"] = either
    open_paths = OPEN if protect_metrics else (*OPEN, *WATCHED)
    if with_keys:
        document["components"]["securitySchemes"] = KEYS
    for path, methods in document["paths"].items():
        error = "AnthropicError" if path.startswith("/v1/messages") else "Error"
        for one in methods.values():
            one["responses"].pop("422", None)  # FastAPI's own, if there is none: here it is 400
            for status, response in one["responses"].items():
                if int(status) >= 400 and path not in ("/health", "/ping"):
                    content = {"schema": {"$ref": f"{SCHEMAS}{error}"}}
                    response["content"] = {"application/json": content}
            if "text/event-stream" in one["responses"]["200"].get("content", ()):
                one["parameters"] = [*one.get("parameters", ()), *HEADERS]
            if with_keys and path not in open_paths:
                one["security"] = [{name: []} for name in KEYS]
    return document


def object_of(properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object that has all of some properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}

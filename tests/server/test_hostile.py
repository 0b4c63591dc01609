"""Hostile requests: nothing fails or hangs, and another client notices nothing."""

import asyncio
import dataclasses
import subprocess
import sys
from pathlib import Path

import jsonschema

from specjax import StructuredOutputsParams
from specjax.server.app import create_app
from specjax.server.guard import OPEN, WATCHED
from specjax.server.messages import CountTokens, Messages
from specjax.server.protocol import Chat, Completion, Detokenize, Tokenize
from specjax.server.responses_api import Responses
from tests.server import hostile

NUM_CASES, NUM_EXAMPLES = 300, 20  # `make hostile` sends 5,000


def test_hostile_requests_change_nothing_for_another_client(url, call, deployment):
    document = call("GET", "/openapi.json").json()
    found = hostile.cases(document, NUM_CASES)
    outcome = asyncio.run(hostile.attack(url, found, Path("/proc/self")))
    print(outcome.statuses, outcome.num_same)
    assert outcome.statuses.total() == NUM_CASES
    assert outcome.faults == []
    assert outcome.statuses["400"] > NUM_CASES / 10
    assert outcome.num_same > 0
    assert deployment.service.alive


def test_every_status_of_the_document_is_documented(call):
    """OpenAPI names, for every address that takes a body, the errors that it answers with."""
    for path, methods in call("GET", "/openapi.json").json()["paths"].items():
        for method, one in methods.items():
            expected = {"200", "400", "401", "403", "500", "503"}
            if method == "post" and "requestBody" in one:
                expected |= {"408", "413", "415", "504"}
            assert expected <= set(one["responses"]), (method, path)


def test_the_document_names_every_address_and_every_field(call, deployment):
    """Each address with its methods, each field that is read, headers, keys and errors."""
    app = create_app(deployment, api_keys=("k",), enable_tokenizer_info_endpoint=True)
    document = call("GET", "/openapi.json", app=app, authorization="Bearer k").json()
    documented = {(path, one.upper()) for path, ms in document["paths"].items() for one in ms}
    served = {(one.path, way) for one in app.routes for way in one.methods - {"HEAD"}}
    assert served - documented == {("/openapi.json", "GET")}
    schemas = document["components"]["schemas"]
    for body in (Completion, Chat, Tokenize, Detokenize, Responses, Messages, CountTokens):
        assert set(schemas[body.__name__]["properties"]) == set(body.model_fields)
    forms = {one.name for one in dataclasses.fields(StructuredOutputsParams)}
    assert set(schemas["StructuredOutputs"]["properties"]) == forms
    assert {"name", "schema", "strict"} <= set(schemas["Format"]["properties"])
    for path, methods in document["paths"].items():
        for one in methods.values():
            assert ("security" in one) == (path not in (*OPEN, *WATCHED)), path
            content = one.get("requestBody", {}).get("content")
            assert content is None or content["application/json"]["schema"], path
            assert "422" not in one["responses"]
    told = {one["name"] for one in document["paths"]["/v1/messages"]["post"]["parameters"]}
    assert told == {"X-Request-Id", "traceparent"}
    assert "security" not in str(call("GET", "/openapi.json").json()["paths"])


def test_errors_are_the_objects_of_the_document(call):
    document = call("GET", "/openapi.json").json()
    for path in ("/v1/completions", "/v1/messages"):
        reply = call("POST", path, {"max_tokens": "x"})
        one = document["paths"][path]["post"]["responses"][str(reply.status)]
        schema = {**one["content"]["application/json"]["schema"], **document}
        jsonschema.validate(reply.json(), schema)


def test_schemathesis_finds_nothing(url):
    """Its checks of every address: no server error, documented statuses, content types, bodies."""
    checks = "not_a_server_error,status_code_conformance,content_type_conformance"
    checks += ",response_schema_conformance"
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"]
    command += ["--checks", checks]
    command += ["--max-examples", str(NUM_EXAMPLES), "--phases", "examples,fuzzing"]
    done = subprocess.run([*command, "--seed", "7"], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-5000:]

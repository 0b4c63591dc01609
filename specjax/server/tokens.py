"""The endpoints of the tokenizer: ``/tokenize``, ``/detokenize`` and ``/tokenizer_info``."""

import asyncio
from typing import Any

from fastapi import FastAPI

from specjax.server.deployment import Deployment
from specjax.server.errors import APIError
from specjax.server.protocol import Detokenize, Tokenize


def add_tokens(app: FastAPI, served: Deployment, *, with_info: bool) -> None:
    """Add the endpoints to an application; ``with_info``: also ``/tokenizer_info``."""
    core = served.core

    @app.post("/tokenize")
    async def tokenize(body: Tokenize) -> dict[str, Any]:
        served.check_name(body.model)
        try:
            text, special = body.prompt or "", body.messages is None
            if body.messages is not None:
                text = await served.render(body.messages, body)
            if body.add_special_tokens is not None:
                special = body.add_special_tokens
            (ids,) = await served.encode([text], special)
        except ValueError as error:
            raise APIError(400, str(error)) from None
        strings = [core.tokenizer.backend.id_to_token(i) for i in ids]
        return {
            "count": len(ids),
            "max_model_len": core.max_model_len,
            "tokens": ids,
            "token_strs": strings if body.return_token_strs else None,
        }

    @app.post("/detokenize")
    async def detokenize(body: Detokenize) -> dict[str, str]:
        served.check_name(body.model)
        decode = core.tokenizer.decode
        return {"prompt": await asyncio.to_thread(decode, body.tokens, skip_special_tokens=False)}

    if not with_info:
        return

    @app.get("/tokenizer_info")
    async def tokenizer_info() -> dict[str, Any]:
        templates = core.tokenizer.chat_templates
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",  # what loads a tokenizer.json
            "model_max_length": core.max_model_len,
            **core.tokenizer.special_tokens,
            "chat_template": served.chat_template or templates.get("default"),
        }

"""A request whose logits are not finite fails alone; its neighbours get their texts."""

import asyncio
import shutil
from pathlib import Path

import jax
import pytest

from specjax import LLM
from specjax.engine.service import Service
from specjax.models.build import init_params
from specjax.models.config import ModelConfig
from specjax.server.app import create_app
from specjax.server.deployment import Deployment
from specjax.weights.save import save_model
from tests.server.running import ask, running

POISON = 7  # the token whose embedding is no number


@pytest.fixture(scope="module")
def poisoned(pair, tmp_path_factory):
    """Serve a model that one token, in a prompt, drives out of its mind."""
    config = ModelConfig(
        vocab_size=260,
        hidden_size=32,
        intermediate_size=48,
        num_layers=1,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        qk_norm=True,
        tie_word_embeddings=False,
    )
    weights = init_params(config, jax.random.key(1))
    folder = tmp_path_factory.mktemp("poisoned")
    save_model(folder, config, weights, dtype="float32")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(pair.target) / name, folder)
    llm = LLM(str(folder), max_num_seqs=4)
    embedding = llm.core.params.target["embed_tokens"]  # files with such weights are refused
    embedding["weight"] = embedding["weight"].at[POISON].set(float("nan"))
    service = Service(llm.core, max_waiting=64)
    with running(
        create_app(Deployment(service=service, names=("tiny",), max_queued=64)),
        lifespan="on",
    ) as url:
        yield url


def test_poison_fails_the_request_and_not_the_server(poisoned):
    body = {"max_tokens": 20, "temperature": 0, "ignore_eos": True, "allowed_token_ids": [8, 9, 10]}
    sound, bad = {**body, "prompt": [8, 9]}, {**body, "prompt": [8, POISON, 9]}

    async def together():
        alone = await ask(poisoned, "/v1/completions", sound)
        asked = [sound, bad, sound, {**bad, "stream": True}, sound]
        return alone, await asyncio.gather(*(ask(poisoned, "/v1/completions", b) for b in asked))

    alone, (first, failed, second, streamed, third) = asyncio.run(together())
    text = alone.json()["choices"][0]["text"]
    assert [one.json()["choices"][0]["text"] for one in (first, second, third)] == [text] * 3
    assert failed.status == 500
    assert failed.json()["error"]["type"] == "InternalServerError"
    assert "not finite" in failed.json()["error"]["message"]
    assert streamed.status == 500  # it had no token yet
    assert "not finite" in streamed.json()["error"]["message"]
    later = {**sound, "allowed_token_ids": [POISON], "stream": True}
    begun = asyncio.run(ask(poisoned, "/v1/completions", later))
    assert begun.status == 200
    assert "not finite" in begun.events()[-1]["error"]["message"]
    assert asyncio.run(ask(poisoned, "/v1/completions", sound)).json()["choices"][0]["text"] == text

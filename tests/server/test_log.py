"""The periodic log line: vLLM's words, and nothing of what clients say."""

import asyncio
import logging

from specjax.core.metrics import SpecDecodeCounters
from specjax.engine.service import Stats
from specjax.server.log import lines, report

IDLE = Stats(0, 0, 4, 4, 64, 0.0, 0, 0, {}, 0, None, 0, (), SpecDecodeCounters.zeros(2))
BUSY = IDLE._replace(
    running=3,
    waiting=2,
    cache_usage=0.125,
    num_prompt_tokens=50,
    num_generation_tokens=200,
    counters=SpecDecodeCounters(40, 80, 30, (20, 10)),
)


def test_the_lines_are_vllms():
    assert lines(IDLE, BUSY, 10.0) == [
        "Engine 000: Avg prompt throughput: 5.0 tokens/s, Avg generation throughput: 20.0 "
        "tokens/s, Running: 3 reqs, Waiting: 2 reqs, KV cache usage: 12.5%",
        "SpecDecoding metrics: Mean acceptance length: 1.75, Accepted throughput: 3.00 tokens/s, "
        "Drafted throughput: 8.00 tokens/s, Accepted: 30 tokens, Drafted: 80 tokens, "
        "Per-position acceptance rate: 0.500, 0.250, Avg Draft acceptance rate: 37.5%",
    ]


def test_an_idle_server_keeps_silent():
    assert lines(IDLE, IDLE, 10.0) == []


def test_a_server_at_work_logs_no_prompt(call, deployment, runner, caplog):
    caplog.set_level(logging.DEBUG)

    async def watch() -> None:
        reporting = asyncio.create_task(report(deployment.service.stats, 0.01))
        body = {"prompt_token_ids": deployment.service.core.tokenizer.encode("swordfish")}
        params = deployment.default_params
        (stream,) = deployment.service.submit(body, params)
        async for _ in stream:
            pass
        await asyncio.sleep(0.05)
        reporting.cancel()

    runner.run(watch())
    call("POST", "/v1/completions", {"prompt": "swordfish", "max_tokens": 2})
    call("POST", "/v1/completions", {"prompt": "swordfish", "max_tokens": 0})
    assert "Avg generation throughput" in caplog.text
    assert "swordfish" not in caplog.text

"""Many clients at once, and bad ones: nobody is lost, mixed up or held up."""

import asyncio
import json
import random
import socket
import time

import httpx
import pytest

from specjax import SamplingParams
from tests.server.conftest import SLOTS
from tests.server.running import ask, request

NUM_REQUESTS, CONCURRENCY, NUM_PROMPTS = 2000, 64, 40
PATIENCE = 120.0  # seconds, for a machine that does other things
MOST_EVENTS = 1e-4  # near ties that rounding decides otherwise, per token (law 1b)


def bodies(rng: random.Random) -> list[dict]:
    """Make prompts and lengths that repeat, so that the offline model has little to do."""
    found = []
    for _ in range(NUM_PROMPTS):
        prompt = [rng.randrange(3, 250) for _ in range(rng.randrange(1, 30))]
        found.append({"prompt": prompt, "max_tokens": rng.randrange(1, 25), "ignore_eos": True})
    return found


async def settle(deployment, seconds: float = PATIENCE) -> None:
    """Wait until nothing runs."""
    until = time.monotonic() + seconds
    while (stats := deployment.service.stats()).running or stats.waiting:
        assert time.monotonic() < until, stats
        await asyncio.sleep(0.01)


def test_two_thousand_requests_with_random_aborts(url, deployment, offline):
    rng = random.Random(0)
    kinds = bodies(rng)
    expected = [
        list(offline([one["prompt"]], max_tokens=one["max_tokens"], ignore_eos=True)[0].token_ids)
        for one in kinds
    ]
    gate = asyncio.Semaphore(CONCURRENCY)
    aborted, wrong, num_tokens = 0, 0, 0

    async def one(number: int) -> None:
        nonlocal aborted, wrong, num_tokens
        kind = rng.randrange(len(kinds))
        body = {**kinds[kind], "temperature": 0, "return_token_ids": True}
        body["stream"] = rng.random() < 0.5
        leaves = rng.choice([0, 200, 600]) if rng.random() < 0.25 else None
        async with gate:
            reply = await ask(url, "/v1/completions", body, leave_after=leaves)
        if reply is None:
            aborted += 1
            return
        assert reply.status == 200, reply.body
        if body["stream"]:
            tokens = [t for event in reply.events() for t in event["choices"][0]["token_ids"]]
        else:
            tokens = reply.json()["choices"][0]["token_ids"]
        assert len(tokens) == len(expected[kind])
        wrong += tokens != expected[kind]
        num_tokens += len(tokens)

    async def everything() -> None:
        await asyncio.gather(*(one(number) for number in range(NUM_REQUESTS)))
        await settle(deployment)

    before, start = deployment.service.stats(), time.monotonic()
    asyncio.run(everything())
    seconds = time.monotonic() - start
    finished = deployment.service.stats().num_finished
    grown = {
        reason: count - before.num_finished.get(reason, 0) for reason, count in finished.items()
    }
    print(
        f"{NUM_REQUESTS} requests, {CONCURRENCY} at a time, {aborted} aborted: {num_tokens} tokens "
        f"in {seconds:.1f} s, {wrong} texts other than offline; finished: {grown}"
    )
    assert aborted > NUM_REQUESTS / 5
    assert grown["error"] == 0
    assert wrong <= MOST_EVENTS * num_tokens


def long_body(**changes) -> dict:
    return {"prompt": [7, 8, 9], "max_tokens": 120, "ignore_eos": True, **changes}


def test_whoever_leaves_frees_the_slot_within_two_steps(url, deployment):
    async def leave_each(stream: bool) -> int:
        before = deployment.service.stats()
        body = long_body(stream=stream, temperature=1.0)
        if stream:
            await ask(url, "/v1/completions", body, leave_after=300)
        else:
            leaving = asyncio.create_task(ask(url, "/v1/completions", body))
            while not deployment.service.stats().running:
                await asyncio.sleep(0.001)
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
        await settle(deployment)
        return deployment.service.stats().num_finished["abort"] - before.num_finished["abort"]

    for stream in (True, False):
        assert asyncio.run(leave_each(stream)) == 1


def test_slow_readers_and_half_open_connections_stall_nobody(url, deployment):
    """Eight readers never read, fifty connections never say anything; another client is served."""
    host, _, port = url.removeprefix("http://").partition(":")
    body = {"prompt": [7, 8, 9], "max_tokens": 5, "temperature": 0}

    def connect(first: bytes) -> socket.socket:
        opened = socket.create_connection((host, int(port)))
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        opened.sendall(first)
        return opened

    def median() -> float:
        times = []
        for _ in range(15):
            start = time.perf_counter()
            reply = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE)
            assert reply.status_code == 200
            times.append(time.perf_counter() - start)
        return sorted(times)[len(times) // 2]

    alone = median()
    many = {**long_body(stream=True, logprobs=20, n=SLOTS, temperature=1.0)}
    opened = [connect(request("/v1/completions", many)) for _ in range(8)]
    opened += [connect(request("/v1/completions", body)[:-9]) for _ in range(25)]
    opened += [connect(b"POST /v1/comp") for _ in range(25)]
    try:
        asyncio.run(settle(deployment))  # the slow readers' samples are done, unread
        beside = median()
    finally:
        for one in opened:
            one.close()
    print(f"median of a request: {alone * 1e3:.1f} ms alone, {beside * 1e3:.1f} ms beside 58")
    assert beside < 3 * alone + 0.05


def test_health_and_metrics_answer_while_all_slots_are_busy(url, deployment):
    async def both() -> float:
        busy = [
            asyncio.create_task(ask(url, "/v1/completions", long_body(temperature=1.0)))
            for _ in range(2 * SLOTS)
        ]
        while deployment.service.stats().running < SLOTS:
            await asyncio.sleep(0.001)
        start = time.perf_counter()
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            found = [await client.get(f"{url}/{path}") for path in ("health", "metrics")]
        seconds = time.perf_counter() - start
        assert [one.status_code for one in found] == [200, 200]
        assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0' not in found[1].text
        answers = await asyncio.gather(*busy)
        assert all(json.loads(one.body)["usage"]["completion_tokens"] == 120 for one in answers)
        return seconds

    print(f"/health and /metrics: {asyncio.run(both()) * 1e3:.0f} ms while all slots are busy")


def test_a_stream_that_waits_has_no_status_yet(url, deployment):
    """Its status comes with its first token: until then a load balancer may send it elsewhere."""
    ids, many = [7, 8, 9], SLOTS * 12
    params = SamplingParams(n=many, max_tokens=100, ignore_eos=True)
    waiting = deployment.service.submit({"prompt_token_ids": ids}, params)
    body = {"prompt": ids, "max_tokens": 2, "stream": True}
    try:
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=PATIENCE) as reply:
            assert reply.status_code == 200
            assert deployment.service.stats().waiting == 0  # those before it have all started
            assert b"[DONE]" in reply.read()
    finally:
        for stream in waiting:
            stream.abort()

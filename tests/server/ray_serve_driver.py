"""Run by ``test_ray_serve`` in a network namespace: docs/deploy's file, and a replica is killed."""

import json
import os
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import ray
from ray import serve

sys.path.append(str(Path(__file__).parents[2] / "docs" / "deploy"))

import ray_serve

PORT = 8123  # of a namespace that nobody else is in
URL = f"http://127.0.0.1:{PORT}"
PATIENCE = 240.0  # seconds


def complete(body: dict, stream: bool) -> str:
    """Return a completion's text."""
    if not stream:
        reply = httpx.post(f"{URL}/v1/completions", json=body, timeout=PATIENCE)
        reply.raise_for_status()
        return reply.json()["choices"][0]["text"]
    text, asked = [], {**body, "stream": True}
    with httpx.stream("POST", f"{URL}/v1/completions", json=asked, timeout=PATIENCE) as reply:
        reply.raise_for_status()
        lines = list(reply.iter_lines())
    assert "data: [DONE]" in lines
    for line in lines:
        if line.startswith("data: {"):
            text.append(json.loads(line[6:])["choices"][0]["text"])
    return "".join(text)


def replicas() -> list[int]:
    """Return the process ids of the replicas in this network namespace."""
    own, found = os.readlink("/proc/self/ns/net"), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            title = (process / "cmdline").read_bytes()
            if b"ServeReplica" in title and os.readlink(process / "ns" / "net") == own:
                found.append(int(process.name))
        except OSError:
            continue  # it has ended
    return found


def main(model: str) -> None:
    """Serve a model by two replicas; print what the requests got."""
    ray.init(namespace="specjax-test", num_cpus=4, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    serve.run(ray_serve.app({"model": model, "replicas": "2"}), name="specjax-test")
    usual = {"prompt": [7, 8, 9], "max_tokens": 24, "ignore_eos": True}
    greedy, free = {**usual, "temperature": 0}, {**usual, "temperature": 1.5}
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(complete, [greedy] * 32, [True, False] * 16))
        sampled = list(pool.map(complete, [free] * 32, [False] * 32))
    before = replicas()
    os.kill(before[0], signal.SIGKILL)
    after, until = Counter[str](), time.monotonic() + PATIENCE
    while after["answered"] < 16 and time.monotonic() < until:
        try:
            texts.append(complete(greedy, after["answered"] % 2 == 0))
            after["answered"] += 1
        except (httpx.TransportError, httpx.HTTPStatusError):
            after["refused"] += 1  # until Serve has seen that the replica is gone
            time.sleep(0.2)
    serve.shutdown()
    ray.shutdown()
    found = {"texts": texts, "sampled": sampled, "replicas": len(before), "after": after}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])

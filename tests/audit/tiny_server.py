"""A small real server that completes prompts by a known law, or by a wrong one, over HTTP."""

import contextlib
import itertools
import json
import threading
from dataclasses import dataclass, field

import numpy as np

from tests.server.running import running

VOCAB = 6
LAWS = np.random.default_rng(0).dirichlet(np.ones(VOCAB), VOCAB)  # of a token, given the last
FAVOURITES = LAWS.argmax(axis=1)


@dataclass
class Faults:
    """What is wrong with a server; by default nothing is."""

    ignores_temperature: bool = False  # from the second token on: where drafts are verified
    ignores_law: bool = False  # likewise, at any temperature
    greedy_slip: int | None = None  # index of a token that is not the likeliest
    refuses_n: bool = False
    hides: tuple[str, ...] = ()  # fields of a choice, "metrics" or "models"
    laws: np.ndarray = field(default_factory=lambda: LAWS)
    num_drafts: int | None = 0  # grows by one a text; None: says it never drafts


class TinyServer:
    """An ASGI application: /v1/models, /v1/completions, /version and /metrics."""

    def __init__(self, faults: Faults, seed: int):
        self.faults, self.drafts = faults, 0
        self.rng, self.lock = np.random.default_rng(seed), threading.Lock()
        self.bodies, self.sums = [], {}

    async def __call__(self, scope, receive, send):
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        status, answer = self.answer(scope["path"], json.loads(body or "null"))
        text = answer if isinstance(answer, str) else json.dumps(answer)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": text.encode()})

    def answer(self, path: str, body) -> tuple[int, object]:
        """Return the status and what to say."""
        if path == "/v1/models":
            return 200, "hello" if "models" in self.faults.hides else {"data": [{"id": "tiny"}]}
        if path == "/metrics" and "metrics" not in self.faults.hides:
            return 200, f"vllm:spec_decode_num_drafts_total{{engine='0'}} {float(self.drafts)}\n"
        if path != "/v1/completions":
            return 404, "nothing here"
        self.bodies.append(body)
        prompt = body["prompt"]
        ids = [ord(letter) % VOCAB for letter in prompt] if isinstance(prompt, str) else prompt
        choices = [self.complete(index, ids, body) for index in range(body.get("n", 1))]
        return 200, {"choices": choices[:1] if self.faults.refuses_n else choices}

    def complete(self, index: int, ids: list[int], body) -> dict:
        """Write one text."""
        text, last = [], ids[-1]
        for place in range(body["max_tokens"]):
            last = self.next_token(last, place, body["temperature"])
            text.append(last)
        self.drafts += self.faults.num_drafts is not None
        choice = {"index": index, "token_ids": text, "prompt_token_ids": ids}
        if body.get("echo"):
            logs = np.log(self.faults.laws)
            pairs = list(itertools.pairwise(ids))
            choice["logprobs"] = {
                "token_logprobs": [None, *(float(logs[a, b]) for a, b in pairs)],
                "top_logprobs": [None, *({"best": float(logs[a].max())} for a, _ in pairs)],
            }
        return {name: value for name, value in choice.items() if name not in self.faults.hides}

    def next_token(self, last: int, place: int, temperature: float) -> int:
        """Draw a token after another."""
        law = self.faults.laws[last]
        if temperature == 0:
            order = np.argsort(-law, kind="stable")
            return int(order[int(place == self.faults.greedy_slip)])
        if place > 0 and self.faults.ignores_law:
            law = np.ones(VOCAB)
        if not (place > 0 and self.faults.ignores_temperature):
            law = law ** (1 / temperature)
        sums = self.sums.setdefault((last, place, temperature), law.cumsum() / law.sum())
        return int(np.searchsorted(sums, self.rng.random(), side="right"))


@contextlib.contextmanager
def serving(faults: Faults | None = None, seed: int = 0):
    """Serve on a free port; yield the URL and the application."""
    application = TinyServer(faults or Faults(), seed)
    with running(application, lifespan="off") as url:
        yield url, application

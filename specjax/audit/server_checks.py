"""Checks of a server that need no distribution: two ways to ask for one text, or a form to keep.

With a seed a text is the same streamed and whole, alone and in company; the logprobs that come with
sampled tokens are those of the same tokens as a prompt; a grammar and a function's schema hold for
every text. Where a server does not offer what is asked, a check says so and does not fail.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from specjax.audit.client import Server
from specjax.audit.greedy import NEAR

TEXTS, TOKENS = 8, 32  # of every prompt: how many, how long
MATES = 24  # requests beside them
CHOICES = ("red", "green", "blue")
PATTERN = "[0-9]{3}-[a-f]{2}"
FUNCTION = {
    "name": "set_timer",
    "description": "Start a timer.",
    "parameters": {
        "type": "object",
        "properties": {
            "amount": {"type": "integer"},
            "unit": {"type": "string", "enum": ["seconds", "minutes"]},
        },
        "required": ["amount", "unit"],
        "additionalProperties": False,
    },
}


class Check(NamedTuple):
    """What one check found."""

    name: str  # of ``CHECKS``
    prompt: str
    verdict: str
    passed: bool


def check_server(server: Server, prompts: Sequence[str], names: Iterable[str]) -> list[Check]:
    """Return the findings of these checks on every prompt.

    Raises ValueError for an unknown name, ConnectionError when the server is not reachable.
    """
    found = []
    for name in chosen(names):
        for prompt in prompts:
            try:
                verdict, passed = CHECKS[name](server, prompt)
            except ValueError as error:
                verdict, passed = f"not offered: {error}", True
            found.append(Check(name, prompt, verdict, passed))
    return found


def chosen(names: Iterable[str]) -> list[str]:
    """Return the names of checks, each once, for "all" those of all; ValueError for others."""
    names = list(dict.fromkeys(names))
    for name in names:
        if name not in (*CHECKS, "all"):
            raise ValueError(f"there is no check {name!r}: choose from {', '.join(CHECKS)} or all")
    return list(CHECKS) if "all" in names else names


def streaming(server: Server, prompt: str) -> tuple[str, bool]:
    """Compare each text as a whole with the same one streamed."""
    differ = 0
    for seed in range(TEXTS):
        (whole,) = server.complete(seeded(prompt, seed))
        pieces = [event["choices"][0] for event in server.stream(seeded(prompt, seed))]
        ids = [token for piece in pieces for token in piece.get("token_ids") or ()]
        text = "".join(piece.get("text") or "" for piece in pieces)
        differ += (ids, text) != (list(whole["token_ids"]), whole["text"])
    return counted(differ, TEXTS, "streamed as whole")


def company(server: Server, prompt: str) -> tuple[str, bool]:
    """Compare each text alone with the same one beside ``MATES`` other requests.

    A server whose sums depend on the batch may change a few texts by rounding: one of them passes.
    """
    alone = [server.complete(seeded(prompt, seed))[0]["token_ids"] for seed in range(TEXTS)]
    with ThreadPoolExecutor(TEXTS + MATES) as pool:
        mates = [
            pool.submit(server.complete, seeded(prompt[: len(prompt) // 2], 1000 + i))
            for i in range(MATES)
        ]
        again = pool.map(
            lambda seed: server.complete(seeded(prompt, seed))[0]["token_ids"], range(TEXTS)
        )
        differ = sum(one != other for one, other in zip(alone, again, strict=True))
        for mate in mates:
            mate.result()
    return counted(differ, TEXTS, "alone as in company", allowed=1)


def logprobs(server: Server, prompt: str) -> tuple[str, bool]:
    """Compare the logprobs of sampled tokens with those of the same tokens in a prompt."""
    ids, worst = server.encode(prompt), 0.0
    for seed in range(TEXTS):
        (choice,) = server.complete({**seeded(prompt, seed), "logprobs": 1})
        given = (choice.get("logprobs") or {}).get("token_logprobs")
        if given is None:
            raise ValueError(f"{server.url} gives no logprobs")
        scores = server.score(ids, choice["token_ids"])
        worst = max(
            worst, *(abs(a - b.logprob) for a, b in zip(given, scores, strict=True)),
        )  # fmt: skip
    verdict = f"sampled tokens' logprobs within {worst:.2g} nats of a prompt's"
    return verdict, worst <= NEAR


def grammar(server: Server, prompt: str) -> tuple[str, bool]:
    """Return how many texts leave a choice, or a pattern, that the request asks for."""
    outside = 0
    for form, fits in (
        ({"choice": list(CHOICES)}, lambda text: text in CHOICES),
        ({"regex": PATTERN}, lambda text: re.fullmatch(PATTERN, text) is not None),
    ):
        for seed in range(TEXTS):
            (choice,) = server.complete({**seeded(prompt, seed), "structured_outputs": form})
            outside += not fits(choice["text"])
    return counted(outside, 2 * TEXTS, "inside the grammar")


def tools(server: Server, prompt: str) -> tuple[str, bool]:
    """Return how many calls of a function that is asked for leave its schema, or change streamed.

    A call that the limit of tokens ends is no finding.
    """
    wrong = ended = 0
    for seed in range(TEXTS):
        asked = {
            "messages": [{"role": "user", "content": prompt}],
            "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": {"type": "function", "function": {"name": FUNCTION["name"]}},
            "max_tokens": 2 * TOKENS,
            "temperature": 1.0,
            "seed": seed,
        }
        (choice,) = server.chat(asked)
        calls = choice["message"].get("tool_calls") or [{}]
        said = calls[0].get("function", {})
        streamed = ""
        for event in server.stream(asked, "/v1/chat/completions"):
            for call in event["choices"][0]["delta"].get("tool_calls") or ():
                streamed += call["function"].get("arguments") or ""
        if choice["finish_reason"] == "length":
            ended += 1
            wrong += streamed != said.get("arguments")
        else:
            wrong += not fits_schema(said) or streamed != said["arguments"]
    verdict, passed = counted(wrong, TEXTS, "calls by the schema, streamed as whole")
    return verdict + (f" ({ended} ended by max_tokens)" if ended else ""), passed


CHECKS: dict[str, Callable[[Server, str], tuple[str, bool]]] = {
    "streaming": streaming,
    "company": company,
    "logprobs": logprobs,
    "grammar": grammar,
    "tools": tools,
}


def seeded(prompt: str, seed: int) -> dict[str, Any]:
    """Return the body of a sampled request whose answer may not depend on how it is asked."""
    return {"prompt": prompt, "max_tokens": TOKENS, "temperature": 1.0, "seed": seed}


def counted(wrong: int, total: int, what: str, allowed: int = 0) -> tuple[str, bool]:
    """Return a verdict on so many texts, and whether it passes."""
    return f"{total - wrong} of {total} texts {what}", wrong <= allowed


def fits_schema(call: dict[str, Any]) -> bool:
    """Return whether a call is one of ``FUNCTION``, with arguments of its schema."""
    try:
        arguments = json.loads(call["arguments"])
    except (KeyError, TypeError, ValueError):
        return False
    return (
        call.get("name") == FUNCTION["name"]
        and isinstance(arguments, dict)
        and set(arguments) == {"amount", "unit"}
        and type(arguments["amount"]) is int
        and arguments["unit"] in ("seconds", "minutes")
    )

"""Audit a running server from outside: is its law the one it has without speculation?

``collect`` asks an OpenAI-compatible server, and another that does not speculate, for many
short completions and one greedy one of each prompt; ``judge`` reads what was collected, and
needs no server. Without a reference the joint law of the first tokens, at temperature 1, is
compared with the logprobs the server itself gives these tokens when it reads them in a prompt.
That finds fault with verification alone: neither with filters, nor with the model.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from specjax import __version__
from specjax.audit import statistics as stats
from specjax.audit.client import Server
from specjax.audit.greedy import NEAR, Greedy, compare_greedy, judge_greedy

PROMPTS = (  # what comes next has come before, so that n-grams match too
    "if a == 1:\n    b = 2\nif b == 2:\n    a = 3\nif b == 3:\n    a = 1\nif a == ",
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return ",
    "red, green, blue, red, green, red, blue, green, red, ",
    "import os\nimport sys\nimport re\n\n\ndef main():\n    ",
)
PILOT = 256  # draws that choose which texts to ask the server's own logprobs of
RESHAPING = ("top_p", "top_k", "min_p", "logit_bias", "bad_words", "allowed_token_ids")
RESHAPING += ("presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to ask, and how sure to be.

    Args:
        tokens: how many first tokens make a cell.
        tv: total variation between two laws, on the merged cells, that is to be found ...
        power: ... with this probability, in any one prompt.
        alpha: probability that servers of one law are found to differ (all prompts together).
        cells: at most so many cells after merging.
        batch: completions per request (the body's ``n``).
        near: nats between two tokens' logprobs that rounding may bridge.
    """

    prompts: Sequence[str] = PROMPTS
    temperature: float = 0.7
    tokens: int = 3
    tv: float = 0.05
    power: float = 0.9
    alpha: float = stats.ALPHA
    cells: int = 24
    batch: int = 128
    concurrency: int = 2
    greedy_tokens: int = 64
    near: float = NEAR

    def __post_init__(self):
        if not self.prompts:
            raise ValueError("there is no prompt to audit with")
        if not self.temperature > 0:
            raise ValueError(
                f"temperature must be > 0, got {self.temperature}: at 0 only the greedy text is "
                "compared, which is done in any case"
            )
        for name in ("tv", "power", "alpha"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {getattr(self, name)}")
        for name, least in (("tokens", 1), ("cells", 2), ("batch", 1), ("concurrency", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    def num_draws(self, samples: int) -> int:
        """Return the draws per prompt and server; Holm's strictest level is alpha / prompts."""
        alpha = self.alpha / len(self.prompts)
        return stats.sample_size(self.cells, self.tv, self.power, alpha, samples=samples)


class Finding(NamedTuple):
    """What one prompt's draws say."""

    prompt: str
    draws: int  # per server
    cells: int
    tv: float
    expected_tv: float  # what chance alone makes of it
    p: float
    adjusted_p: float  # for the number of prompts
    differs: bool


class Report(NamedTuple):
    """The verdict on a server."""

    findings: tuple[Finding, ...]
    greedy: tuple[Greedy, ...]
    warnings: tuple[str, ...]
    passed: bool


def collect(
    base: Server,
    reference: Server | None,
    plan: Plan,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Ask the servers everything; return it as JSON values, for ``judge``.

    ``tell`` hears how many texts were drawn, and how many will be.
    """
    servers = [base] if reference is None else [base, reference]
    if reference is None:
        check_alone(base, plan)
    num = plan.num_draws(len(servers))
    pilot = 0 if reference else PILOT
    total, done = (num * len(servers) + pilot) * len(plan.prompts), 0

    def draw(server: Server, prompt: str, number: int) -> Counter:
        def more(count: int) -> None:
            nonlocal done
            done += count
            tell(done, total)

        return server.draw(
            prompt,
            number,
            tokens=plan.tokens,
            temperature=plan.temperature,
            batch=plan.batch,
            concurrency=plan.concurrency,
            tell=more,
        )

    tell(0, total)
    drafted, asked = [server.num_drafts() for server in servers], []
    for prompt in plan.prompts:
        ids = base.encode(prompt)
        if reference is None:
            chosen = [cell for cell, _ in draw(base, prompt, pilot).most_common(plan.cells)]
            law = rows(state_law(base, ids, chosen))
        else:
            if reference.encode(prompt) != ids:
                raise ValueError(f"the servers' tokens of {prompt!r:.60} are not the same")
            law = None
        drawn = [rows(draw(server, prompt, num)) for server in servers]
        asked.append(
            {
                "prompt": prompt,
                "base": drawn[0],
                "reference": drawn[1] if reference else None,
                "law": law,
                "greedy": compare_greedy(base, reference, prompt, ids, plan.greedy_tokens),
            }
        )
    after = [server.num_drafts() for server in servers]
    return {
        "specjax": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "plan": asdict(plan),
        "servers": [
            {
                "url": server.url,
                "model": server.model,
                "version": server.version(),
                "drafts": None if old is None or new is None else new - old,
            }
            for server, old, new in zip(servers, drafted, after, strict=True)
        ],
        "asked": asked,
    }


def check_alone(base: Server, plan: Plan) -> None:
    """Refuse a plan that a server's own logprobs cannot answer."""
    if plan.temperature != 1:
        raise ValueError(
            f"without a reference server the temperature must be 1, got {plan.temperature}: "
            "logprobs are of temperature 1"
        )
    reshaped = [name for name in RESHAPING if name in base.extra]
    if reshaped:
        raise ValueError(f"without a reference server {', '.join(reshaped)} cannot be audited")


def state_law(
    server: Server, prompt: Sequence[int], chosen: Sequence[stats.Cell]
) -> dict[stats.Cell, float]:
    """Return the law of beginnings, as ``statistics.merge_law`` wants it, from logprobs."""
    chances: dict[stats.Cell, float] = {(): 1.0}
    for cell in chosen:
        chance = 1.0
        for length, score in enumerate(server.score(prompt, cell), start=1):
            chance *= math.exp(score.logprob)
            chances[cell[:length]] = chance
    law = dict(chances)
    for cell, chance in chances.items():
        if cell:
            law[cell[:-1]] = max(law[cell[:-1]] - chance, 0.0)
    return law


def judge(collected: dict[str, Any]) -> Report:
    """Judge what was collected: Holm over the prompts' chi-square tests, and the greedy texts."""
    plan, asked = Plan(**collected["plan"]), collected["asked"]
    samples = len(collected["servers"])
    test = stats.p_value_of_samples if samples == 2 else stats.p_value_of_law
    tables = [tabulate(one, plan.cells) for one in asked]
    p_values = [test(table) for table in tables]
    adjusted = stats.holm(p_values)
    findings = tuple(
        Finding(
            prompt=one["prompt"],
            draws=sum(count for _, count in one["base"]),
            cells=len(table),
            tv=stats.total_variation(table),
            expected_tv=stats.expected_variation(table, samples=samples),
            p=p_values[i],
            adjusted_p=adjusted[i],
            differs=adjusted[i] < plan.alpha,
        )
        for i, (one, table) in enumerate(zip(asked, tables, strict=True))
    )
    greedy = tuple(judge_greedy(one["prompt"], one["greedy"], plan.near) for one in asked)
    passed = not any(found.differs for found in findings) and all(one.passed for one in greedy)
    return Report(findings, greedy, tuple(warn(collected["servers"])), passed)


def tabulate(one: dict[str, Any], most: int) -> np.ndarray:
    """Merge the cells of one prompt: [cells, 2] of the base, and of what it is held against."""
    base = counter(one["base"])
    if one["law"] is None:
        return stats.merge_samples(base, counter(one["reference"]), most)
    return stats.merge_law(base, {tuple(cell): chance for cell, chance in one["law"]}, most)


def warn(servers: Sequence[dict[str, Any]]) -> list[str]:
    """Say what makes a verdict worth less."""
    said = []
    if servers[0]["drafts"] == 0:
        said.append(f"{servers[0]['url']} drafted nothing: there was no speculation to audit")
    if servers[0]["drafts"] is None:
        said.append(f"{servers[0]['url']} does not say whether it drafts (/metrics)")
    if len(servers) == 2 and servers[1]["drafts"]:
        said.append(f"the reference {servers[1]['url']} speculates too")
    return said


def rows(values: dict[stats.Cell, Any]) -> list[list[Any]]:
    """Turn a mapping of cells into JSON: [[tokens, value], ...], sorted."""
    return [[list(cell), value] for cell, value in sorted(values.items())]


def counter(pairs: Sequence[Sequence[Any]]) -> Counter:
    """Turn what ``rows`` made of counts back."""
    return Counter({tuple(cell): count for cell, count in pairs})

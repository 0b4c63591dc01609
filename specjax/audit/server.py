"""Test whether a running server samples from the same distribution as without speculation.

``collect`` requests many short completions and one greedy one of each prompt from an
OpenAI-compatible server, and from a reference server that does not speculate; ``judge`` needs no
server, only what was collected. Without a reference, the joint distribution of the first tokens at
temperature 1 is compared with the logprobs that the server itself returns for these tokens as part
of a prompt. That tests verification alone, neither filters nor the model.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from specjax import __version__
from specjax.audit.cells import Cell, merge_expected, merge_samples
from specjax.audit.client import Server
from specjax.audit.greedy import NEAR, Greedy, compare_greedy, judge_greedy
from specjax.audit.server_checks import Check, check_server, chosen
from specjax.theory import goodness

PROMPTS = (  # with repetitions, so that the ngram method drafts too
    "if a == 1:\n    b = 2\nif b == 2:\n    a = 3\nif b == 3:\n    a = 1\nif a == ",
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return ",
    "red, green, blue, red, green, red, blue, green, red, ",
    "import os\nimport sys\nimport re\n\n\ndef main():\n    ",
)
PILOT = 256  # samples that choose the texts whose logprobs are requested
SEEDS = 10**9  # between the first seeds of two prompts, or servers
RESHAPING = ("top_p", "top_k", "min_p", "logit_bias", "bad_words", "allowed_token_ids")
RESHAPING += ("presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens")
RESHAPING += ("structured_outputs", "response_format")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an audit measures, and its error rates.

    Args:
        tokens: number of first tokens that form a cell of the chi-square test.
        tv: the total variation on the merged cells that is to be detected ...
        power: ... with this probability, in any one prompt.
        alpha: probability of a false alarm, over all prompts together.
        cells: the most cells after merging.
        batch: completions per request (the body's ``n``).
        near: nats between two tokens' logprobs that count as a tie.
        looks: how often the verdict is asked for while texts are drawn, which end when it is that
            the server differs. Each look has an equal share of ``alpha``, so that all together
            have it, whatever their dependence (Bonferroni).
        seed: of the first text; every text has its own. None: the servers choose.
    """

    prompts: Sequence[str] = PROMPTS
    temperature: float = 0.7
    tokens: int = 3
    tv: float = 0.05
    power: float = 0.9
    alpha: float = goodness.ALPHA
    cells: int = 24
    batch: int = 128
    concurrency: int = 2
    greedy_tokens: int = 64
    near: float = NEAR
    looks: int = 1
    seed: int | None = None

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
        least_of = {"tokens": 1, "cells": 2, "batch": 1, "concurrency": 1, "looks": 1}
        for name, least in least_of.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    @property
    def level(self) -> float:
        """Return the probability of a false alarm at one look."""
        return self.alpha / self.looks

    def num_draws(self, samples: int) -> int:
        """Return the samples per prompt and server, at Holm's strictest level: one prompt's."""
        alpha = self.level / len(self.prompts)
        return goodness.samples_to_detect_tv(
            self.cells, self.tv, self.power, alpha, samples=samples
        )


class Finding(NamedTuple):
    """The test result on one prompt's samples."""

    prompt: str
    draws: int  # per server
    cells: int
    tv: float
    expected_tv: float  # mean total variation of samples from equal distributions
    p: float
    adjusted_p: float  # for the number of prompts
    differs: bool


class Report(NamedTuple):
    """The verdict on a server."""

    findings: tuple[Finding, ...]
    greedy: tuple[Greedy, ...]
    checks: tuple[Check, ...]
    warnings: tuple[str, ...]
    passed: bool


def collect(
    base: Server,
    reference: Server | None,
    plan: Plan,
    progress: Callable[[int, int], None] = lambda done, total: None,
    checks: Sequence[str] = (),
) -> dict[str, Any]:
    """Return everything that ``judge`` needs from the servers, as JSON values.

    ``progress`` is called with the number of texts sampled so far and the total. ``checks`` are
    names of ``server_checks.CHECKS``, or "all".
    """
    checks = chosen(checks)
    servers = [base] if reference is None else [base, reference]
    if reference is None:
        check_alone(base, plan)
    num = plan.num_draws(len(servers))
    pilot = 0 if reference else PILOT
    total, done = (num * len(servers) + pilot) * len(plan.prompts), 0

    def draw(which: int, number: int, count: int, first: int) -> Counter:
        def more(count: int) -> None:
            nonlocal done
            done += count
            progress(done, total)

        seed = plan.seed
        if seed is not None:  # no two texts share one, or the servers' noise might be the same
            seed += (which * len(plan.prompts) + number) * SEEDS + first
        return servers[which].draw(
            plan.prompts[number],
            count,
            tokens=plan.tokens,
            temperature=plan.temperature,
            batch=plan.batch,
            concurrency=plan.concurrency,
            progress=more,
            seed=seed,
        )

    progress(0, total)
    drafted = [server.num_drafts() for server in servers]
    asked: list[dict[str, Any]] = []
    for number, prompt in enumerate(plan.prompts):
        ids, expected = base.encode(prompt), None
        if reference is None:
            found = draw(0, number, pilot, SEEDS // 2).most_common(plan.cells)
            expected = rows(expected_cells(base, ids, [cell for cell, _ in found]))
        elif reference.encode(prompt) != ids:
            raise ValueError(f"the servers' tokens of {prompt!r:.60} are not the same")
        greedy = compare_greedy(base, reference, prompt, ids, plan.greedy_tokens)
        asked.append({"prompt": prompt, "law": expected, "greedy": greedy})
    counts = [[Counter() for _ in servers] for _ in plan.prompts]
    ends = [num * look // plan.looks for look in range(1, plan.looks + 1)]
    for look, (begin, end) in enumerate(itertools.pairwise([0, *ends]), start=1):
        for number, (one, drawn) in enumerate(zip(asked, counts, strict=True)):
            for which, count in enumerate(drawn):
                count.update(draw(which, number, end - begin, begin))
            one["base"] = rows(drawn[0])
            one["reference"] = rows(drawn[1]) if reference else None
        if look < plan.looks and any(
            one.differs for one in judge_prompts(plan, asked, len(servers))
        ):
            break
    after = [server.num_drafts() for server in servers]
    found = check_server(base, plan.prompts, checks)
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
        "looks": look,
        "asked": asked,
        "checks": [check._asdict() for check in found],
    }


def check_alone(base: Server, plan: Plan) -> None:
    """Raise ValueError for a plan that needs a reference server."""
    if plan.temperature != 1:
        raise ValueError(
            f"without a reference server the temperature must be 1, got {plan.temperature}: "
            "logprobs are of temperature 1"
        )
    reshaped = [name for name in RESHAPING if name in base.extra]
    if reshaped:
        raise ValueError(f"without a reference server {', '.join(reshaped)} cannot be audited")


def expected_cells(
    server: Server, prompt: Sequence[int], chosen: Sequence[Cell]
) -> dict[Cell, float]:
    """Return the ``probs`` of ``merge_expected`` for the chosen texts, from a server's logprobs."""
    chances: dict[Cell, float] = {(): 1.0}
    for cell in chosen:
        chance = 1.0
        for length, score in enumerate(server.score(prompt, cell), start=1):
            chance *= math.exp(score.logprob)
            chances[cell[:length]] = chance
    expected = dict(chances)
    for cell, chance in chances.items():
        if cell:
            expected[cell[:-1]] = max(expected[cell[:-1]] - chance, 0.0)
    return expected


def judge(collected: dict[str, Any]) -> Report:
    """Return the verdict: Holm over the prompts' chi-square tests, greedy texts, further checks."""
    plan, asked = Plan(**collected["plan"]), collected["asked"]
    findings = judge_prompts(plan, asked, len(collected["servers"]))
    greedy = tuple(judge_greedy(one["prompt"], one["greedy"], plan.near) for one in asked)
    checks = tuple(Check(**one) for one in collected.get("checks", ()))
    passed = not any(found.differs for found in findings)
    passed &= all(one.passed for one in (*greedy, *checks))
    return Report(findings, greedy, checks, tuple(warn(collected["servers"])), passed)


def judge_prompts(plan: Plan, asked: Sequence[dict[str, Any]], samples: int) -> tuple[Finding, ...]:
    """Return the prompts' chi-square tests, at the level of one look.

    ``samples``: 1, against the expected law, or 2, against the reference's texts.
    """
    chi_square = goodness.homogeneity_p_value if samples == 2 else goodness.expected_p_value
    tables = [tabulate(one, plan.cells) for one in asked]
    p_values = [chi_square(table) for table in tables]
    adjusted = goodness.holm(p_values)
    return tuple(
        Finding(
            prompt=one["prompt"],
            draws=sum(count for _, count in one["base"]),
            cells=len(table),
            tv=goodness.total_variation(table),
            expected_tv=goodness.expected_variation(table, samples=samples),
            p=p_values[i],
            adjusted_p=adjusted[i],
            differs=adjusted[i] < plan.level,
        )
        for i, (one, table) in enumerate(zip(asked, tables, strict=True))
    )


def tabulate(one: dict[str, Any], most: int) -> np.ndarray:
    """Return one prompt's merged cells [cells, 2]: the base's, and the reference's or expected."""
    base = counter(one["base"])
    if one["law"] is None:
        return merge_samples(base, counter(one["reference"]), most)
    return merge_expected(base, {tuple(cell): chance for cell, chance in one["law"]}, most)


def warn(servers: Sequence[dict[str, Any]]) -> list[str]:
    """Return the warnings that limit what the verdict means."""
    warnings = []
    if servers[0]["drafts"] == 0:
        warnings.append(f"{servers[0]['url']} drafted nothing: there was no speculation to audit")
    if servers[0]["drafts"] is None:
        warnings.append(f"{servers[0]['url']} does not say whether it drafts (/metrics)")
    if len(servers) == 2 and servers[1]["drafts"]:
        warnings.append(f"the reference {servers[1]['url']} speculates too")
    return warnings


def rows(values: dict[Cell, Any]) -> list[list[Any]]:
    """Return a mapping of cells as a JSON list [[tokens, value], ...], sorted."""
    return [[list(cell), value] for cell, value in sorted(values.items())]


def counter(pairs: Sequence[Sequence[Any]]) -> Counter:
    """Return the counts that ``rows`` has made a list of."""
    return Counter({tuple(cell): count for cell, count in pairs})

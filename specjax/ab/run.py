"""Run a comparison: arms take turns on every block of prompts, in a random order per block.

The log is written unit by unit, so an interrupted run resumes when the same command is given
again.
"""

import asyncio
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specjax import __version__
from specjax.ab import requests
from specjax.ab.arms import Arm, Ask, Spec
from specjax.ab.compare import by_load, compare
from specjax.ab.counters import difference
from specjax.ab.measures import measure
from specjax.ab.questions import Dataset, Question
from specjax.ab.records import Log, Unit, append, mend, read_log
from specjax.ab.server_arm import ServerArm
from specjax.engine.text.tokenizer import Tokenizer
from specjax.host.machine import commit, processor
from specjax.measure.objectives import check_objectives, meets

PAUSE = 0.2  # s between turns: the previous arm's threads may still be spinning

Echo = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The loads, repetitions and objectives of a comparison.

    Args:
        concurrency: loads, requests at a time; () with a ``rate``.
        rate: requests per second of an open loop.
        block: prompts per turn of an arm; 0: all of them.
        rounds: how often each prompt is sent.
        width: stop once the TPOT gain's interval is this narrow (half of it, relative to the
            gain); 0: send all blocks.
        slo: objectives [s] by name, of ``measure.objectives``.
        most: search for the highest concurrency, up to this, that meets ``slo``; 0: no search.
    """

    concurrency: tuple[int, ...] = (1,)
    rate: float = 0.0
    block: int = 0
    rounds: int = 1
    width: float = 0.0
    slo: Mapping[str, float] | None = None
    most: int = 0
    seed: int = 0

    def __post_init__(self):
        if self.rate < 0 or (self.rate == 0 and not self.concurrency):
            raise ValueError(f"rate must be positive requests per second, got {self.rate}")
        for value in self.concurrency:
            if value < 1:
                raise ValueError(f"concurrency must be at least 1, got {value}")
        for name, least in (("block", 0), ("rounds", 1), ("width", 0), ("most", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        check_objectives(self.slo or {})
        if self.most and not self.slo:
            raise ValueError("a search needs an objective: --slo tpot=50ms")

    def levels(self) -> tuple[int, ...]:
        """Return the loads of a plan without a search; 0 stands for an open loop."""
        return (0,) if self.rate else self.concurrency


class Setting(NamedTuple):
    """The arms, datasets and request options of a run."""

    arms: Sequence[Arm]
    datasets: Sequence[Dataset]
    ask: Ask
    tokenizer: Tokenizer | None  # to count the texts' tokens independently


def describe(
    specs: Sequence[Spec], setting: Setting, plan: Plan, command: str, shard: str | None = None
) -> dict[str, Any]:
    """Return the manifest: the options that a resumed run must share, versions and hardware."""
    return {
        "wanted": wanted(specs, setting.datasets, setting.ask, plan, shard),
        "arms": [
            {"label": arm.spec.label, "kind": arm.spec.kind, "config": arm.spec.config}
            | {"arguments": list(arm.spec.arguments)}
            | arm.about()
            for arm in setting.arms
        ],
        "ask": setting.ask._asdict(),
        "specjax": f"{__version__}, {commit()}",
        "versions": {
            name: metadata.version(name) for name in ("jax", "jaxlib", "numpy", "aiohttp")
        },
        "python": platform.python_version(),
        "host": f"{processor()}, {len(cores())} cores, {platform.platform()}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
    }


def wanted(
    specs: Sequence[Spec],
    datasets: Sequence[Dataset],
    ask: Ask,
    plan: Plan,
    shard: str | None = None,
) -> dict[str, Any]:
    """Return the options that identify a run, as JSON values."""
    value = {
        "arms": [spec._asdict() for spec in specs],
        "datasets": [
            {"name": one.name, "prompts": len(one.questions), "sha256": one.sha256}
            for one in datasets
        ],
        "ask": ask._asdict(),
        "plan": asdict(plan),
    }
    if shard is not None:
        value["shard"] = shard
    return json.loads(json.dumps(value))


def cores() -> Sequence[int]:
    """Return the CPU cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(1)


def check_log(path: Path, expected: Mapping[str, Any]) -> Log | None:
    """Return the log of an interrupted run; None if there is none.

    Raises ValueError if it belongs to another comparison.
    """
    if not path.exists():
        return None
    mend(path)
    log = read_log(path)
    if log.manifest.get("wanted") != expected:
        old = log.manifest.get("wanted") or {}
        parts = [name for name in expected if old.get(name) != expected[name]]
        raise ValueError(
            f"{path} is of another comparison ({', '.join(parts)} differ): give another --out, "
            "or the same command to go on."
        )
    return log


def run(path: Path, log: Log, setting: Setting, plan: Plan, echo: Echo, show: Echo) -> Log:
    """Measure the units that the log lacks and return the complete log.

    ``echo`` prints lines, ``show`` displays the current unit. Raises ConnectionError when an arm
    can no longer be reached; what was measured stays in the log.
    """
    return asyncio.run(Run(path, log, setting, plan, echo, show).everything())


class Run:
    """The state of a run: the log's units, and which arms are warmed up."""

    def __init__(self, path, log: Log, setting: Setting, plan: Plan, echo: Echo, show: Echo):
        self.path, self.setting, self.plan = path, setting, plan
        self.echo, self.show = echo, show
        self.manifest, self.units = log.manifest, list(log.units)
        self.divergences = log.divergences
        self.warm: set[tuple[str, int]] = set()

    async def everything(self) -> Log:
        """Measure every dataset at every load and return the log."""
        try:
            for dataset in self.setting.datasets:
                await self.loads(dataset)
        finally:
            for arm in self.setting.arms:
                await arm.close()
        return Log(self.manifest, tuple(self.units), self.divergences)

    async def loads(self, dataset: Dataset) -> None:
        """Measure one dataset at every load, or at the loads that a search visits."""
        if not self.plan.most:
            for level in self.plan.levels():
                await self.measure(dataset, level)
            return
        for arm in self.setting.arms:
            best = await self.search(dataset, arm.spec.label)
            self.echo(f"{dataset.name}: {arm.spec.label} meets the objective up to {best}")

    async def search(self, dataset: Dataset, label: str) -> int:
        """Return the highest concurrency at which an arm's means meet the objectives.

        Doubles until one fails, then bisects; no load is measured twice.
        """
        good, bad = 0, 0
        while good < self.plan.most and bad - good != 1:
            level = (good + bad) // 2 if bad else min(max(2 * good, 1), self.plan.most)
            await self.measure(dataset, level)
            if self.meets(dataset, level, label):
                good = level
            else:
                bad = level
        return good

    def meets(self, dataset: Dataset, level: int, label: str) -> bool:
        """Return whether an arm's mean times meet the objectives at a load."""
        found = measure(by_load(self.units)[dataset.name, level][label])
        tpot = found.tpot.mean if found.tpot else 0.0
        means = {"ttft": found.ttft.mean, "tpot": tpot, "e2el": found.e2el.mean}
        return meets(means, self.plan.slo or {})

    async def measure(self, dataset: Dataset, level: int) -> None:
        """Measure every block of a dataset at one load, the arms taking turns."""
        blocks = in_blocks(dataset.questions, self.plan)
        for number, questions in enumerate(blocks):
            draw = np.random.default_rng([self.plan.seed, level, number])
            for index in draw.permutation(len(self.setting.arms)):
                arm = self.setting.arms[index]
                key = arm.spec.label, dataset.name, level, number
                if key in {(u.arm, u.dataset, u.concurrency, u.block) for u in self.units}:
                    continue
                what = f"{dataset.name} {number + 1}/{len(blocks)}, load {level or 'open'}"
                self.show(f"{what}: {arm.spec.label}")
                await self.turn(arm, dataset, level, number, questions)
            if self.narrow(dataset, level):
                self.echo(f"{dataset.name}, load {level}: narrow enough after block {number + 1}")
                break

    async def turn(self, arm: Arm, dataset: Dataset, level: int, block: int, questions) -> None:
        """Measure one unit and append it to the log."""
        chat, plan = self.setting.ask.chat, self.plan
        if (arm.spec.label, level) not in self.warm:
            await self.warm_up(arm, level)
        before = await arm.counters()
        options = {
            "chat": chat,
            "salt": f"{arm.spec.label}-{level}-{block}",  # no prefix cache across units
            "tokenizer": self.setting.tokenizer,
        }
        if level:
            seconds, records = await requests.closed_loop(arm, questions, level, **options)
        else:
            seed = plan.seed + block
            seconds, records = await requests.open_loop(arm, questions, plan.rate, seed, **options)
        if all(one.error == "unreachable" for one in records):
            raise ConnectionError(
                f"arm {arm.spec.label} can no longer be reached; what was measured is in "
                f"{self.path}: start it again and give the same command to go on."
            )
        counted = difference(await arm.counters(), before)
        counters = None if counted is None else asdict(counted)
        unit = Unit(arm.spec.label, dataset.name, level, block, seconds, tuple(records), counters)
        append(self.path, unit)
        self.units.append(unit)
        await asyncio.sleep(PAUSE)

    async def warm_up(self, arm: Arm, level: int) -> None:
        """Send warm-up requests, and detect whether the server returns token ids.

        Raises ConnectionError if all of them fail.
        """
        size = level or 4
        records = await requests.warm_up(arm, size, chat=self.setting.ask.chat)
        refused = all((one.error or "").startswith("HTTP 4") for one in records)
        if refused and isinstance(arm, ServerArm) and arm.returns_ids:
            arm.returns_ids = False  # what OpenAI's own API does with fields it does not know
            records = await requests.warm_up(arm, size, chat=self.setting.ask.chat)
        if all(one.error is not None for one in records):
            raise ConnectionError(f"arm {arm.spec.label} fails: {records[0].error}")
        self.warm.add((arm.spec.label, level))

    def narrow(self, dataset: Dataset, level: int) -> bool:
        """Return whether every arm's TPOT gain has an interval narrower than ``plan.width``."""
        if not self.plan.width or len(self.setting.arms) < 2:
            return False
        arms = by_load(self.units)[dataset.name, level]
        labels = [arm.spec.label for arm in self.setting.arms]
        measured = {label: (measure(arms[label]), arms[label]) for label in labels}
        for label in labels[1:]:
            gain = compare(measured[labels[0]], measured[label], greedy=False).tpot_gain
            if gain is None:
                return False
            half = float(gain.high - gain.low) / 2
            if not half <= self.plan.width * float(gain.estimate):
                return False
        return True


def in_blocks(questions: Sequence[Question], plan: Plan) -> list[tuple[Question, ...]]:
    """Return the questions in blocks, repeated ``rounds`` times."""
    size = plan.block or len(questions)
    cut = [tuple(questions[i : i + size]) for i in range(0, len(questions), size)]
    return cut * plan.rounds

"""Measure the bundled model on real prompts: plain decoding against every drafter that ships."""

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from specjax.bench.plan import DRAFT_MODEL, LEARNED, NGRAM, SUFFIX
from specjax.bench.prompts import KINDS, Chosen, choose
from specjax.core.metrics import SpecDecodeCounters
from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.request_state import RequestState
from specjax.viz.methods import Method

SEED = 7
GREEDY, WARM = 0.0, 0.8


class Arm(NamedTuple):
    """A drafter, a temperature, and the name of the arm it is compared with."""

    name: str
    temperature: float
    config: dict[str, Any] | None
    plain: str


class Run(NamedTuple):
    """The completions of all prompts by one arm, and the number of rounds they took."""

    token_ids: tuple[tuple[int, ...], ...]
    num_rounds: int  # decode rounds: without the first token of each prompt
    counters: SpecDecodeCounters


class Setting(NamedTuple):
    """The arms, each with its model and sampling parameters, and the prompts."""

    arms: tuple[Arm, ...]
    llms: tuple[LLM, ...]
    params: tuple[SamplingParams, ...]
    chosen: tuple[Chosen, ...]  # per kind of prompts

    def prompts(self) -> list[list[str]]:
        """Return the texts of the prompts, per kind."""
        return [[one.prompt.text for one in each.completions] for each in self.chosen]

    def plain(self) -> list[int]:
        """Return for each arm the index of the arm it is compared with."""
        names = [arm.name for arm in self.arms]
        return [names.index(arm.plain) for arm in self.arms]


class Result(NamedTuple):
    """An arm's completions and numbers, per kind of prompts."""

    runs: list[Run]
    methods: list[Method]
    same: bool  # whether it wrote the same texts as the arm it is compared with


COLD, HOT = "plain", f"plain, T={WARM}"
PAIR = {**DRAFT_MODEL, "model": "bundled:draft"}
ARMS = (
    Arm(COLD, GREEDY, None, COLD),
    Arm("ngram", GREEDY, NGRAM, COLD),
    Arm("suffix", GREEDY, SUFFIX, COLD),
    Arm("draft_model", GREEDY, PAIR, COLD),
    *(Arm(name, GREEDY, config, COLD) for name, config in LEARNED.items()),
    Arm(HOT, WARM, None, HOT),
    Arm(f"coupled, T={WARM}", WARM, {**PAIR, "draft_sample_method": "coupled"}, HOT),
)


def pick(methods: Sequence[str]) -> tuple[Arm, ...]:
    """Return the arms of these methods and those they are compared with; all if none is named.

    Raises:
        ValueError: a method is unknown.
    """
    by_method = {arm.name.split(",")[0]: arm for arm in ARMS if arm.name != arm.plain}
    for name in methods:
        if name not in by_method:
            raise ValueError(f"unknown method {name!r}: choose from {', '.join(by_method)}")
    wanted = [by_method[name] for name in methods or by_method]
    names = {name for arm in wanted for name in (arm.name, arm.plain)}
    return tuple(arm for arm in ARMS if arm.name in names)


def load(arm: Arm, loaded: dict[str, LLM]) -> LLM:
    """Return the bundled model with an arm's drafter, from ``loaded`` if it is there."""
    key = str(arm.config)
    if key not in loaded:
        loaded[key] = LLM("bundled", speculative_config=arm.config, max_num_seqs=1)
    return loaded[key]


def sampling(arm: Arm, num_tokens: int) -> SamplingParams:
    """Return an arm's sampling parameters."""
    return SamplingParams(temperature=arm.temperature, seed=SEED, max_tokens=num_tokens)


def prepare(arms: Sequence[Arm], num_tokens: int, loaded: dict[str, LLM]) -> Setting:
    """Load the models that are not ``loaded`` yet, and choose the prompts.

    Raises:
        ValueError: too few completions are worth measuring on.
    """
    plain = load(ARMS[0], loaded)
    return Setting(
        arms=tuple(arms),
        llms=tuple(load(arm, loaded) for arm in arms),
        params=tuple(sampling(arm, num_tokens) for arm in arms),
        chosen=tuple(choose(plain, num_tokens, kind) for kind in KINDS),
    )


def measure(setting: Setting, reps: int) -> Iterator[list[Result]]:
    """Time the arms in turns, ``reps`` times; yields the results so far after every arm's turn.

    In the first turn an arm runs once before it is timed, which compiles its programs, so that the
    results grow by one; an arm comes after the one it is compared with.
    """
    texts, plain = setting.prompts(), setting.plain()
    runs: list[list[Run]] = []
    seconds: list[list[list[float]]] = []
    for turn in range(reps):
        for i, (llm, params) in enumerate(zip(setting.llms, setting.params, strict=True)):
            if turn == 0:
                runs.append([complete_all(llm, prompts, params) for prompts in texts])
                seconds.append([[] for _ in texts])
            for times, prompts in zip(seconds[i], texts, strict=True):
                times.append(clock(llm, prompts, params))
            yield [
                summarize_all(arm, runs[j], seconds[j], runs[base], seconds[base])
                for j, (arm, base, _) in enumerate(zip(setting.arms, plain, runs, strict=False))
            ]


def summarize_all(
    arm: Arm,
    runs: list[Run],
    seconds: list[list[float]],
    plain_runs: list[Run],
    plain_seconds: list[list[float]],
) -> Result:
    """Return an arm's result on every kind of prompts, from the turns that both arms have had."""
    methods = [
        summarize(arm, run, times[: len(theirs)], plain, theirs[: len(times)])
        for run, times, plain, theirs in zip(runs, seconds, plain_runs, plain_seconds, strict=True)
    ]
    same = all(a.token_ids == b.token_ids for a, b in zip(runs, plain_runs, strict=True))
    return Result(runs, methods, same)


def complete_all(llm: LLM, prompts: Sequence[str], params: SamplingParams) -> Run:
    """Return the completions of every prompt, one at a time, with the number of rounds."""
    token_ids, num_rounds = [], 0
    counters = SpecDecodeCounters.zeros(llm.core.depth)
    for prompt in prompts:
        request_state: RequestState | None = None
        for latest, _ in llm.stream(prompt, params):
            request_state = latest
        assert request_state is not None
        rounds = request_state.rounds[1:]
        token_ids.append(tuple(request_state.tokens))
        num_rounds += len(rounds)
        counters = counters.add(
            [len(one.drafted) for one in rounds], [one.num_accepted for one in rounds]
        )
    return Run(tuple(token_ids), num_rounds, counters)


def clock(llm: LLM, prompts: Sequence[str], params: SamplingParams) -> float:
    """Return the seconds that all prompts take, prefill included."""
    start = time.perf_counter()
    for prompt in prompts:
        llm.generate(prompt, params, use_tqdm=False)  # a bar takes time
    return time.perf_counter() - start


def summarize(
    arm: Arm, run: Run, seconds: Sequence[float], plain: Run, plain_seconds: Sequence[float]
) -> Method:
    """Return an arm's row: its counts, and its speed against plain decoding.

    The speedup is the median of the ratios turn by turn, which other load on the machine disturbs
    less than the times themselves; tokens per second are plain decoding's times the speedup.
    """
    plain_tokens = sum(map(len, plain.token_ids))
    num_tokens = sum(map(len, run.token_ids))
    drafted = num_tokens - len(run.token_ids)  # by rounds, not by prefill
    ratios = [
        (num_tokens / mine) / (plain_tokens / theirs)
        for mine, theirs in zip(seconds, plain_seconds, strict=True)
    ]
    speedup = statistics.median(ratios)
    return Method(
        name=arm.name,
        tokens_per_second=plain_tokens / statistics.median(plain_seconds) * speedup,
        speedup=speedup,
        tokens_per_round=drafted / max(run.num_rounds, 1),
        acceptance=run.counters.acceptance_rate,
        spread=None if arm.name == arm.plain else (min(ratios), max(ratios)),
    )

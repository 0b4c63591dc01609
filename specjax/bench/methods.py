"""``specjax bench methods``: every method on prompts of both kinds, and theory's prediction.

Methods take turns on the same prompts, in one process. The measured speedup is that of wall-clock
time, prefill included, and once more without (TPOT, as vLLM calls the time per output token after
the first). The predicted one comes from round costs measured separately, and for each half of the
prompts from the tokens per round on the other half. The halves have prompts of equal difficulty
(``prompts.halves``): split in file order, they differed by up to 12% in a method's rounds.
"""

import dataclasses
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from specjax.bench.arms import in_groups
from specjax.bench.costs import Costs, round_costs
from specjax.bench.plan import DRAFT_MODEL, LEARNED, NGRAM, SUFFIX, trained_alike, with_depth
from specjax.bench.prompts import KINDS, MOST_PROMPTS, choose, halves, sureness
from specjax.bench.report import MOST_LOAD, busy, num_cores
from specjax.bench.rounds import gained, num_rounds
from specjax.core.metrics import SpecDecodeCounters, distinct_bigrams
from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.outputs import RequestOutput
from specjax.engine.plan import slots_of
from specjax.host.files import write_json
from specjax.host.markdown import around_section, picture, replace_section, table
from specjax.measure.turns import take_turns, tell
from specjax.train.alike import describe, read_curves
from specjax.viz.figure import save_figure
from specjax.viz.learning_curves import learning_curves

Prompts = Sequence[list[int]]  # token ids

PLAIN, FLOAT32 = "plain", "float32"
DRAWS = 10_000  # batches of a prediction
COST_REPS = 9  # after the turns of each batch size; the mean over the run counts
SECTION, ALIKE = "methods", "methods-alike"  # of a README: heads that ship, and heads given
WIDTH = 165  # characters of the table, where there is no terminal
METHODS: dict[str, dict[str, Any] | None] = {
    PLAIN: None,
    "ngram": NGRAM,
    "suffix": SUFFIX,
    "draft_model": {**DRAFT_MODEL, "model": "bundled:draft"},
    **LEARNED,
}


class Half(NamedTuple):
    """A method's results on one half of the prompts, or on both."""

    tokens: list[list[int]]
    seconds: float
    first: float  # seconds to all first tokens
    computing: float  # seconds of the compiled rounds
    rounds: list[int]  # of each prompt, without its first token, which prefill brings
    drafted: list[int]  # tokens of each draft
    accepted: list[int]
    num_prompts: int  # without those that fill the last batch again

    @property
    def decoding(self) -> float:
        """Return the seconds after the first tokens."""
        return self.seconds - self.first

    @property
    def tokens_per_round(self) -> float:
        """Return emitted tokens / rounds, without first tokens."""
        return gained(self.tokens, self.rounds)

    def shares(self, depth: int, most: int) -> tuple[float, float]:
        """Return which shares of K = ``depth`` tokens a round has drafted and accepted.

        The accepted ones are of the request that accepts most of ``most`` requests.
        """
        if not self.drafted:
            return 1.0, 0.0
        drawn = np.random.default_rng(0).choice(self.accepted, (DRAWS, most))
        return statistics.fmean(self.drafted) / depth, float(drawn.max(axis=1).mean()) / depth


class Turn(NamedTuple):
    """One turn of a method, compared with other methods' since the machine's speed drifts."""

    halves: tuple[Half, Half]
    costs: dict[int, Costs]  # of the whole run, by the number of slots, the batch size last
    depth: int  # K

    @property
    def whole(self) -> Half:
        """Return the results on all prompts."""
        one, other = self.halves
        return Half(
            one.tokens + other.tokens,
            one.seconds + other.seconds,
            one.first + other.first,
            one.computing + other.computing,
            one.rounds + other.rounds,
            one.drafted + other.drafted,
            one.accepted + other.accepted,
            one.num_prompts + other.num_prompts,
        )


def bench_methods(
    json_file: Path | None,
    *,
    names: Sequence[str] | None = None,
    batches: Sequence[int] = (1,),
    temperatures: Sequence[float] = (0.0,),
    dtype: str = FLOAT32,
    num_speculative_tokens: int | None = None,
    num_tokens: int = 64,
    reps: int = 5,
    readme: Path | None = None,
    heads: Path | None = None,
    image: Path | None = None,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Return, print and write the rows of the benchmark.

    ``readme`` is a Markdown file in whose section "methods" to put them. ``heads`` is a folder of
    ``specjax train heads``, whose heads take the place of those that ship; their section is
    "methods-alike", and says how they were trained, with their learning curves in ``image``.
    Another ``dtype`` than float32 has a section of its own, as "methods-bfloat16", where plain
    decoding in float32 takes part, since it may be the faster one. ``num_speculative_tokens`` takes
    the place of each method's own K.
    Raises ValueError for an unknown method, for heads that were not trained alike, an image
    without heads, or if too few completions are worth measuring on.
    """
    methods, section, notes = METHODS, SECTION, []
    if image is not None and heads is None:
        raise ValueError("the image shows the learning curves of heads: name their folder")
    if heads is not None:
        kept = {name: own for name, own in METHODS.items() if name not in LEARNED}
        methods, section = {**kept, **trained_alike(heads)}, ALIKE
        notes = ["", describe(heads)]
        if image is not None:
            save_figure(learning_curves(read_curves(heads))[1][0], image)
    names = tuple(methods) if names is None else names
    section = section if dtype == FLOAT32 else f"{section}-{dtype}"
    console = console or Console(highlight=False)
    if readme is not None:
        around_section(readme, section)
    unknown = [name for name in names if name not in methods]
    if unknown:
        raise ValueError(f"unknown method {unknown[0]!r}: use some of {', '.join(methods)}")
    load = busy()
    if load > MOST_LOAD:
        console.print(f"other processes keep {load:.1f} cores busy: these numbers will move")
    configs = {name: methods[name] for name in dict.fromkeys((PLAIN, *names))}
    if num_speculative_tokens is not None:
        configs = {
            name: own and with_depth(own, num_speculative_tokens) for name, own in configs.items()
        }
    llms = {
        name: LLM("bundled", dtype=dtype, speculative_config=own) for name, own in configs.items()
    }
    if dtype != FLOAT32:
        llms[f"{PLAIN} {FLOAT32}"] = LLM("bundled", dtype=FLOAT32)
    plain = llms[PLAIN]
    costs: dict[str, dict[int, list[Costs]]] = {name: {} for name in llms}
    done, on = [], []
    for kind in KINDS:
        chosen = choose(plain, num_tokens, kind, 2 * MOST_PROMPTS)
        dealt = halves(chosen.completions, [sureness(plain, one) for one in chosen.completions])
        prompts = [[one.prompt.tokens for one in half] for half in dealt]
        on.append(str(chosen))
        for batch, temperature in product(batches, temperatures):
            what = f"{kind} prompts, batch {batch}, T = {temperature:g}"
            started = tell(console.print, what, reps)
            params = SamplingParams(
                temperature=temperature, max_tokens=num_tokens, ignore_eos=True, seed=0
            )
            rng = np.random.default_rng(0)
            turn = partial(one_turn, llms, prompts, batch, params, rng)
            (turns,) = take_turns([turn], reps, warm_up=1, started=started)
            done.append(({"prompts": kind, "batch": batch, "temperature": temperature}, turns))
            console.print(f"{what}: round costs ...")
            for name, llm in llms.items():
                jax.clear_caches()  # a process has 65,530 mappings, a program some 350
                for size in slots(llm, batch):
                    costs[name].setdefault(size, []).append(round_costs(llm, size, COST_REPS))
            jax.clear_caches()
    rows: list[dict[str, Any]] = []
    for measured, turns in done:
        counted = {}
        for name, llm in llms.items():
            mean = mean_costs(costs[name], slots(llm, measured["batch"]))
            counted[name] = [Turn(turn[name], mean, llm.core.depth) for turn in turns]
        rows += [measured | row for row in make_rows(counted, num_tokens)]
    print_rows(rows, console)
    for line in on:
        console.print(line, soft_wrap=True, markup=False)
    if json_file is not None:
        write_json(json_file, rows)
        console.print(f"wrote {json_file}", soft_wrap=True, markup=False)
    if readme is not None:
        if image is not None:
            notes += picture("held-out acceptance while the heads are trained", image, readme)
        measured = (
            f"{'; '.join(on)}; {num_tokens} new tokens each, {dtype}, {num_cores()} threads, "
            f"medians of {reps} interleaved runs; reading the prompt is part of the speedup, "
            "and not of TPOT's (vLLM's time per output token, without the first)."
        )
        lines = [*table(HEADINGS, map(cells, rows)), "", measured, *notes]
        replace_section(readme, section, lines)
    return rows


def complete(
    llms: Mapping[str, LLM], prompts: Prompts, batch: int, params: SamplingParams
) -> dict[str, Half]:
    """Return every method's results on one half of the prompts; the last batch is filled from it.

    The methods take turns batch by batch: over all prompts of one method, the machine's speed
    changed by more than the differences between methods.
    """
    one_token = dataclasses.replace(params, max_tokens=1)
    outputs: dict[str, list[RequestOutput]] = {name: [] for name in llms}
    seconds, first, computing = (dict.fromkeys(llms, 0.0) for _ in range(3))
    for prompts_of_group in in_groups(prompts, batch):
        group = [{"prompt_token_ids": prompt} for prompt in prompts_of_group]
        for name, llm in llms.items():
            start = time.perf_counter()
            with timed_rounds(llm) as spent:
                outputs[name] += llm.generate(group, params, use_tqdm=False)
            end = time.perf_counter()
            computing[name] += sum(spent)
            llm.generate(group, one_token, use_tqdm=False)
            seconds[name] += end - start
            first[name] += time.perf_counter() - end
    halves = {}
    for name, done in outputs.items():
        drafted: list[int] = []
        accepted: list[int] = []
        for metrics in (one.outputs[0].spec_decode_metrics for one in done):
            if metrics is not None:
                drafted += metrics.per_step_drafted
                accepted += metrics.per_step_accepted
        tokens = [list(one.outputs[0].token_ids) for one in done]
        rounds = [num_rounds(one) for one in done]
        times = seconds[name], first[name], computing[name]
        halves[name] = Half(tokens, *times, rounds, drafted, accepted, len(prompts))
    return halves


@contextmanager
def timed_rounds(llm: LLM) -> Iterator[list[float]]:
    """Yield a list that gets the seconds of each call of the compiled rounds."""
    driver, spent = llm.core.driver, list[float]()

    def generate(*inputs):
        start = time.perf_counter()
        results = jax.block_until_ready(driver.generate(*inputs))
        spent.append(time.perf_counter() - start)
        return results

    llm.core.driver = driver._replace(generate=generate)
    try:
        yield spent
    finally:
        llm.core.driver = driver


def one_turn(
    llms: Mapping[str, LLM],
    halves: Sequence[Prompts],
    batch: int,
    params: SamplingParams,
    rng: np.random.Generator,
) -> dict[str, tuple[Half, Half]]:
    """Return every method's results in one turn, the methods interleaved by batch.

    Each turn has other batches: with a dozen prompts, those that happen to share one decide when
    it ends.
    """
    dealt = [[half[i] for i in rng.permutation(len(half))] for half in halves]
    one, other = (complete(llms, half, batch, params) for half in dealt)
    return {name: (one[name], other[name]) for name in llms}


def slots(llm: LLM, batch: int) -> tuple[int, ...]:
    """Return the numbers of slots that a batch has until it ends; plain requests end together."""
    return slots_of(batch) if llm.core.depth else (batch,)


def mean_costs(costs: Mapping[int, Sequence[Costs]], sizes: Sequence[int]) -> dict[int, Costs]:
    """Return the mean of what was measured of each size.

    Costs are measured within seconds, completions within minutes. Under other load on memory a
    plain step takes 1.6 times as long, a round less: with one moment's cost ratio the median
    prediction of five turns was up to 17% off for n-gram.
    """
    return {size: Costs(*map(statistics.fmean, zip(*costs[size], strict=True))) for size in sizes}


def predict(plain: Turn, turn: Turn, length: int) -> float:
    """Return a method's speedup, for each half predicted from the other one and measured costs."""
    batch = max(turn.costs)
    alone = drafted = 0.0
    for known, judged in ((0, 1), (1, 0)):
        number, others = (len(plain.halves[i].tokens) / batch for i in (known, judged))
        alone += others * plain.halves[known].seconds / number
        drafted += others * predict_batch(plain, turn, known, length)
    return alone / drafted


def predict_batch(plain: Turn, turn: Turn, known: int, length: int) -> float:
    """Return the seconds of a batch of prompts like those of one half.

    Seconds = f' + h + the sum of a batch's rounds, f' to the first tokens. h is what the host adds
    to a plain batch (moving rows into it, texts): it belongs to the tokens, which all methods emit
    alike. Counted by the round, times were 3% too short on average at batch 8; taken as what a
    plain batch lasts beyond steps timed at another moment, 10% too long at batch 1. A batch ends
    with its slowest request: batches of different prompts are drawn by their numbers of rounds
    (with one twice, the slowest were too rare), and each round costs what it does with as many
    slots as its running requests need and as many tokens as were drafted and accepted, in plain
    steps of that batch.
    """
    one, own = plain.halves[known], turn.halves[known]
    sizes = np.array(list(turn.costs))
    batch = sizes[-1]
    number = len(one.tokens) / batch
    step = one.computing / number / length
    host = (one.decoding - one.computing) / number
    scale = step / turn.costs[batch].plain  # that moment to this batch
    rounds = [
        scale * costs.drafting(*own.shares(turn.depth, size)) for size, costs in turn.costs.items()
    ]
    different = np.resize(own.rounds[: own.num_prompts], max(own.num_prompts, batch))
    drawn = np.random.default_rng(0).permuted(np.tile(different, (DRAWS, 1)), axis=1)[:, :batch]
    longest = -np.sort(-drawn)  # requests by their rounds, those that last longest first
    bounds = np.concatenate([longest, np.zeros((DRAWS, 1), int)], axis=1)
    spent = -np.diff(bounds).mean(axis=0)  # rounds with 1, 2, ..., batch running requests
    each = np.searchsorted(sizes, np.arange(1, batch + 1))
    return own.first / number + host + float(spent @ np.take(rounds, each))


def make_rows(turns: Mapping[str, Sequence[Turn]], num_tokens: int) -> list[dict[str, Any]]:
    """Return a row of each method; speedups are medians of the ratios turn by turn."""
    rows, plains = [], turns[PLAIN]
    for name, own in turns.items():
        pairs = list(zip(plains, own, strict=True))
        last, costs = own[-1].whole, own[-1].costs[max(own[-1].costs)]
        num = sum(map(len, last.tokens))
        depth = own[-1].depth
        predicted = [predict(plain, one, num_tokens - 1) for plain, one in pairs if depth]
        whole = [plain.whole.seconds / one.whole.seconds for plain, one in pairs]
        decoded = [plain.whole.decoding / one.whole.decoding for plain, one in pairs]
        counters = SpecDecodeCounters.zeros(max(depth, 1))
        rates = counters.add(last.drafted, last.accepted).acceptance_rate_per_pos
        rows.append(
            {
                "method": name,
                "k": depth,
                "tokens_per_s": num / statistics.median(one.whole.seconds for one in own),
                "tokens_per_round": last.tokens_per_round,
                "acceptance_per_pos": [] if rates is None else list(rates),
                "draft_s": max(costs.whole - costs.verify, 0.0) if depth else 0.0,
                "verify_s": costs.verify if depth else costs.plain,
                "speedup": statistics.median(whole),
                "predicted_speedup": statistics.median(predicted) if depth else None,
                "tpot_speedup": statistics.median(decoded),
                "distinct_bigrams": statistics.mean(map(distinct_bigrams, last.tokens)),
            }
        )
    return rows


HEADINGS = (
    "prompts",
    "method",
    "K",
    "batch",
    "T",
    "tokens/s",
    "tokens/round",
    "accepted at 1, 2, ...",
)
HEADINGS += ("draft ms", "verify ms", "speedup", "predicted", "TPOT speedup")


def ratio(value: float | None) -> str:
    """Return a ratio as a cell, an empty one where there is none."""
    return "" if value is None else f"{value:.2f}x"


def cells(row: dict[str, Any]) -> list[str]:
    """Return a row as the cells of a table."""
    return [
        *(str(row[name]) for name in ("prompts", "method", "k", "batch")),
        f"{row['temperature']:g}",
        f"{row['tokens_per_s']:.0f}",
        f"{row['tokens_per_round']:.2f}",
        " ".join(f"{rate:.2f}" for rate in row["acceptance_per_pos"]),
        *(f"{1e3 * row[name]:.2f}" for name in ("draft_s", "verify_s")),
        *(ratio(row[name]) for name in ("speedup", "predicted_speedup", "tpot_speedup")),
    ]


def print_rows(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print one line per row."""
    shown = Table(*HEADINGS)
    for row in rows:
        shown.add_row(*cells(row))
    console.width = console.width if console.is_terminal else max(console.width, WIDTH)
    console.print(shown)

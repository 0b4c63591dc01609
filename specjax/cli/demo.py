"""``specjax demo``: complete real prompts plainly and with drafters, and compare them."""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from specjax.bench.demo import ARMS, Arm, Result, load, measure, prepare, sampling
from specjax.bench.plan import DEEPER, DEPTH
from specjax.bench.report import MOST_LOAD, busy, num_cores
from specjax.bundled import prompts
from specjax.engine.llm import LLM
from specjax.host.markdown import around_section, picture, replace_section, table
from specjax.viz.figure import check_picture, save_figure
from specjax.viz.live import legend, show
from specjax.viz.methods import Method, method_comparison

NUM_TOKENS = 64
REPS = 5
SECTION = "demo"  # of a README
HEADINGS = (
    "method",
    "tokens/s",
    "speedup",
    "min-max",
    "tokens/round",
    "acceptance",
    "random prompts: speedup",
    "tokens/round",
    "same text",
)


def run_demo(
    out: Path,
    *,
    arms: Sequence[Arm] = ARMS,
    num_tokens: int = NUM_TOKENS,
    reps: int = REPS,
    readme: Path | None = None,
    console: Console | None = None,
) -> bool:
    """Stream a completion, compare the arms, save a picture; return whether all texts were equal.

    Args:
        out: the file of the picture.
        arms: what to compare; an arm comes after the one it is compared with.
        reps: how often each arm is timed; the arms take turns.
        readme: a Markdown file in whose section ``SECTION`` to put the table and the picture.

    Raises:
        ValueError: ``out`` cannot be written, or too few completions are worth measuring on.
    """
    check_picture(out)
    if readme is not None:
        around_section(readme, SECTION)
    console = console or Console(highlight=False)
    started, load_before = time.monotonic(), busy()
    loaded: dict[str, LLM] = {}
    stream_one(next(arm for arm in arms if arm.name != arm.plain), num_tokens, loaded, console)

    setting = prepare(arms, num_tokens, loaded)
    on = "; ".join(map(str, setting.chosen))
    deeper = ", ".join(f"{name} {depth}" for name, depth in DEEPER.items())
    measured = (
        f"{reps} interleaved runs of {len(setting.prompts()[0])} prompts, {num_tokens} new tokens "
        f"each, one at a time, K = {DEPTH} ({deeper}), {num_cores()} CPU cores"
    )
    if load_before > MOST_LOAD:
        console.print(
            f"other processes keep {load_before:.1f} cores busy: speeds are not to be trusted"
        )
    console.print(
        f"{measured}; {on}. Each method is compiled before its first run.", soft_wrap=True
    )
    results = show_results(measure(setting, reps), reps, console)
    console.print(
        "speedup: median of the runs' ratios to plain, reading the prompts included; min-max: "
        "least and greatest of them; tokens/s: plain's median x speedup.",
        soft_wrap=True,
    )
    methods = [result.methods[0] for result in results]
    console.print(verdict(methods))
    save_figure(method_comparison(methods, note=measured)[1], out)
    if readme is not None:
        image = picture("tokens per round and speedup, per method", out, readme)
        lines = [*table(HEADINGS, map(describe, results)), "", f"{measured}; {on}:", *image]
        replace_section(readme, SECTION, lines)
    console.print(f"Saved {out}. {time.monotonic() - started:.0f} s in all.")
    for arm, result in zip(arms, results, strict=True):
        if not result.same:
            console.print(f"DIFFERENT TEXT: {arm.name} did not write what {arm.plain} wrote.")
    return all(result.same for result in results)


def stream_one(arm: Arm, num_tokens: int, loaded: dict[str, LLM], console: Console) -> None:
    """Print a completion of the first shipped prompt, round by round."""
    prompt = prompts("shipped")[0]["turns"][0]
    console.rule(f"{arm.name}, live") if console.is_terminal else console.print(
        f"{arm.name}, live:"
    )
    if console.is_terminal:
        console.print(legend())
    console.print(Text(last_lines(prompt), style="dim"), end="", soft_wrap=True)
    show(load(arm, loaded), prompt, sampling(arm, num_tokens), console, with_prompt=False)


def show_results(turns: Iterable[Sequence[Result]], reps: int, console: Console) -> list[Result]:
    """Print each method's row as it is measured, and return the last turn's results.

    On a terminal the table is redrawn after every turn; elsewhere each method's first run is a
    line, and the medians of all runs follow.
    """
    results: list[Result] = []
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            for results in map(list, turns):
                live.update(table_of(results), refresh=True)
        return results
    for so_far in turns:
        if len(so_far) > len(results):
            console.print(f"run 1 of {reps}: {line_of(describe(so_far[-1]))}", soft_wrap=True)
        results = list(so_far)
    for result in results:
        console.print(line_of(describe(result)), soft_wrap=True)
    return results


def last_lines(prompt: str, num_lines: int = 2) -> str:
    """Return the end of a prompt, for the completion to follow."""
    return "".join(prompt.splitlines(keepends=True)[-num_lines:]).lstrip("\n")


def verdict(methods: Sequence[Method]) -> str:
    """Return sentences on the cost of a round, which explains the speedups."""
    costs = [(m.tokens_per_round / m.speedup, m) for m in methods if m.acceptance is not None]
    each = "; ".join(f"{m.name} {cost:.1f}" for cost, m in costs)
    return (
        "A method pays when a round brings more tokens than it costs in plain steps (derived: "
        f"tokens per round / speedup): {each}. "
        "A step mostly reads weights, so T(n), a step over n tokens, costs much less than "
        "n T(1): `specjax bench step --model bundled` measures it."
    )


def table_of(results: Sequence[Result]) -> Table:
    """Return the results as a table that fits 80 columns: as narrow as its words allow."""
    rows = list(map(describe, results))
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0)
    for cells in zip(HEADINGS, *rows, strict=True):
        heading, *below = (cell.replace("/", " /") for cell in cells)  # wraps there
        table.add_column(heading, width=max(map(len, " ".join((heading, *below)).split())))
    for *cells, same in rows:
        style = {"yes": "green", "NO": "bold red"}.get(same, "")
        table.add_row(*cells, Text(same, style=style))
    return table


def line_of(cells: Sequence[str]) -> str:
    """Return a row as a line of text."""
    named = zip(HEADINGS[1:], cells[1:], strict=True)
    return f"{cells[0]}: " + ", ".join(f"{heading} {cell}" for heading, cell in named)


def describe(result: Result) -> tuple[str, ...]:
    """Return a method's row of cells: on the shipped prompts, and in short on random ones."""
    method, random = result.methods
    own = method.spread is None  # the arm that others are compared with
    return (
        method.name,
        f"{method.tokens_per_second:,.0f}",
        f"{method.speedup:.2f}x",
        "-" if method.spread is None else "{:.2f}-{:.2f}".format(*method.spread),
        f"{method.tokens_per_round:.2f}",
        "-" if method.acceptance is None else f"{method.acceptance:.0%}",
        f"{random.speedup:.2f}x",
        f"{random.tokens_per_round:.2f}",
        "-" if own else "yes" if result.same else "NO",
    )

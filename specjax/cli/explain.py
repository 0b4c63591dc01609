"""``specjax explain``: a log's or a measurement's speed taken apart, as tables, JSON, a picture."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from specjax.cli.errors import plainly

NOTHING = "-"


@plainly
def explain(
    trace: Annotated[
        Path | None, typer.Option(help="A log of speculation (specjax generate --trace).")
    ] = None,
    plain: Annotated[
        Path | None, typer.Option(help="A log of the same without speculation, for its speed.")
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(help="A JSON object of seconds: plain_s, round_s, draft_s, verify_s, ..."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all of it here.")] = None,
    out: Annotated[Path | None, typer.Option(help="Draw a round's budget into this file.")] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="The schedule's last batch size.")] = 256,
    hysteresis: Annotated[
        float, typer.Option(min=0, help="The schedule changes K for a larger gain than this.")
    ] = 0.02,
) -> None:
    """Say why speculation is slower, or faster: acceptance against drafting, verifying, the rest.

    --trace alone measures acceptance; with --plain, or --measured with plain_s and, if known,
    draft_s and verify_s (specjax bench costs writes them), it finds the guilty term, the best K
    and a schedule for vLLM's num_speculative_tokens_per_batch_size.
    """
    from specjax.files import write_json
    from specjax.traces import alarms, convert, read_trace
    from specjax.traces.explain import acceptance_from, say
    from specjax.traces.explain import explain as take_apart

    if plain is not None and trace is None:
        raise ValueError("--plain is the other half of --trace: pass that log too.")
    if trace is None and measured is None:
        raise ValueError("nothing to explain: pass --trace FILE, --measured JSON, or both.")
    log = None if trace is None else read_trace(trace)
    if log is not None and not log.drafted.any():
        raise ValueError(f"{trace}: nothing was drafted, so there is no speculation to explain.")
    times = gather(log, None if plain is None else read_trace(plain), measured)
    acceptance = None if log is None else acceptance_from(log)
    found = take_apart(times, acceptance, max_batch=max_batch, hysteresis=hysteresis)
    console = Console(highlight=False)
    numbers, wrong = ((), ()) if log is None else (convert(log), alarms(log))
    for line in say(found):
        console.print(line, soft_wrap=True, markup=False)
    for alarm in wrong:
        console.print(f"ALARM, {alarm.name}: {alarm.says}", soft_wrap=True, style="bold red")
    if found.round_cost is not None:
        console.print(budget_table(found))
    if numbers:
        console.print(number_table(numbers))
    if found.schedule is not None:
        option = json.dumps({"num_speculative_tokens_per_batch_size": found.schedule})
        console.print(f"schedule: {option}", soft_wrap=True, markup=False)
    if json_file is not None:
        write_json(
            json_file,
            {
                **plain_values(found),
                "says": list(say(found)),
                "numbers": [plain_values(one) for one in numbers],
                "alarms": [plain_values(one) for one in wrong],
            },
        )
        console.print(f"wrote {json_file}", markup=False)
    if out is not None:
        from specjax.viz.figure import save_figure
        from specjax.viz.round_budget import round_budget

        save_figure(round_budget(found)[1], out)
        console.print(f"saved {out}", markup=False)


def gather(log, plain, measured: Path | None):
    """Put seconds of a JSON file and of logs together; a round's time is the log's.

    With a plain log its step is the unit. What that step takes longer than the measured one is
    the host's part; the target's pass of a round gets it too, so that overhead is what
    speculation adds.
    """
    from specjax.files import read_json_object
    from specjax.traces.events import concurrency
    from specjax.traces.explain import ACCEPTANCE, Measured, round_seconds

    given = {} if measured is None else read_json_object(measured)
    if log is not None:
        own = {key: value for key, value in given.items() if key not in ACCEPTANCE}
        given = {"num_speculative_tokens": log.depth, **own}
    try:
        times = Measured.from_dict(given)
    except ValueError as error:
        raise ValueError(f"{measured}: {error}") from None
    if log is None:
        return times
    if times.num_speculative_tokens != log.depth:
        raise ValueError(
            f"{measured} has num_speculative_tokens={times.num_speculative_tokens}, the log drafts "
            f"up to {log.depth}: measure the same K."
        )
    side_by_side = concurrency(log)
    if measured is not None and not 0.5 <= times.batch_size / side_by_side <= 2:
        raise ValueError(
            f"{measured} was measured at batch_size={times.batch_size}, but {side_by_side:.1f} "
            "requests ran side by side in the log: measure at that batch size "
            "(specjax bench costs --batch-size), or log at the measured one."
        )
    if plain is None:
        return times if times.plain_s is None else replace(times, round_s=round_seconds(log))
    step, verify = round_seconds(plain), times.verify_s
    if verify is not None and times.plain_s is not None:
        verify = max(verify + step - times.plain_s, 1e-9)
    return replace(times, plain_s=step, round_s=round_seconds(log), verify_s=verify)


def budget_table(found) -> Table:
    """Show a round's income and its costs, in plain steps."""
    table = Table("of a round", "plain steps", "of it for rejected tokens", title="Budget")

    def row(name, value, wasted=None):
        shown = NOTHING if value is None else f"{value:.3f}"
        table.add_row(name, shown, "" if wasted is None else f"{wasted:.3f}")

    rejected = 1.0 - found.acceptance_rate
    row("brings: the target's own token", 1.0)
    row("brings: accepted tokens", found.tokens_per_round - 1.0)
    row("costs: a plain step", 1.0)
    for name, value in (("drafting", found.draft), ("verifying more than one", found.verify)):
        row(f"costs: {name}", value, None if value is None else rejected * value)
    row("costs: overhead", found.overhead)
    row("costs: all", found.round_cost)
    row("speedup (ratio)", found.speedup)
    return table


def number_table(numbers) -> Table:
    """Show every tool's numbers."""
    table = Table("tool", "number", "value", "95% interval", "is", title="What tools print")
    for one in numbers:
        known = one.low == one.low
        interval = f"{one.low:.4g} .. {one.high:.4g}" if known else NOTHING
        table.add_row(one.tool, one.name, f"{one.value:.4g} {one.unit}", interval, one.says)
    return table


def plain_values(record) -> dict[str, Any]:
    """Return a record as JSON values; NaN becomes null."""

    def tame(value):
        if isinstance(value, float) and value != value:
            return None
        as_dict = getattr(value, "_asdict", None)
        return value if as_dict is None else as_dict()

    return {name: tame(value) for name, value in record._asdict().items()}

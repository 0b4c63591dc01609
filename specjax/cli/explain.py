"""``specjax explain``: where the time of speculation goes, as tables, JSON and a picture."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from specjax.cli.ab import pairs
from specjax.cli.errors import plainly
from specjax.cli.explain_server import explain_server, model_server, read_server

if TYPE_CHECKING:
    from specjax.traces.converters import Number
    from specjax.traces.events import Trace
    from specjax.traces.explain import Explanation, Measured

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
    hysteresis: Annotated[
        float, typer.Option(min=0, help="The schedule changes K for a larger gain than this.")
    ] = 0.02,
    metrics: Annotated[
        str | None, typer.Option(help="A server's address, or a file with its /metrics.")
    ] = None,
    metrics_before: Annotated[
        Path | None, typer.Option(help="An earlier scrape; else an address is scraped twice.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.1, help="Between the scrapes: of an address (10), or of two files."),
    ] = None,
    served_model: Annotated[
        str | None, typer.Option(help="Which of several models at one address.")
    ] = None,
    log: Annotated[
        str | None, typer.Option(help="What vLLM, vllm-ascend or SGLang logged; -: stdin.")
    ] = None,
    result: Annotated[
        Path | None,
        typer.Option(
            help="A result of vllm bench serve, sglang.bench_serving, GuideLLM or AISBench."
        ),
    ] = None,
    run: Annotated[int | None, typer.Option(min=1, help="Which of several runs in it.")] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="The same load without speculation: an address, a log, a result, scrapes "
            "(BEFORE,AFTER)."
        ),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(help="The same load at another K, as --baseline; may be repeated."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="How it drafts (eagle3, ngram, ...): against its usual acceptance."),
    ] = None,
    other_method: Annotated[
        list[str] | None,
        typer.Option(help="NAME=SOURCE: the same load with another method; may be repeated."),
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(help="Its devices, for a roofline: H200, 2xH100, 910B, ...")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="The target's config.json, for a roofline.")
    ] = None,
    draft: Annotated[
        Path | None, typer.Option(help="The draft's config.json; none: drafts cost nothing.")
    ] = None,
    context: Annotated[
        float | None,
        typer.Option(min=0, help="Tokens of context per request; by default from its counters."),
    ] = None,
) -> None:
    """Say why speculation is slower, or faster: acceptance against drafting, verifying, the rest.

    Of a running server: --metrics, --log or --result, and --baseline for the speedup.
    Of one's own measurements: --trace alone measures acceptance; with --plain, or --measured with
    plain_s and, if known, draft_s and verify_s (specjax bench costs writes them), it finds the
    guilty term and the best K; with rounds at several batch sizes (steps), a schedule up to the
    largest of them for vLLM's num_speculative_tokens_per_batch_size.
    """
    if metrics is not None or log is not None or result is not None:
        if trace is not None or plain is not None or measured is not None or out is not None:
            raise ValueError(
                "--trace, --plain, --measured and --out are of one's own rounds: not with "
                "--metrics, --log or --result."
            )
        seen = read_server(metrics, metrics_before, log, result, run, seconds, served_model)
        server = model_server(seen, hardware, model, draft, context)
        others = dict(pairs(other_method, "--other-method ngram=ngram.log"))
        explain_server(seen, baseline, also or (), seconds, json_file, server, method, others)
        return
    server_only = (baseline, also, metrics_before, run, hardware, model, draft, context)
    server_only += (method, other_method)
    if any(one is not None for one in server_only):
        raise ValueError(
            "--baseline, --also, --metrics-before, --run, --method, --other-method, --hardware, "
            "--model, --draft and --context are of --metrics, --log or --result."
        )
    explain_rounds(trace, plain, measured, json_file, out, hysteresis)


def explain_rounds(
    trace: Path | None,
    plain: Path | None,
    measured: Path | None,
    json_file: Path | None,
    out: Path | None,
    hysteresis: float,
) -> None:
    """Explain one's own rounds, from a log of them, measured seconds or both."""
    from specjax.host.files import write_json
    from specjax.traces import alarms, convert, read_trace
    from specjax.traces.explain import acceptance_from, to_sentences
    from specjax.traces.explain import explain as take_apart

    if plain is not None and trace is None:
        raise ValueError("--plain is the other half of --trace: pass that log too.")
    if trace is None and measured is None:
        raise ValueError(
            "nothing to explain: pass --metrics URL, --log FILE or --result FILE of a server, or "
            "--trace FILE, --measured JSON, or both."
        )
    rounds = None if trace is None else read_trace(trace)
    if rounds is not None and not rounds.drafted.any():
        raise ValueError(f"{trace}: nothing was drafted, so there is no speculation to explain.")
    times = gather(rounds, None if plain is None else read_trace(plain), measured)
    acceptance = None if rounds is None else acceptance_from(rounds)
    found = take_apart(times, acceptance, hysteresis=hysteresis)
    console = Console(highlight=False)
    numbers, wrong = ((), ()) if rounds is None else (convert(rounds), alarms(rounds))
    for line in to_sentences(found):
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
                "says": list(to_sentences(found)),
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


def gather(log: "Trace | None", plain: "Trace | None", measured: Path | None) -> "Measured":
    """Return the measured seconds of a JSON file and of logs; a round's time is the log's.

    With a plain log its step is the unit. What that step takes beyond the measured one is the
    host's time; it is added to the target's pass of a round too, so that overhead is only what
    speculation adds.
    """
    from specjax.host.files import read_json_object
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


def budget_table(found: "Explanation") -> Table:
    """Return a table of a round's tokens and costs, in plain steps."""
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


def number_table(numbers: "Sequence[Number]") -> Table:
    """Return a table of the numbers that each tool prints."""
    table = Table("tool", "number", "value", "95% interval", "is", title="What tools print")
    for one in numbers:
        known = one.low == one.low
        interval = f"{one.low:.4g} .. {one.high:.4g}" if known else NOTHING
        table.add_row(one.tool, one.name, f"{one.value:.4g} {one.unit}", interval, one.says)
    return table


def plain_values(record: Any) -> dict[str, Any]:
    """Return a record as JSON values; NaN becomes null."""

    def to_json(value):
        if isinstance(value, float) and value != value:
            return None
        as_dict = getattr(value, "_asdict", None)
        return value if as_dict is None else as_dict()

    return {name: to_json(value) for name, value in record._asdict().items()}

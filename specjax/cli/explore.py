"""``specjax explore``: the interactive page, with the numbers of a trace or an A/B log."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specjax.cli.errors import plainly

if TYPE_CHECKING:
    from specjax.ab.records import Unit
    from specjax.viz.explorer import Run


@plainly
def explore(
    trace: Annotated[
        Path | None, typer.Option(help="A log of rounds (specjax generate --trace).")
    ] = None,
    ab: Annotated[Path | None, typer.Option(help="A log of specjax ab run.")] = None,
    out: Annotated[Path, typer.Option(help="Where to write the page.")] = Path(
        "specjax_explorer.html"
    ),
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open it in a browser.")] = True,
) -> None:
    """Open the explorer: alpha, K, costs and hardware, a round token by token, trees.

    One HTML file, which works offline. With --trace or --ab its sliders start at what was
    measured.
    """
    import webbrowser

    from specjax.host.files import write_atomically
    from specjax.viz.explorer import explorer_page

    runs = [] if trace is None else [run_of_trace(trace)]
    if ab is not None:
        runs += runs_of_log(ab)
    page = explorer_page(runs)
    with write_atomically(out) as file:
        file.write(page.encode())
    typer.echo(f"wrote {out}")
    if show and not webbrowser.open(out.resolve().as_uri()):
        typer.echo("no browser was found here: open the file in one.")


def run_of_trace(file: Path) -> "Run":
    """Return the numbers of a log of rounds. Raises ValueError if nothing was drafted in it."""
    from specjax.traces import alpha, counters, read_trace
    from specjax.viz.explorer import Run

    log = read_trace(file)
    counted = counters(log)
    if counted.mean_acceptance_length is None:
        raise ValueError(f"{file}: nothing was drafted, so there is nothing to explore.")
    return Run(file.name, alpha(log).estimate, log.depth, counted.mean_acceptance_length, None)


def runs_of_log(file: Path) -> "list[Run]":
    """Return the arms of an A/B log that drafted, each beside the plain arm of its own engine.

    Raises ValueError if no arm drafted.
    """
    from specjax.ab.bases import choose_bases
    from specjax.ab.compare import by_load
    from specjax.ab.records import read_log

    log = read_log(file)
    kinds = {one["label"]: one["kind"] for one in log.manifest["arms"]}
    bases = choose_bases(log.manifest["arms"]).own
    runs: list[Run] = []
    for (dataset, concurrency), arms in by_load(log.units).items():
        for label, units in arms.items():
            own = bases[label]
            base = arms.get(own) if own != label and kinds[own] == kinds[label] else None
            load = f"{concurrency} at a time" if concurrency else "open loop"
            runs += run_of_arm(f"{label}, {dataset}, {load}", units, base)
    if not runs:
        raise ValueError(f"{file}: no arm has counters of drafts, so there is nothing to explore.")
    return runs


def run_of_arm(
    name: str, units: "Sequence[Unit]", base: "Sequence[Unit] | None"
) -> "Iterator[Run]":
    """Yield the numbers of one arm at one load, if it drafted; ``base`` is the plain arm.

    Tokens are those of all rounds, also of rounds without a draft, where chunks tell; else they
    are the counters' per draft, and then no gain is given.
    """
    from specjax import theory
    from specjax.ab.compare import compare
    from specjax.ab.measures import measure
    from specjax.ab.prediction import explained
    from specjax.viz.explorer import Run

    found = measure(units)
    counted = found.counters
    if counted is None or counted.mean_acceptance_length is None:
        return
    tokens, k, gain = counted.mean_acceptance_length, len(counted.num_accepted_tokens_per_pos), None
    why = None if base is None else explained(base, units, found)
    if base is not None and why is not None:
        tokens = why.tokens_per_round
        gain = compare((measure(base), base), (found, units), greedy=False).tpot_gain
    yield Run(name, float(theory.alpha_from_length(tokens, k)), k, tokens, gain)

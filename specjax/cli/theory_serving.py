"""``specjax theory check``, ``batch`` and ``plan``: claims, batches and servers under load."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from specjax.cli.errors import plainly
from specjax.cli.modelled import read_modelled
from specjax.cli.theory import Alpha, Cost, K, theory

if TYPE_CHECKING:
    from specjax.theory.intervals import Interval
    from specjax.theory.modelled import ModelledServer
    from specjax.theory.plan import Steady

Config = Annotated[Path, typer.Option(help="The target's config.json.")]
DraftConfig = Annotated[
    Path | None, typer.Option("--draft", help="The draft's config.json; none: drafts are free.")
]
Devices = Annotated[str, typer.Option(help="H200, 2xH100, 910B, TPU-v6e, ...")]
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@theory.command()
@plainly
def check(
    alpha: Alpha,
    k: K,
    claimed: Annotated[float, typer.Option(help="The number to check.")],
    c: Cost = 0.0,
    kind: Annotated[
        str | None, typer.Option(help="What it is claimed to be: speedup, tokens, accepted.")
    ] = None,
) -> None:
    """Say which formula, right or wrong, gives a claimed number, and what papers published."""
    from specjax.theory import check_claim

    found = check_claim(alpha, k, c, claimed, kind=kind)
    typer.echo("\n".join([found.says, *(f"Published: {one}." for one in found.published)]))


@theory.command()
@plainly
def batch(
    alpha: Alpha,
    k: K,
    config: Config,
    hardware: Devices,
    draft: DraftConfig = None,
    context: Annotated[float, typer.Option(min=0, help="Tokens of context per row.")] = 1000.0,
) -> None:
    """Print the speedup by batch size on a roofline, and where memory ends."""
    from specjax.theory import tokens_per_step

    server = read_modelled(config, hardware, draft, context)
    tokens, most = float(tokens_per_step(alpha, k)), server.most_rows()
    table = Table("batch", f"speedup of K = {k}", "bounds", title=server.hardware.name)
    for rows in BATCHES:
        if rows > most:
            table.add_row(str(rows), "does not fit into memory", "")
            continue
        both = server.costs(rows, k)["both"]
        gains = [tokens / (1.0 + float(one)) for one in (both.estimate, both.high, both.low)]
        table.add_row(str(rows), f"{gains[0]:.2f}x", f"{gains[1]:.2f}x to {gains[2]:.2f}x")
    console = Console(highlight=False)
    console.print(table)
    bound = server.bound_by_compute(k)
    where = "at no batch up to 4096" if bound is None else f"from batch {bound} on"
    console.print(f"Verifying {k + 1} tokens per row is bound by compute {where} (at peak).")
    console.print(f"Up to {most} rows of {context:g} tokens fit beside the weights.")
    print_assumptions(server, console)


@theory.command()
@plainly
def plan(
    config: Config,
    hardware: Annotated[str, typer.Option(help="One device: H200, H100, 910B, TPU-v6e, ...")],
    rps: Annotated[float, typer.Option(min=0.0, help="Requests per second.")],
    slo: Annotated[str, typer.Option(help="The objective, such as tpot=50ms.")] = "tpot=50ms",
    draft: DraftConfig = None,
    alpha: Alpha = 0.7,
    input_tokens: Annotated[float, typer.Option("--input", help="Tokens of a prompt.")] = 1000.0,
    output_tokens: Annotated[float, typer.Option("--output", help="Tokens of an answer.")] = 250.0,
    k_max: Annotated[int, typer.Option(min=1, help="The largest K considered.")] = 8,
    out: Annotated[
        Path | None, typer.Option(help="Draw TPOT over the load into this file.")
    ] = None,
) -> None:
    """Say which K at which load, what gain, and how many devices an objective needs."""
    from specjax.theory.plan import Load, devices_needed, safest, steady

    limit = parse_slo(slo)
    load, ks = Load(rps, input_tokens, output_tokens), range(k_max + 1)
    server = read_modelled(config, hardware, draft, input_tokens + output_tokens / 2)
    best = devices_needed(server, load, alpha, ks, limit)
    console = Console(highlight=False)
    title = f"{rps:g} requests/s of {input_tokens:g} + {output_tokens:g} tokens, alpha {alpha:g}"
    table = Table("devices", "best K", "batch", "TPOT", "gain over K = 0", slo, title=title)
    for one in best:
        table.add_row(*plan_row(one, limit))
    console.print(table)
    last = best[-1]
    if last.tpot.high <= limit:
        console.print(
            f"{last.num_devices} x {server.hardware.name} with K = {last.k} meet {slo} at every "
            "bound."
        )
    else:
        console.print(f"Not even {last.num_devices} x {server.hardware.name} surely meet {slo}.")
    chosen = server._replace(num_devices=last.num_devices)
    loads = Table("requests/s", "best K", "batch", "TPOT", "gain over K = 0", title="Under load")
    for share in (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 4.0):
        states = steady(chosen, load._replace(rps=share * rps), alpha, ks)
        loads.add_row(f"{share * rps:g}", *plan_row(safest(states), limit)[1:5])
    console.print(loads)
    print_assumptions(server, console)
    if out is not None:
        from specjax.viz.figure import save_figure
        from specjax.viz.plan import plan_picture

        save_figure(plan_picture(chosen, load, alpha, limit)[1], out)
        console.print(f"saved {out}", markup=False)


def plan_row(one: "Steady", limit: float) -> tuple[str, ...]:
    """Return a steady state as the cells of a table."""
    if one.limit < 1:
        return str(one.num_devices), str(one.k), "the weights do not fit", "", "", "no"
    if one.tpot.low != one.tpot.low:
        return str(one.num_devices), str(one.k), "overloaded", "", "", "no"
    surely = one.tpot.high <= limit
    meets = "yes" if surely else "perhaps" if one.tpot.low <= limit else "no"
    return (
        str(one.num_devices),
        str(one.k),
        between(one.batch, 1.0, ""),
        between(one.tpot, 1e3, " ms"),
        between(one.gain, 1.0, "x"),
        meets,
    )


def between(found: "Interval", scale: float, unit: str) -> str:
    """Return an interval in words; its upper end is missing where some world is overloaded."""
    low, high = (float(one) * scale for one in (found.low, found.high))
    if math.isnan(low):
        return "overloaded"
    if math.isnan(high):
        return f"{low:.3g}{unit} or more, or overloaded"
    ends = ["any" if math.isinf(one) else f"{one:.3g}{unit}" for one in (low, high)]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def parse_slo(text: str) -> float:
    """Return the seconds in ``tpot=50ms``. Raises ValueError for another form."""
    name, _, value = text.partition("=")
    for unit, scale in (("ms", 1e-3), ("s", 1.0)):
        if value.endswith(unit):
            try:
                seconds = float(value.removesuffix(unit)) * scale
            except ValueError:
                break
            if name == "tpot" and 0 < seconds < math.inf:
                return seconds
    raise ValueError(f"--slo must be tpot=NUMBERms or tpot=NUMBERs, got {text!r}")


def print_assumptions(server: "ModelledServer", console: Console) -> None:
    """Print what the numbers rest on."""
    from specjax.theory.modelled import ASSUMED

    says = f"Bounds: {ASSUMED}; {server.hardware.assumption}; no cost of communication."
    console.print(says, soft_wrap=True, markup=False)

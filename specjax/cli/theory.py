"""``specjax theory``: speedups from formulas, and the guide's table predicted."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from specjax.cli.errors import plainly

theory = typer.Typer(help="Speedups from formulas.", no_args_is_help=True)
Alpha = Annotated[float, typer.Option(help="Chance that a draft token is accepted.")]
K = Annotated[int, typer.Option("--k", min=0, help="Tokens drafted per step.")]
Cost = Annotated[float, typer.Option("--c", help="A draft step over a target step.")]
Block = Annotated[float, typer.Option("--v", help="Verifying K + 1 tokens over 1.")]
Overhead = Annotated[float, typer.Option(help="Further cost of a step, in target steps.")]


@dataclass(frozen=True)
class TableRow:
    """One row of the guide's table, predicted without its dataset."""

    dataset: str
    concurrency: int
    predicted_tpot_s: float
    measured_tpot_s: float
    predicted_tps: float
    measured_tps: float


@theory.command()
@plainly
def speedup(alpha: Alpha, k: K, c: Cost = 0.0, v: Block = 1.0, overhead: Overhead = 0.0) -> None:
    """Say what (alpha, K, c) give: tokens per step, speedup, the best K, the break-even alpha."""
    from specjax import theory as t

    gain = t.speedup(alpha, k, c, v, overhead)
    best = int(t.optimal_k(alpha, c, v + overhead))
    most = t.speedup(alpha, best, c, v, overhead) if best else 1.0
    least = t.breakeven_alpha(k, c, v + overhead)
    typer.echo(f"speedup            {gain:.5g}")
    typer.echo(f"tokens per step    {t.tokens_per_step(alpha, k):.5g}, the target's own included")
    typer.echo(f"accepted per step  {t.accepted_per_step(alpha, k):.5g} of {k} drafted")
    typer.echo(f"best K             {best}: {most:.5g}")
    shown = f"{least:.4g}" if least == least else "none: K drafts never pay"
    typer.echo(f"break-even alpha   {shown}")
    typer.echo(f"oracle             {t.oracle_speedup(alpha, c):.5g}, if K were known at each step")


@theory.command()
@plainly
def sweep(
    out: Annotated[Path, typer.Option(help="Where to save the picture.")],
    c: Cost = 0.1,
    k_max: Annotated[int, typer.Option(min=2, help="The largest K drawn.")] = 12,
) -> None:
    """Draw the speedup over alpha and K, with the best K and the break-even line."""
    from specjax.viz.figure import save_figure
    from specjax.viz.speedup_surface import speedup_surface

    surface, axes = speedup_surface(c, k_max=k_max)
    save_figure(axes, out)
    best = surface.speedup.max()
    typer.echo(f"saved {out}: speedup over alpha and K at c = {c:g}, up to {best:.3g}")


@theory.command()
@plainly
def table(
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the rows here, as JSON.")
    ] = None,
) -> None:
    """Predict the guide's benchmark, each dataset from the others, beside what was measured."""
    rows, errors = predict()
    typer.echo(
        "dataset          concurrency   TPOT, ms: predicted  measured   TPS: predicted  measured"
    )
    for row in rows:
        typer.echo(
            f"{row.dataset:<16} {row.concurrency:>11} {1e3 * row.predicted_tpot_s:>21.1f} "
            f"{1e3 * row.measured_tpot_s:>9.1f} {row.predicted_tps:>16.1f} {row.measured_tps:>9.1f}"
        )
    for metric, error in errors.items():
        typer.echo(
            f"{metric}: mean error {error.mape:.1%}, worst {error.worst:.1%}; two constants, each "
            "dataset predicted from the others, its plain measurements and its acceptance"
        )
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
        typer.echo(f"wrote {json_file}")


def predict():
    """Return the table's rows, predicted, and the errors by metric."""
    from specjax.theory import lodo_error
    from specjax.theory.published import SUFFIX_BENCHMARK

    errors = {metric: lodo_error(SUFFIX_BENCHMARK, metric) for metric in ("tpot", "tps")}
    rows = [
        TableRow(row.dataset, row.concurrency, tpot, row.spec_tpot_s, tps, row.spec_tps)
        for row, tpot, tps in zip(
            SUFFIX_BENCHMARK, errors["tpot"].predicted, errors["tps"].predicted, strict=True
        )
    ]
    return rows, errors

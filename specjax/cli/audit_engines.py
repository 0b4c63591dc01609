"""``specjax audit engines``: replay other engines' samplers, and print the results."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specjax.cli.errors import plainly

if TYPE_CHECKING:
    from specjax.audit.engines import Replayed


@plainly
def engines(
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the rows here, as JSON.")
    ] = None,
    batches: Annotated[int, typer.Option(min=1, help="Compared token by token.")] = 1000,
    draws: Annotated[
        int, typer.Option(min=1, help="Where a distribution has to be measured.")
    ] = 400_000,
    requests: Annotated[
        int, typer.Option(min=1, help="Of vLLM's V2 kernels, each with its draft.")
    ] = 1000,
) -> None:
    """Replay the samplers of other engines on the same distributions and noise.

    Exit code 1: an installed engine emits other tokens, or has another distribution.
    """
    from specjax.audit.engines import Replayed, audit_engines, findings
    from specjax.audit.source_loader import NotInstalled
    from specjax.engine.progress import bar
    from specjax.host.compile_cache import enable_compile_cache
    from specjax.host.files import write_json
    from specjax.oracle.ask import ask
    from specjax.oracle.environment import OracleMissing

    def ask_vllm(job: dict[str, Any]) -> dict[str, Any]:
        try:
            return ask(job)
        except OracleMissing as missing:
            raise NotInstalled(str(missing)) from None

    enable_compile_cache()
    with bar("replaying samplers") as on_progress:
        rows = audit_engines(
            ask_vllm, on_progress,
            num_batches=batches, num_draws=draws, num_requests=requests,
        )  # fmt: skip
    typer.echo(
        f"{'engine':14} {'rule':21} {'version':9} {'cases':>7} {'equal':>7} {'TV 1':>7} "
        f"{'TV all':>7} {'chance':>7}   verdict"
    )
    for row in rows:
        show(row)
    for finding in findings():
        typer.echo(f"found {finding['date']}, {finding['source']}:")
        for fields in finding["rows"]:
            show(Replayed(**fields))
    if json_file is not None:
        write_json(json_file, [row._asdict() for row in rows])
        typer.echo(f"wrote {json_file}")
    if any(row.differs for row in rows):
        raise typer.Exit(1)


def show(row: "Replayed") -> None:
    """Print one row."""

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.4f}"

    equal = "-" if row.equal is None else str(row.equal)
    typer.echo(
        f"{row.engine:14} {row.rule:21} {row.version or '-':9} {row.cases:7} {equal:>7} "
        f"{number(row.tv_first):>7} {number(row.tv_joint):>7} {number(row.by_chance):>7}   "
        f"{row.verdict}{f' ({row.on})' if row.on else ''}"
    )

"""``specjax audit joint``: the joint distribution of drafters and rules."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specjax.cli.errors import plainly
from specjax.host.files import write_json
from specjax.host.machine import peak_bytes
from specjax.host.markdown import around_section, replace_section, table

if TYPE_CHECKING:
    from specjax.audit.pairs import Certified

SECTION = "joint"  # of a README
HEADINGS = (
    "drafter and rule",
    "requests",
    "promise",
    "TV",
    "given the first round",
    "tokens per round",
)


@plainly
def joint(
    pair: Annotated[
        list[str] | None, typer.Option(help="Only this pair, by its name; may be repeated.")
    ] = None,
    request: Annotated[
        list[str] | None,
        typer.Option(help="Only this kind of request, for each pair; may be repeated."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the rows here, as JSON.")
    ] = None,
    readme: Annotated[
        Path | None, typer.Option(help="A Markdown file: rewrite its section 'joint'.")
    ] = None,
) -> None:
    """Enumerate what every drafter and rule write together over two rounds, noise included."""
    from specjax.audit.pairs import certify_all
    from specjax.host.compile_cache import enable_compile_cache

    if readme is not None:
        around_section(readme, SECTION)
    enable_compile_cache()
    found = []
    typer.echo(
        f"{'drafter and rule':34} {'request':16} {'TV':>8} {'carried':>8} {'cells':>7} {'s':>6}"
    )
    for row in certify_all(pair or (), request or ()):
        found.append(row)
        typer.echo(
            f"{row.pair:34} {row.request:16} {row.found.tv + row.found.doubt:8.1e} "
            f"{row.found.carried:8.1e} {row.found.cells:7} {row.seconds:6.1f}"
            f"{'' if row.kept else '   BROKEN'}"
        )
    typer.echo(cost(found))
    if json_file is not None:
        write_json(json_file, [record(row) for row in found])
        typer.echo(f"wrote {json_file}")
    if readme is not None:
        replace_section(readme, SECTION, markdown(found))
    if not all(row.kept for row in found):
        raise typer.Exit(1)


def record(row: "Certified") -> dict:
    """Return a row as JSON values."""
    found = row.found._asdict()
    numbers = {name: found[name] for name in found if name not in ("joint", "target")}
    own = {"pair": row.pair, "request": row.request, "promise": row.promise, "kept": row.kept}
    return own | numbers | {"seconds": round(row.seconds, 1)}


def markdown(found: list["Certified"]) -> list[str]:
    """Return the rows as lines of Markdown, the requests of a pair in one row."""
    rows = []
    for name in dict.fromkeys(row.pair for row in found):
        own = [row for row in found if row.pair == name]
        worst = max(row.found.tv + row.found.doubt for row in own)
        carried = max(row.found.carried for row in own)
        kinds = own[0].request if len(own) == 1 else f"{len(own)} kinds"
        length = own[0].found.expected_length[0]
        rows.append(
            (name, kinds, own[0].promise, f"{worst:.1e}", f"{carried:.1e}", f"{length:.3f}")
        )
    total = sum(row.found.cells for row in found)
    return [
        *table(HEADINGS, rows),
        "",
        f"Two rounds, K = 2; {total} cells of noise, each run twice. {cost(found)}",
    ]


def cost(found: list["Certified"]) -> str:
    """Return a sentence on the time that the enumerations took, and this process's memory."""
    longest, peak = max(found, key=lambda row: row.seconds), peak_bytes()
    memory = "" if peak is None else f"; at most {peak / 2**20:.0f} MiB resident"
    total = sum(row.seconds for row in found)
    return (
        f"{len(found)} enumerations on {os.cpu_count()} cores: {total:.0f} s, the longest "
        f"({longest.pair}; {longest.request}) {longest.seconds:.0f} s{memory}."
    )

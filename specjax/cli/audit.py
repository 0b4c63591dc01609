"""``specjax audit``: compare the output distributions of rules, engines and servers."""

import json
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from specjax.cli.audit_compare import compare_rules
from specjax.cli.audit_engines import engines
from specjax.cli.audit_joint import joint
from specjax.cli.audit_server import server
from specjax.cli.audit_zoo import alarms, cuts, zoo
from specjax.cli.errors import plainly
from specjax.host.files import read_json_object, write_json
from specjax.host.markdown import around_section, picture, replace_section, table

if TYPE_CHECKING:
    from specjax.audit.rules import Audit

SECTION = "rules"  # of a README
HEADINGS = ("rule", "promise", "TV, mean", "TV, worst", "tokens per round")
audit = typer.Typer(
    help="Rules, drafters, engines, servers: is the distribution right?", no_args_is_help=True
)


audit.command()(engines)
audit.command()(joint)
audit.command()(zoo)
audit.command()(alarms)
audit.command()(cuts)
audit.command()(server)


@audit.callback()
def every() -> None:
    """Rules, drafters, engines, servers: is the distribution right?"""


@audit.command()
@plainly
def rules(
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the rows here, as JSON.")
    ] = None,
    image: Annotated[
        Path | None,
        typer.Option("--picture", help="Draw total variation against expected length here."),
    ] = None,
    readme: Annotated[
        Path | None, typer.Option(help="A Markdown file: rewrite its section 'rules'.")
    ] = None,
    cases: Annotated[
        int, typer.Option(min=1, help="Random pairs of target and draft distributions.")
    ] = 110,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Instead, published verifications side by side, on random distributions and the "
            "bundled pair's. A README's section is 'verifications'.",
        ),
    ] = False,
    cost: Annotated[
        float, typer.Option(min=0.0, help="With --compare: of a draft step, in target passes.")
    ] = 0.1,
    out: Annotated[
        Path | None, typer.Option(help="A folder: a file per 110 cases; killed, it goes on.")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(help="I/N: do every N-th part from I on, with the same --out.")
    ] = None,
) -> None:
    """Run every shipped rule over every draft and all noise, against random distributions."""
    if shard is not None and out is None:
        raise ValueError("--shard shares out the parts of --out DIR: pass it.")
    if compare:
        if out is not None:
            raise ValueError("--out holds parts of the random cases: not with --compare.")
        compare_rules(json_file, image, readme, cost)
        return
    from specjax.audit.rules import audit_rules
    from specjax.host.compile_cache import enable_compile_cache
    from specjax.viz.figure import check_picture, save_figure

    if image is not None:
        check_picture(image)
    if readme is not None:
        around_section(readme, SECTION)
    enable_compile_cache()
    found = audit_rules(cases) if out is None else audit_in_parts(cases, out, shard)
    if found is None:
        return
    typer.echo(f"{'rule':36} {'promise':9} {'TV':>8} {'worst':>8} {'tokens':>7}   {cases} cases")
    for row in found.rows:
        typer.echo(
            f"{row.name:36} {row.promise:9} {row.tv:8.1e} {row.worst_tv:8.1e} "
            f"{row.expected_length:7.4f}{'' if row.kept else '   BROKEN'}"
        )
    typer.echo(f"chains of 3: no exact rule brings more than {found.bound:.4f} tokens per round")
    if json_file is not None:
        write_json(json_file, [{**row._asdict(), "kept": row.kept} for row in found.rows])
        typer.echo(f"wrote {json_file}")
    if image is not None:
        from specjax.viz.rules import rule_comparison

        save_figure(rule_comparison(found)[1], image)
        typer.echo(f"wrote {image}")
    if readme is not None:
        shown = picture("total variation against tokens per round", image, readme)
        replace_section(readme, SECTION, [*markdown(found), *shown])
    if not all(row.kept for row in found.rows):
        raise typer.Exit(1)


def audit_in_parts(cases: int, out: Path, shard: str | None) -> "Audit | None":
    """Do a share of the parts; return the findings, or None while other parts are missing."""
    from specjax.audit.rules import audit_part, from_json, join, num_parts, to_json
    from specjax.jobs.parts import Parts, do_parts

    parts = Parts(out, num_parts(cases), {"command": "audit rules", "cases": cases})

    def write(part: int, file: IO[bytes]) -> None:
        file.write(json.dumps(to_json(audit_part(part, cases))).encode())

    left = len(do_parts(parts, write, shard))
    if left:
        typer.echo(f"{out}: {parts.num_parts - left} of {parts.num_parts} parts")
        return None
    return join([from_json(read_json_object(parts.file(i))) for i in range(parts.num_parts)])


def markdown(found: "Audit") -> list[str]:
    """Return the rows as lines of Markdown."""
    rows = [
        (
            row.name,
            row.promise,
            f"{row.tv:.1e}",
            f"{row.worst_tv:.1e}",
            f"{row.expected_length:.3f}",
        )
        for row in found.rows
    ]
    measured = (
        f"{found.rows[0].cases} random pairs of distributions; chains of 3 draft tokens, "
        "trees where it says siblings. On these chains no exact rule brings more than "
        f"{found.bound:.3f} tokens."
    )
    return [*table(HEADINGS, rows), "", measured]

"""``specjax audit zoo``, ``alarms``, ``cuts``: broken verifiers, sound ones, cuts of drafts."""

import inspect
import time
from pathlib import Path
from typing import Annotated

import typer

from specjax.cli.errors import plainly
from specjax.host.markdown import around_section, replace_section, table

HEADINGS = ("broken verifier", "report", "convicted by", "TV", "texts for `audit server`", "s")


@plainly
def zoo(
    readme: Annotated[
        Path | None, typer.Option(help="A Markdown file: rewrite its section 'zoo'.")
    ] = None,
) -> None:
    """Convict every broken verifier of the zoo, and acquit the sound one beside it."""
    from specjax.audit.specimen import examine
    from specjax.audit.zoo import ZOO
    from specjax.host.compile_cache import enable_compile_cache

    if readme is not None:
        around_section(readme, "zoo")
    enable_compile_cache()
    rows, missed = [], False
    for keeper in ZOO:
        start, specimen = time.perf_counter(), keeper()
        found = examine(specimen)
        seconds = time.perf_counter() - start
        wrong = not found.by or examine(specimen, sound=True).by
        missed |= bool(wrong)
        needed = str(found.samples) if found.samples else "one text does not tell"
        typer.echo(
            f"{keeper.__name__:40} {found.by or 'MISSED':34} {found.tv:7.1e} {needed:>9} "
            f"{seconds:6.1f}{'   WRONG' if wrong else ''}"
        )
        report = report_of(inspect.getdoc(keeper) or "")
        kind = "" if specimen.drafter is None else ", over two rounds"
        rows.append((
            keeper.__name__.replace("_", " "), report, found.by + kind, f"{found.tv:.1e}", needed,
            f"{seconds:.1f}",
        ))  # fmt: skip
    if readme is not None:
        replace_section(readme, "zoo", table(HEADINGS, rows))
    if missed:
        raise typer.Exit(1)


def report_of(doc: str) -> str:
    """Return a link to the report that a specimen's docstring names, or what it says."""
    _, _, report = doc.partition("Report: ")
    report = " ".join(report.split()).replace("``", "`")
    if not report.startswith("https://github.com/"):
        return report
    owner, name, _, number = report.removeprefix("https://github.com/").split("/")
    return f"[{owner}/{name} {number}]({report})"


@plainly
def alarms(
    runs: Annotated[int, typer.Option(min=1, help="Audits of each rule, in either way.")] = 200,
    alpha: Annotated[float, typer.Option(help="Probability of a false alarm of one audit.")] = 0.01,
    readme: Annotated[
        Path | None, typer.Option(help="A Markdown file: rewrite its section 'alarms'.")
    ] = None,
) -> None:
    """Count how often the test of ``audit server`` flags a shipped rule, which is sound.

    Exit code 1: more often than ``alpha`` allows.
    """
    from specjax.audit.false_alarms import count_alarms
    from specjax.host.compile_cache import enable_compile_cache

    if readme is not None:
        around_section(readme, "alarms")
    enable_compile_cache()
    found = count_alarms(runs, alpha)
    rows = [(one.rule, one.against, str(one.runs), str(one.alarms), str(one.most)) for one in found]
    for row in rows:
        typer.echo("{:16} against {:20} {:>5} audits {:>4} alarms, at most {}".format(*row))
    total = sum(one.alarms for one in found)
    said = f"{total} alarms in {runs * len(found)} audits at {alpha:.3g}."
    typer.echo(said)
    if readme is not None:
        headings = "rule", "against", "audits", "alarms", "most allowed"
        replace_section(readme, "alarms", [*table(headings, rows), "", said])
    if not all(one.kept for one in found):
        raise typer.Exit(1)


@plainly
def cuts() -> None:
    """Prove or refute that rules for cutting drafts (adaptive verification) are lossless."""
    from specjax.audit.cut import CUTS, certify_cut
    from specjax.host.compile_cache import enable_compile_cache

    enable_compile_cache()
    for name, cut in CUTS.items():
        found = certify_cut(cut)
        verdict = "lossless" if found.lossless else f"NOT lossless, e.g. drafts {found.peek}"
        typer.echo(
            f"cut {name:36} TV {found.tv:7.1e}  {found.kept:.2f} of 2 verified  "
            f"{found.expected_length:.3f} tokens  {verdict}"
        )

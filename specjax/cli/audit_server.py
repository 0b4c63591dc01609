"""``specjax audit server``: compare a running server's distribution with a reference."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specjax.cli.errors import plainly

if TYPE_CHECKING:
    from specjax.audit.server import Plan, Report

MISSING = "auditing a server needs httpx: pip install 'specjax[ab]'"


@plainly
def server(
    base_url: Annotated[str, typer.Option(help="The server to audit: http://HOST:PORT.")],
    reference_url: Annotated[
        str | None,
        typer.Option(help="The same model without speculation. Else: the server's own logprobs."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Its name, if the server has many.")] = None,
    reference_model: Annotated[str | None, typer.Option(help="Its name on the reference.")] = None,
    prompt: Annotated[list[str] | None, typer.Option(help="May be repeated; else four.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0.7 by default; without a reference 1.")
    ] = None,
    tokens: Annotated[
        int, typer.Option(help="First tokens whose joint distribution is compared.")
    ] = 3,
    tv: Annotated[float, typer.Option(help="Total variation to be found ...")] = 0.05,
    power: Annotated[float, typer.Option(help="... with this probability.")] = 0.9,
    alpha: Annotated[float, typer.Option(help="Probability of a false alarm.")] = 0.01,
    cells: Annotated[int, typer.Option(help="Cells left after merging rare texts.")] = 24,
    batch: Annotated[int, typer.Option(help="Completions per request.")] = 128,
    concurrency: Annotated[int, typer.Option(help="Requests side by side.")] = 2,
    greedy_tokens: Annotated[int, typer.Option(help="Length of the greedy texts.")] = 64,
    near: Annotated[float, typer.Option(help="Nats that rounding may bridge.")] = 0.1,
    extra: Annotated[str, typer.Option(help="JSON for every request: top_k and so on.")] = "{}",
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.")] = 300.0,
    looks: Annotated[
        int, typer.Option(help="Ask so often for the verdict, and end once it differs.")
    ] = 1,
    seed: Annotated[int | None, typer.Option(help="Of the first text; each has its own.")] = None,
    check: Annotated[
        list[str] | None,
        typer.Option(
            help="Further checks: streaming, company, logprobs, grammar, tools, or all. "
            "May be repeated."
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the verdicts and all draws here.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page here, to attach to an issue.")
    ] = None,
) -> None:
    """Compare the distribution of a running server's texts with the one without speculation.

    Exit code 1: it differs, a greedy text differs by more than rounding, or a check fails.
    """
    try:
        from specjax.audit.client import Server
    except ModuleNotFoundError as error:
        raise ImportError(MISSING if error.name == "httpx" else str(error)) from None
    from specjax.audit.server import PROMPTS, Plan, collect, judge
    from specjax.engine.progress import bar
    from specjax.host.files import parse_json_object, write_atomically, write_json
    from specjax.host.machine import command
    from specjax.viz.audit_server import audit_page

    if temperature is None:
        temperature = 0.7 if reference_url else 1.0
    plan = Plan(
        prompts=prompt or PROMPTS,
        temperature=temperature,
        tokens=tokens,
        tv=tv,
        power=power,
        alpha=alpha,
        cells=cells,
        batch=batch,
        concurrency=concurrency,
        greedy_tokens=greedy_tokens,
        near=near,
        looks=looks,
        seed=seed,
    )
    common = {"api_key": api_key, "extra": parse_json_object(extra, "--extra"), "timeout": timeout}
    base = Server(base_url, model, **common)
    reference = reference_url and Server(reference_url, reference_model or model, **common)
    with bar("drawing texts") as on_progress:
        collected = collect(base, reference or None, plan, on_progress, check or ())
    report = judge(collected)
    show(report, plan, alone=reference is None, look=collected["looks"])
    if json_file is not None:
        verdicts = {
            "findings": [found._asdict() for found in report.findings],
            "greedy": [one._asdict() for one in report.greedy],
            "checks": [one._asdict() for one in report.checks],
            "passed": report.passed,
        }
        told = {"command": command(), **verdicts, "collected": collected}
        write_json(json_file, told, indent=None)
        typer.echo(f"wrote {json_file}")
    if html is not None:
        with write_atomically(html) as file:
            file.write(audit_page(collected, report, command()).encode())
        typer.echo(f"wrote {html}")
    if not report.passed:
        raise typer.Exit(1)


def show(report: "Report", plan: "Plan", *, alone: bool, look: int) -> None:
    """Print a line per prompt and kind of check, and the verdict after the last look."""
    typer.echo(
        f"first {plan.tokens} tokens at temperature {plan.temperature:g}, "
        f"{report.findings[0].draws} draws per prompt and server, against "
        + ("the server's own logprobs" if alone else "the reference")
    )
    typer.echo(f"{'prompt':30} {'cells':>5} {'TV':>7} {'by chance':>9} {'p (Holm)':>9}")
    for found in report.findings:
        typer.echo(
            f"{found.prompt[-30:]!r:.30} {found.cells:5} {found.tv:7.4f} {found.expected_tv:9.4f} "
            f"{found.adjusted_p:9.2g}   {'DIFFERS' if found.differs else 'same'}"
        )
    for one in report.greedy:
        typer.echo(f"greedy, {one.equal} of {one.tokens} tokens: {one.verdict}")
    for one in report.checks:
        said = "" if one.passed else "   FAILED"
        typer.echo(f"{one.name}, {one.prompt[-30:]!r:.30}: {one.verdict}{said}")
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if any(found.differs for found in report.findings):
        when = f", seen at look {look} of {plan.looks}" if plan.looks > 1 else ""
        typer.echo(f"NOT EXACT: the distribution differs (false alarms: {plan.alpha:.0%}){when}")
    else:
        typer.echo(
            f"no difference found; one of TV {plan.tv:g} on merged cells would have been, "
            f"in any one prompt, with probability {plan.power:.0%}"
        )

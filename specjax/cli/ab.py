"""``specjax ab``: run, replay, merge and import comparisons."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specjax.cli.errors import plainly
from specjax.host.machine import command
from specjax.host.markdown import around_section, picture, replace_section
from specjax.measure.objectives import parse_objectives

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specjax.ab import arms as arming
    from specjax.ab import run as running
    from specjax.ab.findings import Findings
    from specjax.ab.questions import Dataset
    from specjax.ab.records import Log

SECTION = "ab"  # of a README
ab = typer.Typer(help="Compare engines and servers on the same prompts.", no_args_is_help=True)
MISSING = "comparing needs aiohttp, httpx and prometheus-client: pip install 'specjax[ab]'"
ARGUMENTS = "--arm-arguments plain='--dtype float32'"
Out = Annotated[Path, typer.Option("--out", help="Folder for the log and the reports.")]


@ab.command()
@plainly
def run(
    arm: Annotated[
        list[str],
        typer.Option(
            help="LABEL=URL, or LABEL=KIND:CONFIG with KIND specjax (in process), serve or vllm "
            "(started here) and CONFIG a speculative_config. The first arm is the base."
        ),
    ],
    out: Out,
    dataset: Annotated[
        list[str] | None, typer.Option(help="Local file, may be repeated; else 'bundled'.")
    ] = None,
    concurrency: Annotated[list[int] | None, typer.Option(help="Requests at a time.")] = None,
    model: Annotated[str, typer.Option(help="Of arms that are started here.")] = "bundled",
    served_model: Annotated[
        str | None, typer.Option(help="Its name on a URL that serves several.")
    ] = None,
    arm_config: Annotated[
        list[str] | None, typer.Option(help="LABEL=JSON: a URL's config, for the record.")
    ] = None,
    arm_arguments: Annotated[
        list[str] | None,
        typer.Option(
            help="LABEL='--dtype float32 --enforce-eager': further arguments of a serve or vllm "
            "arm, else its defaults."
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=2)] = 128,
    temperature: float = 0.0,
    chat: Annotated[
        bool, typer.Option("--chat", help="/v1/chat/completions, all turns of a prompt.")
    ] = False,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="First prompts of a dataset.")] = None,
    shard: Annotated[
        str | None,
        typer.Option(help="I/N: every N-th prompt from I on, for one of N load generators."),
    ] = None,
    block: Annotated[int, typer.Option(min=0, help="Prompts per turn of an arm; 0: all.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="How often each prompt is asked.")] = 1,
    rate: Annotated[float, typer.Option(help="Open loop: requests per second, Poisson.")] = 0.0,
    width: Annotated[
        float, typer.Option(help="Stop when TPOT gains are known to +- this share; 0: never.")
    ] = 0.0,
    slo: Annotated[
        list[str] | None, typer.Option(help="Objective: tpot=50ms, ttft=2s, e2el=30s.")
    ] = None,
    search: Annotated[
        int, typer.Option(min=0, help="Find the highest concurrency, up to this, within --slo.")
    ] = 0,
    tokenizer: Annotated[
        str | None, typer.Option(help="Model folder: count the texts' tokens again.")
    ] = None,
    extra: Annotated[str, typer.Option(help="JSON for every request: top_p and so on.")] = "{}",
    max_model_len: Annotated[int | None, typer.Option(help="Of servers started here.")] = None,
    seed: int = 0,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.")] = 300.0,
) -> None:
    """Measure arms against the first one. The same command goes on with an interrupted run."""
    try:
        from specjax.ab import arms as arming
        from specjax.ab import run as running
        from specjax.ab.divergence import explain_differences
        from specjax.ab.start import open_arms
    except ModuleNotFoundError as error:
        known = error.name in ("aiohttp", "httpx", "prometheus_client")
        raise ImportError(MISSING if known else str(error)) from None
    from specjax.ab.questions import read_dataset
    from specjax.ab.records import read_log, start_log
    from specjax.bundled import resolve
    from specjax.engine.text.tokenizer import load_tokenizer
    from specjax.host.compile_cache import enable_compile_cache
    from specjax.host.files import parse_json_object

    specs = [arming.parse_arm(one) for one in arm]
    specs = [one._replace(config=named(arm_config).get(one.label, one.config)) for one in specs]
    labels = [one.label for one in specs]
    if len(set(labels)) < len(labels):
        raise ValueError(f"every arm needs a label of its own, got {labels}")
    specs = arming.with_arguments(specs, pairs(arm_arguments, ARGUMENTS))
    datasets = [read_dataset(one) for one in dataset or ["bundled"]]
    if limit is not None:
        datasets = [one._replace(questions=one.questions[:limit]) for one in datasets]
    if shard is not None:
        datasets = [share(one, shard) for one in datasets]
    plan = running.Plan(
        concurrency=tuple(concurrency or (1,)),
        rate=rate,
        block=block,
        rounds=rounds,
        width=width,
        slo=parse_objectives(pairs(slo, "--slo tpot=50ms")) or None,
        most=search,
        seed=seed,
    )
    ask = arming.Ask(
        max_tokens=max_tokens,
        temperature=temperature,
        chat=chat,
        ignore_eos=ignore_eos,
        seed=seed,
        timeout=timeout,
        extra=parse_json_object(extra, "--extra"),
    )
    counts = None if tokenizer is None else load_tokenizer(resolve(tokenizer))
    path = out / "log.jsonl"
    log = running.check_log(path, running.wanted(specs, datasets, ask, plan, shard))
    warn(specs, plan)
    enable_compile_cache()
    opened = open_arms(
        specs,
        ask,
        model=model,
        served_model=served_model,
        api_key=api_key,
        concurrency=max(*plan.levels(), plan.most, 1) if not rate else 32,
        max_model_len=max_model_len,
        show_progress=progress,
    )
    with opened as arms:
        setting = running.Setting(arms, datasets, ask, counts)
        if log is None:
            start_log(path, running.describe(specs, setting, plan, command(), shard))
            log = read_log(path)
        log = running.run(path, log, setting, plan, typer.echo, progress)
        if temperature == 0 and not chat:
            log = explain_differences(path, log, arms, datasets)
    report(log, out)


def share(dataset: "Dataset", shard: str) -> "Dataset":
    """Return one load generator's prompts. Raises ValueError if there are none."""
    from specjax.jobs.folder import parse_share

    first, step = parse_share(shard)
    mine = dataset.questions[first::step]
    if not mine:
        raise ValueError(f"--shard {shard} leaves no prompt of {dataset.name}.")
    return dataset._replace(questions=mine)


def progress(line: str) -> None:
    """Print a line on stderr."""
    typer.echo(line, err=True)


def warn(specs: "Sequence[arming.Spec]", plan: "running.Plan") -> None:
    """Warn of settings that distort the comparison."""
    methods = {one.label: (one.config or {}).get("method") for one in specs}
    if plan.rounds > 1 and "suffix" in methods.values():
        typer.echo(
            "warning: suffix decoding remembers answers; asked again at temperature 0 it accepts "
            "nearly all of them: use --rounds 1 with more prompts",
            err=True,
        )


@ab.command()
@plainly
def replay(
    log: Annotated[Path, typer.Argument(help="log.jsonl of a run.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the reports.")] = None,
    base: Annotated[
        list[str] | None,
        typer.Option(help="Label of an arm that others are compared with; may be repeated."),
    ] = None,
    image: Annotated[
        Path | None, typer.Option("--picture", help="Save the picture of the gains here.")
    ] = None,
    readme: Annotated[
        Path | None, typer.Option(help="A Markdown file: rewrite its section 'ab'.")
    ] = None,
) -> None:
    """Compute everything again from a log, offline.

    An arm is compared with the last --base of its kind before it in the order of the run, and
    with the first --base. Without any, the bases are the first arm and each engine's plain arm.
    """
    from specjax.ab.figures import pictures
    from specjax.ab.records import read_log
    from specjax.ab.tables import markdown
    from specjax.viz.figure import check_picture, save_figure

    if image is not None:
        check_picture(image)
    if readme is not None:
        around_section(readme, SECTION)
    found = report(read_log(log), out, base or ())
    if image is not None:
        first = next(pictures(found), None)
        if first is None:
            raise ValueError(f"{log}: nothing to draw: it compares no arm with a base yet.")
        save_figure(first, image)
        typer.echo(f"wrote {image}")
    if readme is not None:
        shown = picture("gains over each arm's base", image, readme)
        replace_section(readme, SECTION, [*markdown(found), *shown])


@ab.command("import")
@plainly
def bring(
    arm: Annotated[
        list[str],
        typer.Option(help="LABEL=PATH: AISBench's work folder, or vllm bench serve's JSON."),
    ],
    out: Out,
) -> None:
    """Compare results of AISBench or `vllm bench serve --save-detailed`."""
    from specjax.ab.imports import import_results
    from specjax.ab.records import append, read_log, start_log

    found = pairs(arm, "--arm plain=outputs/20260101_000000")
    manifest, units = import_results([(label, Path(path)) for label, path in found])
    path = out / "log.jsonl"
    start_log(path, manifest)
    for unit in units:
        append(path, unit)
    report(read_log(path), out)


@ab.command()
@plainly
def merge(
    logs: Annotated[list[Path], typer.Argument(help="log.jsonl of each load generator.")],
    out: Out,
) -> None:
    """Join the logs of several load generators, which each measured all arms (run --shard I/N).

    Loads and tokens per second are then those of one load generator, on average.
    """
    from specjax.ab.merge import merge_logs
    from specjax.ab.records import append, start_log

    found, path = merge_logs(logs), out / "log.jsonl"
    start_log(path, found.manifest)
    for one in (*found.units, *found.divergences):
        append(path, one)
    typer.echo(
        f"{len(logs)} load generators; load and tokens per second are those of one, on average"
    )
    report(found, out)


@ab.command()
@plainly
def plan(
    name: Annotated[str, typer.Argument(help="ascend-suffix: the guide's benchmark.")],
    out: Out,
    dataset: Annotated[list[str], typer.Option(help="NAME=PATH, one for each of the guide's.")],
    model: Annotated[str, typer.Option(help="Path of Qwen3-32B on that machine.")] = (
        "/data/Qwen3-32B"
    ),
) -> None:
    """Write the guide's servers and the comparison as scripts, to run on an Ascend machine."""
    from specjax.ab.ascend import plan_ascend_suffix

    if name != "ascend-suffix":
        raise ValueError(f"unknown plan {name!r}; there is: ascend-suffix")
    given = dict(pairs(dataset, "--dataset GSM8K=/data/gsm8k.jsonl"))
    for path in plan_ascend_suffix(out, model, given):
        typer.echo(f"wrote {path}")


def report(log: "Log", out: Path | None, bases: "Sequence[str]" = ()) -> "Findings":
    """Print a log's results, write the reports to ``out``, and return the results."""
    from rich.console import Console

    from specjax.ab.findings import find
    from specjax.ab.report import sentences, write_reports
    from specjax.ab.tables import table

    found = find(log, bases)
    console = Console()
    console.width = max(console.width, 160) if not console.is_terminal else console.width
    console.print(table(found))
    for sentence in sentences(found):
        typer.echo(sentence)
    if out is not None:
        write_reports(found, out, typer.echo)
    return found


def pairs(given: list[str] | None, example: str) -> list[tuple[str, str]]:
    """Return (name, value) of NAME=VALUE options. Raises ValueError, with an example, else."""
    found = []
    for one in given or []:
        name, equals, value = one.partition("=")
        if not (name and equals and value):
            raise ValueError(f"expected NAME=VALUE, got {one!r}; for example {example}")
        found.append((name, value))
    return found


def named(given: list[str] | None) -> dict[str, dict]:
    """Return the configs of --arm-config by label. Raises ValueError for another form."""
    example = '--arm-config ngram=\'{"method": "ngram"}\''
    try:
        return {name: json.loads(value) for name, value in pairs(given, example)}
    except ValueError as error:
        raise ValueError(f"--arm-config is LABEL=JSON ({error}); for example {example}") from None

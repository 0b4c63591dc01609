"""``specjax generate --out``, ``specjax merge`` and ``specjax plan-job``: files of many prompts."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from specjax.cli.errors import plainly
from specjax.jobs.folder import Job

WITHOUT_EFFECT_ON_TEXT = {"max_num_seqs"}  # of LLM's options: law 1


def complete_shards(
    model: str,
    options: Mapping[str, Any],
    sampling: Mapping[str, Any],
    prompt_file: Path,
    out: Path,
    *,
    shard_size: int,
    share: str | None,
    engine: str,
    num_actors: int,
    ray_address: str | None,
) -> None:
    """Complete a prompt file's shards that are missing in ``out``, and say how fast.

    Raises:
        ValueError: the folder holds another job, or an option is wrong; nothing has been run then.
    """
    from specjax import __version__
    from specjax.bundled import resolve
    from specjax.engine.options.sampling_params import SamplingParams
    from specjax.host.group import from_first
    from specjax.jobs.folder import missing, open_folder, parse_share
    from specjax.jobs.prompt_file import read_file
    from specjax.jobs.worker import Setting
    from specjax.weights.fingerprint import fingerprint

    if prompt_file.suffix != ".jsonl":
        raise ValueError(f"--out needs --prompt-file with JSON lines (.jsonl), got {prompt_file}.")
    if engine not in ("local", "ray"):
        raise ValueError(f"--engine must be local or ray, got {engine!r}.")
    mine = parse_share(share or "0/1")
    params = SamplingParams(**sampling)
    file = read_file(prompt_file, shard_size)
    told = {name: value for name, value in options.items() if name not in WITHOUT_EFFECT_ON_TEXT}
    job = Job(
        version=__version__,
        model=fingerprint(resolve(model)),
        prompts=file.sha256,
        num_prompts=file.num_prompts,
        shard_size=shard_size,
        samples=params.n,
        options={"model": model, **told, **sampling},
    )

    def begin() -> list[int]:
        open_folder(out, job)
        return missing(out, job, mine)

    shards = from_first(begin)
    whole = len(range(mine[0], job.num_shards, mine[1]))
    if len(shards) < whole:
        typer.echo(f"{whole - len(shards)} of {whole} shards are in {out} already", err=True)
    setting = Setting(model, dict(options), dict(sampling), file, out, job.key)
    start, tokens, prompts = time.monotonic(), 0, 0
    for number, (worker, done) in enumerate(
        run_shards(setting, shards, engine, num_actors, ray_address), start=1
    ):
        tokens, prompts = tokens + done.num_tokens, prompts + done.num_prompts
        typer.echo(
            f"shard {done.shard} ({number} of {len(shards)}){worker}: {done.num_prompts} prompts, "
            f"{done.num_tokens / done.seconds:.0f} tokens/s; in all {prompts} prompts, "
            f"{tokens / (time.monotonic() - start):.0f} tokens/s",
            err=True,
        )
    left = len(missing(out, job))
    rest = f"{left} shards are missing" if left else f"complete: specjax merge {out}"
    typer.echo(f"{out}: {job.num_shards - left} of {job.num_shards} shards, {rest}")


def run_shards(
    setting: Any, shards: Sequence[int], engine: str, num_actors: int, address: str | None
) -> Iterator[tuple[str, Any]]:
    """Yield (the worker's name, what it did) for each shard as it is completed."""
    from specjax.jobs.on_ray import complete_on_ray
    from specjax.jobs.worker import Worker

    if engine == "ray":
        for actor, done in complete_on_ray(setting, shards, num_actors, address):
            yield f" by actor {actor}", done
    elif shards:
        worker = Worker(setting)
        for shard in shards:
            yield "", worker.complete(shard)


@plainly
def merge(
    folder: Annotated[Path, typer.Argument(help="What --out of specjax generate named.")],
    out: Annotated[Path | None, typer.Option(help="Default: merged.jsonl in the folder.")] = None,
) -> None:
    """Join a job's shards into one file, and check that every prompt is there exactly once."""
    from specjax.jobs.folder import merge as join

    merged = join(folder, out)
    typer.echo(
        f"{merged.path}: {merged.num_prompts} prompts, {merged.num_completions} completions, "
        f"SHA-256 {merged.sha256}"
    )


@plainly
def plan_job(
    scheduler: Annotated[str, typer.Argument(help="slurm or kubernetes.")],
    command: Annotated[
        list[str],
        typer.Argument(help="After --: generate, extract or audit rules with its options."),
    ],
    num_tasks: Annotated[int, typer.Option(help="Tasks or pods that share the work.")] = 8,
    cpus: Annotated[int, typer.Option(help="CPUs of each.")] = 8,
    name: str = "specjax",
    image: Annotated[str, typer.Option(help="Of the pods.")] = "specjax:latest",
    volume: Annotated[str, typer.Option(help="Where pods see the shared files.")] = "/files",
    claim: Annotated[str, typer.Option(help="Their PersistentVolumeClaim.")] = "specjax-files",
) -> None:
    """Print the file that shares a command's work out over a scheduler's tasks.

    Example: specjax plan-job slurm --num-tasks 64 -- generate --prompt-file p.jsonl --out done
    """
    from specjax.jobs.recipes import recipe

    facts = {"name": name, "cpus": cpus, "image": image, "volume": volume, "claim": claim}
    typer.echo(recipe(scheduler, command, num_tasks, **facts), nl=False)

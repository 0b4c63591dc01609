"""The ``specjax`` command: its options, and the functions that its commands call.

Everything heavy is imported inside the commands, so that ``--help`` is immediate.
"""

import gc
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from specjax import __version__
from specjax.cli import INTERRUPTED, leave
from specjax.cli.ab import ab
from specjax.cli.audit import audit
from specjax.cli.bench import bench
from specjax.cli.corpus import corpus
from specjax.cli.engine_options import EngineCommand, with_engine_options
from specjax.cli.errors import DEBUG, plainly
from specjax.cli.explain import explain
from specjax.cli.explore import explore
from specjax.cli.extract import extract
from specjax.cli.group_options import with_group_options
from specjax.cli.jobs import merge, plan_job
from specjax.cli.lower import certify, lower
from specjax.cli.oracle import oracle
from specjax.cli.serve import serve
from specjax.cli.theory_serving import theory

# Objects between two searches for garbage, for Python's 700: importing and tracing make a million
# that stay, and searching them was a tenth of a server's start.
GARBAGE = 50_000
FORWARDED = {"ignore_unknown_options": True, "help_option_names": []}

app = typer.Typer(
    help="Exact speculative decoding in JAX.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(ab, name="ab")
app.add_typer(audit, name="audit")
app.add_typer(bench, name="bench")
app.add_typer(corpus, name="corpus")
app.add_typer(oracle, name="oracle")
app.add_typer(theory, name="theory")
app.command()(explain)
app.command()(explore)
app.command()(extract)
app.command()(merge)
app.command("plan-job")(plan_job)
app.command()(lower)
app.command()(certify)
app.command(cls=EngineCommand)(serve)


def main() -> None:
    """Run the command line."""
    gc.set_threshold(GARBAGE)
    try:
        app(prog_name="specjax")
    except SystemExit as end:
        if end.code == INTERRUPTED:
            leave(INTERRUPTED)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the work is done
        raise


def print_version(wanted: bool) -> bool:
    """Print the version and exit, if ``wanted``."""
    if wanted:
        typer.echo(f"specjax {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=print_version, is_eager=True, help="Print specjax's version."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Exact speculative decoding in JAX."""
    if debug:
        os.environ[DEBUG] = "1"


@app.command()
@plainly
def demo(
    out: Annotated[
        Path, typer.Option(help="Where to save the picture; its folder must exist.")
    ] = Path("specjax_demo.png"),
    readme: Annotated[
        Path | None,
        typer.Option(help="A Markdown file beside or above it: rewrite its section 'demo'."),
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Of ngram, suffix, draft_model, eagle, ...: some, with commas.")
    ] = "",
) -> None:
    """Complete Python code with the bundled model, plainly and with drafters, and compare."""
    from specjax.bench.demo import pick
    from specjax.cli.demo import run_demo
    from specjax.host.compile_cache import enable_compile_cache

    enable_compile_cache()
    arms = pick(methods.split(",") if methods else ())
    if not run_demo(out, arms=arms, readme=readme):
        raise typer.Exit(1)


@app.command(cls=EngineCommand)
@plainly
@with_group_options
@with_engine_options
def generate(
    model: Annotated[str, typer.Option(help="Checkpoint folder, or 'bundled'.")] = "bundled",
    prompt: Annotated[list[str] | None, typer.Option(help="May be repeated.")] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option(help="A text file: one prompt. A .jsonl file: one per line. '-': stdin."),
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Show tokens as they come.")] = False,
    json_lines: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per completion.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Log every round here, as JSON lines (specjax explain).")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Output tokens per completion.")] = 128,
    temperature: Annotated[float, typer.Option(help="0: the most likely token.")] = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    seed: Annotated[int | None, typer.Option(help="Same seed, same text.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop string; may be repeated.")] = None,
    n: Annotated[int, typer.Option("--n", "-n", help="Completions per prompt.")] = 1,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="A folder: a file per shard of a .jsonl prompt file; resumable."),
    ] = None,
    shard_size: Annotated[int, typer.Option(help="Prompts per shard, with --out.")] = 512,
    shard: Annotated[
        str | None, typer.Option(help="I/N: do every N-th shard from I on, with --out.")
    ] = None,
    engine: Annotated[str, typer.Option(help="With --out: local, or ray.")] = "local",
    num_actors: Annotated[int, typer.Option(help="Engines under --engine ray.")] = 2,
    ray_address: Annotated[
        str | None, typer.Option(help="A Ray cluster's address; default: start one here.")
    ] = None,
    *,
    options: dict[str, Any],
) -> None:
    """Complete prompts. Completions go to stdout, everything else to stderr.

    With --out, a .jsonl file of any length is completed shard by shard into a folder. Killed at
    any moment, the same command goes on; several may work on one folder. specjax merge joins
    the shards.

    Options that only vLLM's engine has (--gpu-memory-utilization, --enforce-eager,
    --trust-remote-code, ...) are accepted with one warning; underscores may stand for dashes.
    """
    from specjax.cli.complete import complete, read_prompts
    from specjax.engine.options.sampling_params import SamplingParams

    if n > 1 and temperature == 0:
        raise ValueError(
            f"n must be 1 when using greedy sampling, got {n}: all completions would be the "
            "same; pass --temperature > 0."
        )
    sampling: dict[str, Any] = {
        "n": n,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "seed": seed,
        "stop": stop,
        "ignore_eos": ignore_eos,
    }
    if out is not None:
        from specjax.cli.jobs import complete_shards

        if prompt or prompt_file is None or stream or json_lines or trace:
            raise ValueError(
                "--out completes one --prompt-file: not with --prompt, --stream, --json or --trace."
            )
        complete_shards(
            model,
            options,
            sampling,
            prompt_file,
            out,
            shard_size=shard_size,
            share=shard,
            engine=engine,
            num_actors=num_actors,
            ray_address=ray_address,
        )
        return
    if shard is not None or engine != "local":
        raise ValueError("--shard and --engine share out the shards of --out DIR: pass it.")
    prompts, params = read_prompts(prompt or [], prompt_file), SamplingParams(**sampling)
    complete(model, options, prompts, params, stream=stream, json_lines=json_lines, trace=trace)


@app.command(context_settings=FORWARDED)
@plainly
def train(arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
    """Train small language models and drafting heads (specjax train --help)."""
    from specjax.cli.train_heads import training_app
    from specjax.host.compile_cache import enable_compile_cache

    enable_compile_cache()
    code = training_app()(arguments or [], prog_name="specjax train", standalone_mode=False)
    raise typer.Exit(code or 0)


@app.command()
@plainly
def convert(
    source: Annotated[
        Path, typer.Argument(help="A folder with .bin or .pt weights; with --to, of a head.")
    ],
    destination: Annotated[Path, typer.Argument(help="A new folder.")],
    to: Annotated[
        str | None, typer.Option(help="A head's layout: speculators, or vllm (its own).")
    ] = None,
    verifier: Annotated[
        str | None, typer.Option(help="With --to speculators: the head's target.")
    ] = None,
    num_speculative_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --to speculators: its K; else its block's, or 5.",
        ),
    ] = None,
) -> None:
    """Turn pickled weights into safetensors (needs specjax\\[bridge]), or a head's layout."""
    from specjax.weights import convert as weights

    if to is not None:
        from specjax.bundled import resolve
        from specjax.engine.options.methods import infer_method
        from specjax.weights.convert_head import convert_head

        kind, head = infer_method(str(source)), resolve(source)
        number = num_speculative_tokens
        typer.echo(f"wrote {convert_head(head, destination, to, kind, verifier, number)}")
        return
    typer.echo(f"wrote {weights.convert(source, destination)}")


@app.command()
@plainly
def doctor(
    model: Annotated[
        str | None, typer.Option(help="Say whether and how this checkpoint loads instead.")
    ] = None,
    dtype: str = "auto",
    max_model_len: int | None = None,
    tensor_parallel_size: int = 1,
    enable_expert_parallel: Annotated[
        bool, typer.Option("--enable-expert-parallel", "-ep", help="The option of LLM.")
    ] = False,
    draft: Annotated[
        str | None, typer.Option(help="With --model: which drafter this folder is for it.")
    ] = None,
) -> None:
    """Say what is installed, what is missing, and where things are; or examine a model.

    With --model only config.json, the tokenizer and the headers of weight files are read.
    """
    from specjax.cli.doctor import examine

    if model is None:
        if not examine(typer.echo):
            raise typer.Exit(1)
        return
    from specjax.cli.doctor_model import examine_model

    if not examine_model(
        model,
        typer.echo,
        dtype=dtype,
        max_model_len=max_model_len,
        tensor_parallel_size=tensor_parallel_size,
        enable_expert_parallel=enable_expert_parallel,
        draft=draft,
    ):
        raise typer.Exit(1)


if __name__ == "__main__":
    sys.exit(main())

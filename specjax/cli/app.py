"""The command line: parse, call, and say in one line what went wrong.

Everything heavy is imported inside the commands, so that ``--help`` is immediate.
"""

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
from specjax.cli.extract import extract
from specjax.cli.lower import certify, lower
from specjax.cli.oracle import oracle
from specjax.cli.serve import serve
from specjax.cli.theory import theory

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
app.command()(extract)
app.command()(lower)
app.command()(certify)
app.command(cls=EngineCommand)(serve)


def main() -> None:
    """Run the command line."""
    try:
        app(prog_name="specjax")
    except SystemExit as end:
        if end.code == INTERRUPTED:
            leave(INTERRUPTED)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done but farewells
        raise


def say_version(wanted: bool) -> bool:
    """Print the version and leave, if it is wanted."""
    if wanted:
        typer.echo(f"specjax {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=say_version, is_eager=True, help="Print specjax's version."
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
) -> None:
    """Complete Python code with the bundled model, plainly and with drafters, and compare."""
    from specjax.cli.demo import run_demo
    from specjax.compile_cache import enable_compile_cache

    enable_compile_cache()
    if not run_demo(out, readme=readme):
        raise typer.Exit(1)


@app.command(cls=EngineCommand)
@plainly
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
    *,
    options: dict[str, Any],
) -> None:
    """Complete prompts. Completions go to stdout, everything else to stderr.

    Options that only vLLM's engine has (--gpu-memory-utilization, --enforce-eager,
    --trust-remote-code, ...) are accepted with one warning; underscores may stand for dashes.
    """
    from specjax.cli.complete import complete, read_prompts
    from specjax.engine.params import SamplingParams

    prompts = read_prompts(prompt or [], prompt_file)
    if n > 1 and temperature == 0:
        raise ValueError(
            f"n must be 1 when using greedy sampling, got {n}: all completions would be the "
            "same; pass --temperature > 0."
        )
    sampling = SamplingParams(
        n=n,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        stop=stop,
        ignore_eos=ignore_eos,
    )
    complete(model, options, prompts, sampling, stream=stream, json_lines=json_lines, trace=trace)


@app.command(context_settings=FORWARDED)
@plainly
def train(arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
    """Train small language models and drafting heads (specjax train --help)."""
    from specjax.compile_cache import enable_compile_cache
    from specjax.train.command import lm
    from specjax.train.head_command import COMMANDS, head_command, shards

    training = typer.Typer(
        help="Train small models on this machine.", no_args_is_help=True, add_completion=False
    )
    training.command("lm")(plainly(lm))
    training.command("shards")(plainly(shards))
    for name, kind in COMMANDS.items():
        training.command(name)(plainly(head_command(kind)))
    enable_compile_cache()
    code = training(arguments or [], prog_name="specjax train", standalone_mode=False)
    raise typer.Exit(code or 0)


@app.command()
@plainly
def convert(
    source: Annotated[Path, typer.Argument(help="A folder with .bin or .pt weights.")],
    destination: Annotated[Path, typer.Argument(help="A new folder.")],
) -> None:
    """Turn PyTorch's pickled weights into safetensors (needs specjax\\[bridge])."""
    from specjax.weights import convert as weights

    typer.echo(f"wrote {weights.convert(source, destination)}")


@app.command()
@plainly
def doctor() -> None:
    """Say what is installed, what is missing, and where things are."""
    from specjax.cli.doctor import examine

    if not examine(typer.echo):
        raise typer.Exit(1)


if __name__ == "__main__":
    sys.exit(main())

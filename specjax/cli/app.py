"""The command line: parse, call, and say in one line what went wrong.

Everything heavy is imported inside the commands, so that ``--help`` is immediate.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand

from specjax import __version__
from specjax.cli import INTERRUPTED, leave
from specjax.cli.audit import audit
from specjax.cli.bench import bench
from specjax.cli.errors import DEBUG, plainly
from specjax.cli.explain import explain
from specjax.cli.extract import extract
from specjax.cli.lower import certify, lower
from specjax.cli.oracle import oracle
from specjax.cli.theory import theory
from specjax.engine.legacy import ENGINE_ONLY

FORWARDED = {"ignore_unknown_options": True, "help_option_names": []}

app = typer.Typer(
    help="Exact speculative decoding in JAX.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(audit, name="audit")
app.add_typer(bench, name="bench")
app.add_typer(oracle, name="oracle")
app.add_typer(theory, name="theory")
app.command()(explain)
app.command()(extract)
app.command()(lower)
app.command()(certify)


def main() -> None:
    """Run the command line."""
    try:
        app(prog_name="specjax")
    except SystemExit as end:
        if end.code == INTERRUPTED:
            leave(INTERRUPTED)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done but farewells
        raise


class EngineCommand(TyperCommand):
    """A command that takes vLLM's spellings.

    Underscores may stand for dashes, and options that mean something only to vLLM's engine
    reach the command by name, without their values, as ``--engine-only NAME``.
    """

    def parse_args(self, ctx, args):
        """Set vLLM's own options aside and parse the rest."""
        known = {name for param in self.params for name in (*param.opts, *param.secondary_opts)}
        args, inert = set_aside(args, known)
        return super().parse_args(ctx, [*args, *(f"--engine-only={name}" for name in inert)])


def set_aside(args: Sequence[str], known: set[str]) -> tuple[list[str], list[str]]:
    """Split arguments into those for us, spelt with dashes, and vLLM's engine-only options."""
    kept, inert, waiting = [], [], list(args)
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.partition("=")
        dashed = name.replace("_", "-")
        option = dashed.removeprefix("--").removeprefix("no-").replace("-", "_")
        if name.startswith("--") and dashed in known:
            kept.append(dashed + equals + value)
        elif name.startswith("--") and option in ENGINE_ONLY:
            inert.append(option)
            if not equals and waiting and not waiting[0].startswith("-"):
                waiting.pop(0)
        else:
            kept.append(word)
    return kept, inert


def legacy(name: str, what: str) -> str:
    """Write the help of an older spelling of an option in --speculative-config."""
    return (
        f"Older spelling of {name!r} in --speculative-config: {what.replace('[', chr(92) + '[')}."
    )


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
def generate(
    model: Annotated[str, typer.Option(help="Checkpoint folder, or 'bundled'.")] = "bundled",
    speculative_config: Annotated[
        str | None,
        typer.Option("--speculative-config", "-sc", help="How to draft: vLLM's options, as JSON."),
    ] = None,
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
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    tokenizer: Annotated[str | None, typer.Option(help="Another tokenizer's folder.")] = None,
    max_model_len: int | None = None,
    max_num_seqs: Annotated[int, typer.Option(help="Requests side by side.")] = 8,
    device: Annotated[str, typer.Option(help="auto, cpu, gpu, tpu, npu or torch-cpu.")] = "auto",
    tensor_parallel_size: Annotated[
        int, typer.Option("--tensor-parallel-size", "-tp", help="Devices that share the weights.")
    ] = 1,
    quantization: Annotated[str | None, typer.Option(hidden=True)] = None,
    speculative_model: Annotated[
        str | None,
        typer.Option(help=legacy("model", "a draft checkpoint's folder, or '[ngram]'")),
    ] = None,
    num_speculative_tokens: Annotated[
        int | None, typer.Option(help=legacy("num_speculative_tokens", "tokens drafted per round"))
    ] = None,
    speculative_method: Annotated[
        str | None, typer.Option(help=legacy("method", "how to draft"))
    ] = None,
    ngram_prompt_lookup_max: Annotated[
        int | None, typer.Option(help=legacy("prompt_lookup_max", "longest n-gram looked up"))
    ] = None,
    ngram_prompt_lookup_min: Annotated[
        int | None, typer.Option(help=legacy("prompt_lookup_min", "shortest n-gram looked up"))
    ] = None,
    speculative_draft_tensor_parallel_size: Annotated[
        int | None,
        typer.Option(help=legacy("draft_tensor_parallel_size", "devices that share the draft")),
    ] = None,
    speculative_max_model_len: Annotated[
        int | None, typer.Option(help=legacy("max_model_len", "the draft's longest context"))
    ] = None,
    speculative_model_quantization: Annotated[str | None, typer.Option(hidden=True)] = None,
    engine_only: Annotated[list[str] | None, typer.Option(hidden=True)] = None,
) -> None:
    """Complete prompts. Completions go to stdout, everything else to stderr.

    Options that only vLLM's engine has (--gpu-memory-utilization, --enforce-eager,
    --trust-remote-code, ...) are accepted with one warning; underscores may stand for dashes.
    """
    from specjax.cli.complete import complete, parse_config, read_prompts
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
    older = {
        "speculative_model": speculative_model,
        "num_speculative_tokens": num_speculative_tokens,
        "speculative_method": speculative_method,
        "ngram_prompt_lookup_max": ngram_prompt_lookup_max,
        "ngram_prompt_lookup_min": ngram_prompt_lookup_min,
        "speculative_draft_tensor_parallel_size": speculative_draft_tensor_parallel_size,
        "speculative_max_model_len": speculative_max_model_len,
        "speculative_model_quantization": speculative_model_quantization,
    }
    older = {name: value for name, value in older.items() if value is not None}
    if older and speculative_config is not None:
        raise ValueError(
            f"--speculative-config and its legacy forms {sorted(older)} exclude each other."
        )
    options = {
        "speculative_config": None
        if speculative_config is None
        else parse_config(speculative_config),
        "dtype": dtype,
        "tokenizer": tokenizer,
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "device": device,
        "tensor_parallel_size": tensor_parallel_size,
        "quantization": quantization,
        **older,
        **dict.fromkeys(engine_only or (), True),
    }
    complete(model, options, prompts, sampling, stream=stream, json_lines=json_lines, trace=trace)


@app.command(context_settings=FORWARDED)
@plainly
def train(arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
    """Train a small language model (specjax train lm --help)."""
    from specjax.compile_cache import enable_compile_cache
    from specjax.train.command import lm

    training = typer.Typer(
        help="Train small models on this machine.", no_args_is_help=True, add_completion=False
    )
    training.callback()(lambda: None)  # keeps `lm` a command of its own
    training.command("lm")(plainly(lm))
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

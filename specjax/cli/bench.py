"""``specjax bench``: a command for each benchmark; without one, a list and the short ones."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, no_type_check

import typer

from specjax.cli.errors import plainly


class Dtype(StrEnum):
    """Of what the engine computes in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


MISSING = "loading servers needs aiohttp: pip install 'specjax[ab]'"
bench = typer.Typer(help="Measure this machine.", invoke_without_command=True)
Json = Annotated[Path | None, typer.Option("--json", help="Write the rows here, as JSON.")]
Reps = Annotated[int, typer.Option(min=1, help="Repetitions; medians are reported.")]
Readme = Annotated[
    Path | None, typer.Option(help="A Markdown file: rewrite this benchmark's section there.")
]


@bench.callback()
@plainly
@no_type_check  # what typer passes is the private parent of typer.Context
def every(context: typer.Context) -> None:
    """Measure this machine. Without a command: list all benchmarks and run the short ones."""
    if context.invoked_subcommand is not None:
        return
    for name, command in typer.main.get_group(bench).commands.items():
        typer.echo(f"specjax bench {name:8} {command.help}")
    typer.echo("\nThe short ones, on the bundled model:")
    start()
    step(model="bundled", reps=5)


@bench.command()
@plainly
def start(json_file: Json = None, reps: Reps = 5, readme: Readme = None) -> None:
    """Time a process, and a server, from its start to its first token (a minute)."""
    from specjax.bench.start import bench_start

    bench_start(json_file, reps=reps, readme=readme)


@bench.command()
@plainly
def step(
    model: Annotated[
        str | None,
        typer.Option(help="Checkpoint folder, or 'bundled'; else 88M random weights."),
    ] = None,
    json_file: Json = None,
    reps: Reps = 15,
) -> None:
    """Time one round over 1 to 9 tokens, and check what it writes (one to three minutes)."""
    from specjax.bench.step import bench_step
    from specjax.host.compile_cache import enable_compile_cache

    enable_compile_cache()
    bench_step(json_file, model=model, reps=reps)


@bench.command()
@plainly
def accelerator(json_file: Json = None, reps: Reps = 7) -> None:
    """Time steps of Qwen3-8B's shape on a GPU or TPU, and their share of its memory bandwidth."""
    import jax

    from specjax.bench.accelerator import bench_accelerator
    from specjax.host.compile_cache import enable_compile_cache

    if jax.default_backend() == "cpu":
        raise ValueError(
            "bench accelerator needs a GPU or TPU, and jax sees CPUs alone: use bench step here."
        )
    enable_compile_cache()
    bench_accelerator(json_file, reps=reps)


@bench.command()
@plainly
def hardware(json_file: Json = None, reps: Reps = 9) -> None:
    """Measure this CPU's bandwidth and operations, for --hardware FILE (half a minute)."""
    from specjax.bench.hardware import bench_hardware
    from specjax.host.compile_cache import enable_compile_cache

    enable_compile_cache()
    bench_hardware(json_file, reps=reps)


@bench.command()
@plainly
def verify(json_file: Json = None, reps: Reps = 15) -> None:
    """Time every verification rule at the shapes of real vocabularies (a minute)."""
    from specjax.bench.verify import bench_verify
    from specjax.host.compile_cache import enable_compile_cache

    enable_compile_cache()
    bench_verify(json_file, reps=reps)


@bench.command()
@plainly
def drafters(json_file: Json = None, reps: Reps = 5) -> None:
    """Time drafting without a model, beside vLLM's (five minutes; vLLM: `make oracle`)."""
    from specjax.bench.drafters import bench_drafters
    from specjax.host.compile_cache import enable_compile_cache

    enable_compile_cache()
    bench_drafters(json_file, reps=reps)


@bench.command()
@plainly
def costs(
    model: Annotated[str, typer.Option(help="Checkpoint folder, or 'bundled'.")] = "bundled",
    speculative_config: Annotated[
        str,
        typer.Option("--speculative-config", "-sc", help="How to draft: vLLM's options, as JSON."),
    ] = '{"model": "bundled:draft", "num_speculative_tokens": 4}',
    batch_size: Annotated[int, typer.Option(min=1, help="Requests side by side.")] = 1,
    json_file: Json = None,
    reps: Reps = 15,
) -> None:
    """Time drafting, verifying and plain steps, for specjax explain --measured (a minute)."""
    from specjax.bench.costs import bench_costs
    from specjax.cli.complete import parse_config
    from specjax.host.compile_cache import enable_compile_cache

    enable_compile_cache()
    config = parse_config(speculative_config)
    bench_costs(model, config, json_file, batch_size=batch_size, reps=reps)


@bench.command()
@plainly
def prefix(
    model: Annotated[str, typer.Option(help="Checkpoint folder, or 'bundled'.")] = "bundled",
    speculative_config: Annotated[
        str,
        typer.Option("--speculative-config", "-sc", help="How to draft: vLLM's options, as JSON."),
    ] = '{"method": "ngram", "num_speculative_tokens": 3}',
    json_file: Json = None,
    reps: Reps = 9,
    readme: Readme = None,
) -> None:
    """Time the first token of a chat's second turn, with and without prefix caching (a minute)."""
    from specjax.bench.prefix import bench_prefix
    from specjax.cli.complete import parse_config
    from specjax.host.compile_cache import enable_compile_cache

    enable_compile_cache()
    bench_prefix(model, parse_config(speculative_config), json_file, reps=reps, readme=readme)


@bench.command()
@plainly
def adaptive(
    model: Annotated[str, typer.Option(help="Checkpoint folder, or 'bundled'.")] = "bundled",
    speculative_config: Annotated[
        str,
        typer.Option("--speculative-config", "-sc", help="How to draft, with adaptive, as JSON."),
    ] = '{"method": "ngram", "num_speculative_tokens": 3, "adaptive": "throughput_aware"}',
    phases: Annotated[
        str, typer.Option(help="The numbers of clients, one phase after the other.")
    ] = "1,8,32,4,16,1",
    requests: Annotated[
        int, typer.Option(min=1, help="Of each phase, at most 24 by a client.")
    ] = 96,
    json_file: Json = None,
    reps: Reps = 3,
    max_model_len: Annotated[int, typer.Option(help="Prompt and output together.")] = 256,
    readme: Readme = None,
    image: Annotated[Path | None, typer.Option(help="Draw the phases into this file.")] = None,
) -> None:
    """Adaptive K beside drafting always and never, while the load changes (a quarter hour)."""
    from specjax.bench.adaptive import bench_adaptive
    from specjax.cli.complete import parse_config
    from specjax.host.compile_cache import enable_compile_cache

    enable_compile_cache()
    numbers = [int(one) for one in phases.split(",") if one.strip().isdigit()]
    if len(numbers) != len(phases.split(",")) or not all(numbers):
        raise ValueError(f"--phases needs numbers of clients such as 1,8,2, got {phases!r}.")
    config = dict(parse_config(speculative_config) or {})
    bench_adaptive(
        model,
        config,
        json_file,
        phases=numbers,
        requests=requests,
        reps=reps,
        max_model_len=max_model_len,
        readme=readme,
        image=image,
    )


@bench.command()
@plainly
def structured(
    model: Annotated[str, typer.Option(help="Checkpoint folder, or 'bundled'.")] = "bundled",
    speculative_config: Annotated[
        str,
        typer.Option("--speculative-config", "-sc", help="How to draft: vLLM's options, as JSON."),
    ] = '{"model": "bundled:draft", "num_speculative_tokens": 3}',
    batch_size: Annotated[int, typer.Option(min=1, help="Requests side by side.")] = 8,
    json_file: Json = None,
    reps: Reps = 9,
    readme: Readme = None,
) -> None:
    """Time texts held to a JSON schema beside free ones, plain and drafted (two minutes)."""
    from specjax.bench.structured import bench_structured
    from specjax.cli.complete import parse_config
    from specjax.host.compile_cache import enable_compile_cache

    enable_compile_cache()
    config = parse_config(speculative_config)
    bench_structured(model, config, json_file, batch_size=batch_size, reps=reps, readme=readme)


@bench.command()
@plainly
def trees(
    model: Annotated[str, typer.Option(help="Checkpoint folder, or 'bundled'.")] = "bundled",
    speculative_config: Annotated[
        str,
        typer.Option("--speculative-config", "-sc", help="Who drafts: vLLM's options, as JSON."),
    ] = '{"model": "bundled:draft"}',
    num_nodes: Annotated[int, typer.Option(min=2, help="Tokens drafted per round.")] = 7,
    json_file: Json = None,
) -> None:
    """Compare a drafter's chain with its trees, and print the best one to paste (a minute)."""
    from specjax.bench.trees import bench_trees
    from specjax.cli.complete import parse_config
    from specjax.host.compile_cache import enable_compile_cache

    enable_compile_cache()
    config = parse_config(speculative_config)
    bench_trees(model, config, json_file, num_nodes=num_nodes)


@bench.command()
@plainly
def peers(
    model: Annotated[str, typer.Option(help="Checkpoint folder, or 'bundled'.")] = "bundled",
    draft: Annotated[str, typer.Option(help="The draft model's.")] = "bundled:draft",
    only: Annotated[
        list[str] | None,
        typer.Option(help="Section, 'bundled', '88M' or '0.6B'; may be repeated. Else all."),
    ] = None,
    json_file: Json = None,
    reps: Reps = 3,
    readme: Readme = None,
) -> None:
    """Compare with vLLM, transformers and llama.cpp as people run them (half an hour)."""
    from specjax.bench.peers import SECTIONS, bench_peers
    from specjax.host.compile_cache import enable_compile_cache

    enable_compile_cache()
    chosen = only or SECTIONS
    bench_peers(json_file, model=model, draft=draft, only=chosen, reps=reps, readme=readme)


@bench.command()
@plainly
def large(
    only: Annotated[
        list[str] | None,
        typer.Option(help="Shape, 'qwen3-30b-a3b' or 'qwen3-next'; may be repeated. Else both."),
    ] = None,
    json_file: Json = None,
    readme: Readme = None,
    reps: Reps = 3,
) -> None:
    """Load and run mixtures of experts cut to 4 layers, 6 and 14 GB, beside vLLM (an hour)."""
    from specjax.bench.large import SHAPES, bench_large
    from specjax.host.compile_cache import enable_compile_cache

    enable_compile_cache()
    bench_large(json_file, only=only or tuple(SHAPES), reps=reps, readme=readme)


@bench.command()
@plainly
def experts(
    json_file: Json = None,
    readme: Readme = None,
    reps: Reps = 15,
) -> None:
    """Time a mixture's layer by the number of experts that its tokens choose (half a minute)."""
    from specjax.bench.experts import bench_experts
    from specjax.host.compile_cache import enable_compile_cache

    enable_compile_cache()
    bench_experts(json_file, reps=reps, readme=readme)


@bench.command()
@plainly
def int8(
    json_file: Json = None,
    readme: Readme = None,
    reps: Reps = 15,
) -> None:
    """Time products with int8 matrices beside the same in bfloat16 and float32 (half a minute)."""
    from specjax.bench.int8 import bench_int8
    from specjax.host.compile_cache import enable_compile_cache

    enable_compile_cache()
    bench_int8(json_file, reps=reps, readme=readme)


@bench.command("install-llama-cpp")
@plainly
def install_llama_cpp() -> None:
    """Make llama.cpp's environment in the user's cache, unless it is there (builds it)."""
    from specjax.bench.llama_cpp import install

    install(typer.echo)


@bench.command()
@plainly
def prompts(
    out: Annotated[Path, typer.Option(help="The file of JSON lines to write.")],
    seed: Annotated[int, typer.Option(help="0 gives the ones that ship.")] = 0,
) -> None:
    """Draw random prompts from the held-out files of this Python's standard library."""
    from specjax.bench.random_prompts import draw, to_lines
    from specjax.bundled import resolve
    from specjax.engine.text.tokenizer import load_tokenizer
    from specjax.host.files import write_atomically
    from specjax.train.data import read_documents

    drawn = draw(read_documents(), load_tokenizer(resolve("bundled")).encode, seed)
    with write_atomically(out) as file:
        file.write(to_lines(drawn).encode())
    typer.echo(f"wrote {out}: {len(drawn)} prompts")


@bench.command()
@plainly
def methods(
    names: Annotated[
        list[str] | None, typer.Argument(help="Methods, as eagle mtp; else all that ship.")
    ] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Batch size; may be repeated.")] = None,
    temperature: Annotated[
        list[float] | None, typer.Option(help="Temperature; may be repeated.")
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Of weights and activations.")] = Dtype.FLOAT32,
    num_speculative_tokens: Annotated[
        int | None, typer.Option(min=1, help="K of every method; else 3, and mtp's 7.")
    ] = None,
    json_file: Json = None,
    reps: Reps = 5,
    readme: Annotated[
        Path | None,
        typer.Option(
            help="A Markdown file: rewrite its section 'methods', 'methods-alike' or with '-DTYPE'."
        ),
    ] = None,
    heads: Annotated[
        Path | None, typer.Option(help="Folder of `specjax train heads`, for those that ship.")
    ] = None,
    image: Annotated[
        Path | None, typer.Option(help="With --heads: draw their learning curves into this file.")
    ] = None,
) -> None:
    """Time every method, with its acceptance by position and what theory foretells (minutes)."""
    from specjax.bench.methods import bench_methods
    from specjax.host.compile_cache import enable_compile_cache

    enable_compile_cache()
    bench_methods(
        json_file,
        names=names or None,
        batches=batch or (1,),
        temperatures=temperature or (0.0,),
        dtype=dtype.value,
        num_speculative_tokens=num_speculative_tokens,
        reps=reps,
        readme=readme,
        heads=heads,
        image=image,
    )


@bench.command()
@plainly
def online(
    head: Annotated[str, typer.Option(help="Folder of the head that goes on learning.")] = (
        "bundled:eagle3"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="How often new weights are taken.")] = 3,
    requests: Annotated[
        int, typer.Option(min=8, help="Answers to learn from, of each round.")
    ] = 48,
    out: Annotated[
        Path | None, typer.Option(help="Keep answers and heads here; else they are deleted.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Train a head on the answers it helps to give, while it serves them (five minutes)."""
    from specjax.bench.online import bench_online
    from specjax.host.compile_cache import enable_compile_cache

    enable_compile_cache()
    bench_online(json_file, head=head, rounds=rounds, num_requests=requests, out=out)


@bench.command()
@plainly
def serve(
    model: Annotated[str, typer.Option(help="Checkpoint folder, or 'bundled'.")] = "bundled",
    speculative_config: Annotated[
        str | None,
        typer.Option(
            "--speculative-config", "-sc", help="As JSON; 'null': plain decoding. Else n-grams."
        ),
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(help="Objective of goodput: ttft=200ms, tpot=20ms, e2el=2s; may be repeated."),
    ] = None,
    json_file: Json = None,
    reps: Reps = 3,
    readme: Readme = None,
) -> None:
    """Compare our server with vLLM's, in one run (a quarter of an hour; vLLM: `make oracle`)."""
    try:
        from specjax.bench.serve import bench_serve
    except ModuleNotFoundError as error:
        raise ImportError(MISSING if error.name == "aiohttp" else str(error)) from None
    from specjax.bench.goodput import SLO
    from specjax.bench.plan import NGRAM
    from specjax.cli.ab import pairs
    from specjax.cli.complete import parse_config
    from specjax.host.compile_cache import enable_compile_cache
    from specjax.measure.objectives import parse_objectives

    objectives = parse_objectives(pairs(slo, "--slo tpot=20ms")) or SLO
    enable_compile_cache()
    config = NGRAM if speculative_config is None else parse_config(speculative_config)
    bench_serve(json_file, model=model, config=config, reps=reps, slo=objectives, readme=readme)


@bench.command()
@plainly
def depths(
    out: Annotated[
        Path | None, typer.Option(help="Record into this new folder, and an archive beside it.")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Only read a recording, a folder or an archive.")
    ] = None,
    readme: Readme = None,
) -> None:
    """Record vLLM's server at every K, light and heavy load, as explain reads it (15 minutes)."""
    try:
        from specjax.bench import depths_replay as case
    except ModuleNotFoundError as error:
        raise ImportError(MISSING if error.name == "aiohttp" else str(error)) from None
    from specjax.bench.depths import SECTION, bench_depths
    from specjax.host.markdown import around_section, replace_section

    if (out is None) == (replay is None):
        raise ValueError("pass --out FOLDER to record, or --replay RECORDING to read one.")
    if readme is not None:
        around_section(readme, SECTION)
    if out is not None:
        typer.echo(f"wrote {bench_depths(out, echo=typer.echo)}")
    with case.unpacked(out or replay or Path()) as folder:
        lines = case.to_markdown(folder)
    typer.echo("\n".join(lines))
    if readme is not None:
        replace_section(readme, SECTION, lines)


@bench.command()
@plainly
def theory(json_file: Json = None, reps: Reps = 5) -> None:
    """Time the formulas and the simulations, against plain Python (one minute)."""
    from specjax.bench.theory import bench_theory
    from specjax.host.compile_cache import enable_compile_cache

    enable_compile_cache()
    bench_theory(json_file, reps=reps)


@bench.command()
@plainly
def bridge(
    json_file: Json = None,
    reps: Reps = 15,
    compiled: Annotated[bool, typer.Option(help="Time torch.compile too.")] = True,
) -> None:
    """Time npu_bridge's rounds on this CPU, against the jitted ones (two minutes)."""
    from specjax.bench.bridge import bench_bridge
    from specjax.host.compile_cache import enable_compile_cache

    enable_compile_cache()
    bench_bridge(json_file, reps=reps, compiled=compiled)

"""The options of every command that loads a model, with vLLM's names."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from specjax.engine.options.legacy import ENGINE_ONLY


class EngineCommand(TyperCommand):
    """A command that takes options as vLLM writes them.

    Underscores may stand for dashes, and options that only vLLM's engine has reach the command
    by name, without their values, as ``--engine-only NAME``.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Replace vLLM's engine-only options, and parse all."""
        known = {name for param in self.params for name in (*param.opts, *param.secondary_opts)}
        args, inert = set_aside(args, known)
        return super().parse_args(ctx, [*args, *(f"--engine-only={name}" for name in inert)])


def set_aside(args: Sequence[str], known: set[str]) -> tuple[list[str], list[str]]:
    """Return the arguments with dashes in their names, and vLLM's engine-only options' names."""
    kept, inert, waiting = [], [], list(args)
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.partition("=")
        dashed = name.replace("_", "-")
        option = dashed.removeprefix("--").removeprefix("no-").replace("-", "_").partition(".")[0]
        if name.startswith("--") and dashed in known:
            kept.append(dashed + equals + value)
        elif name.startswith("--") and option in ENGINE_ONLY:
            inert.append(option)
            if not equals and waiting and not waiting[0].startswith("-"):
                waiting.pop(0)
        else:
            kept.append(word)
    return kept, inert


def with_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with all options of ``gather`` in place of its parameter ``options``."""
    own, shared = (inspect.signature(f, eval_str=True).parameters for f in (command, gather))
    merged = {name: p for name, p in (own | shared).items() if name != "options"}

    @functools.wraps(command)
    def run(**given):
        return command(options=gather(**{name: given.pop(name) for name in shared}), **given)

    run.__annotations__ = {name: parameter.annotation for name, parameter in merged.items()}
    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in merged.values()]
    vars(run)["__signature__"] = inspect.Signature(parameters)
    return run


def legacy(name: str, what: str) -> str:
    """Return the help of an option's legacy name outside --speculative-config."""
    return (
        f"Older spelling of {name!r} in --speculative-config: {what.replace('[', chr(92) + '[')}."
    )


def gather(
    speculative_config: Annotated[
        str | None,
        typer.Option("--speculative-config", "-sc", help="How to draft: vLLM's options, as JSON."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    tokenizer: Annotated[str | None, typer.Option(help="Another tokenizer's folder.")] = None,
    max_model_len: int | None = None,
    max_num_seqs: Annotated[int, typer.Option(help="Requests side by side.")] = 8,
    device: Annotated[str, typer.Option(help="auto, cpu, gpu, tpu, npu or torch-cpu.")] = "auto",
    tensor_parallel_size: Annotated[
        int, typer.Option("--tensor-parallel-size", "-tp", help="Devices that share the weights.")
    ] = 1,
    enable_expert_parallel: Annotated[
        bool,
        typer.Option(
            "--enable-expert-parallel/--no-enable-expert-parallel",
            "-ep",
            help="Each of these has some experts whole, not a part of every one.",
        ),
    ] = False,
    batch_invariant: Annotated[
        bool,
        typer.Option(
            "--batch-invariant",
            help="Refuse to run where a text may depend on the batch (VLLM_BATCH_INVARIANT=1).",
        ),
    ] = False,
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
) -> dict[str, Any]:
    """Return the keyword arguments of ``LLM`` for the options.

    Raises:
        ValueError: --speculative-config beside its legacy forms.
    """
    from specjax.cli.complete import parse_config

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
    return {
        "speculative_config": None
        if speculative_config is None
        else parse_config(speculative_config),
        "dtype": dtype,
        "tokenizer": tokenizer,
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "device": device,
        "tensor_parallel_size": tensor_parallel_size,
        "enable_expert_parallel": enable_expert_parallel,
        "batch_invariant": batch_invariant,
        "quantization": quantization,
        **older,
        **dict.fromkeys(engine_only or (), True),
    }

"""``specjax extract``: a target's hidden states at every token of a file's prompts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from specjax.cli.errors import plainly
from specjax.cli.group_options import with_group_options


@plainly
@with_group_options
def extract(
    prompt_file: Annotated[
        Path, typer.Option(help="A .jsonl file: one prompt per line. Any other: one prompt.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the files and of manifest.json.")],
    model: Annotated[str, typer.Option(help="Checkpoint folder, or 'bundled'.")] = "bundled",
    layers: Annotated[
        str | None,
        typer.Option(help="Such as 2,18,34; 0 is the embeddings. Default: EAGLE-3's three."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    max_model_len: int | None = None,
    device: Annotated[str, typer.Option(help="auto, cpu, gpu or tpu.")] = "auto",
    tensor_parallel_size: Annotated[
        int, typer.Option("--tensor-parallel-size", "-tp", help="Devices that share the weights.")
    ] = 1,
    enable_expert_parallel: Annotated[
        bool,
        typer.Option(
            "--enable-expert-parallel", "-ep", help="Each of these has some experts whole."
        ),
    ] = False,
    shard: Annotated[
        str | None, typer.Option(help="I/N: do every N-th prompt from I on, with the same --out.")
    ] = None,
) -> None:
    """Save a target's hidden states at every token of a file's prompts.

    One safetensors file per prompt, as vLLM's extract_hidden_states writes it.

    Killed at any moment, the same command goes on; with --shard, N of them share the work.
    """
    from specjax.cli.complete import check_model, read_prompts
    from specjax.engine.build import describe
    from specjax.engine.connector import CONNECTOR
    from specjax.engine.device import choose_devices, choose_dtype
    from specjax.engine.llm import LLM
    from specjax.engine.options.extraction import IDS, METHOD, check_layers
    from specjax.engine.options.sampling_params import SamplingParams
    from specjax.engine.options.speculative import SpeculativeConfig
    from specjax.host.compile_cache import enable_compile_cache
    from specjax.host.group import from_first
    from specjax.jobs.folder import parse_share
    from specjax.weights.head_configs import usual_taps
    from specjax.weights.hidden_states import (
        Manifest,
        file_name,
        is_done,
        open_folder,
        trace_origin,
    )

    first, step = parse_share(shard or "0/1")
    prompts = read_prompts([], prompt_file)
    check_model(model)
    dtype = choose_dtype(dtype, choose_devices(device, tensor_parallel_size), device)
    target = describe(model, dtype, max_model_len)
    depth = target.config.num_layers
    wanted = usual_taps(depth) if layers is None else parse_layers(layers)
    config = SpeculativeConfig(
        method=METHOD, num_speculative_tokens=1, draft_model_config={"hf_config": {IDS: wanted}}
    )
    check_layers(config.layers, depth)
    texts = [target.tokenizer.encode(prompt) for prompt in prompts]
    check_lengths(prompt_file, texts, max_model_len or target.config.max_position_embeddings)

    origin = trace_origin(target.folder, target.config, config.layers)
    texts = {file_name(text): text for text in texts}
    mine = dict(list(texts.items())[first::step])

    def begin() -> list[str]:
        open_folder(out, Manifest(str(target.folder.resolve()), origin, tuple(texts)))
        return [name for name, text in mine.items() if not is_done(out / name, text, origin)]

    missing = {name: mine[name] for name in from_first(begin)}
    if len(missing) < len(mine):
        done = len(mine) - len(missing)
        typer.echo(f"{done} of {len(mine)} texts are in {out} already", err=True)
    if missing:
        enable_compile_cache()
        llm = LLM(
            model,
            speculative_config=config,
            kv_transfer_config={
                "kv_connector": CONNECTOR,
                "kv_role": "kv_producer",
                "kv_connector_extra_config": {
                    "shared_storage_path": out,
                    "allow_custom_save_path": True,
                },
            },
            dtype=dtype,
            max_model_len=max_model_len,
            max_num_seqs=1,
            device=device,
            tensor_parallel_size=tensor_parallel_size,
            enable_expert_parallel=enable_expert_parallel,
        )
        params = [
            SamplingParams(
                temperature=0.0,
                max_tokens=1,
                extra_args={"kv_transfer_params": {"hidden_states_path": str(out / name)}},
            )
            for name in missing
        ]
        llm.generate([{"prompt_token_ids": text} for text in missing.values()], params)
    typer.echo(
        f"{out}: {len(mine)} texts, {sum(map(len, mine.values()))} tokens, layers "
        f"{list(config.layers)} of {depth}, {origin.dtype}"
    )


def parse_layers(text: str) -> list[int]:
    """Return the numbers of a text such as "2,18,34". Raises ValueError for another form."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ValueError(f"--layers must be numbers such as 2,18,34, got {text!r}.") from None


def check_lengths(file: Path, texts: Sequence[Sequence[int]], max_model_len: int) -> None:
    """Raise ValueError for a prompt without tokens, or without room for the one output token."""
    for number, text in enumerate(texts, start=1):
        if not 1 <= len(text) < max_model_len:
            raise ValueError(
                f"prompt {number} of {file} has {len(text)} tokens, need 1 to {max_model_len - 1} "
                "(--max-model-len less one output token): shorten or remove it."
            )

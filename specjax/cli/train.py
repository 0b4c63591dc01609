"""``specjax train lm``: options of the command, and its result."""

from pathlib import Path
from typing import Annotated

import typer

from specjax.train.interrupt import until_interrupted
from specjax.train.lm import train_lm
from specjax.train.options import TrainConfig


def lm(
    out: Annotated[Path, typer.Option(help="Folder of the run; the model goes to OUT/model.")],
    layers: Annotated[int, typer.Option(help="Transformer blocks.")] = 4,
    hidden: Annotated[int, typer.Option(help="Width of the residual stream.")] = 192,
    intermediate: Annotated[int, typer.Option(help="Width of the MLP.")] = 352,
    heads: Annotated[int, typer.Option(help="Query heads.")] = 6,
    kv_heads: Annotated[int, typer.Option(help="Key and value heads.")] = 2,
    head_dim: Annotated[int, typer.Option(help="Width of a head.")] = 32,
    vocab_size: Annotated[int, typer.Option(help="Tokens of the byte-level BPE.")] = 2048,
    context: Annotated[int, typer.Option(help="Tokens per training sequence.")] = 256,
    batch: Annotated[int, typer.Option(help="Sequences per step.")] = 16,
    steps: Annotated[int | None, typer.Option(help="How many steps, or give --minutes.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="How long; turned into steps by a measurement.")
    ] = None,
    learning_rate: Annotated[float, typer.Option(help="At the end of the warm-up.")] = 3e-3,
    seed: Annotated[int, typer.Option(help="Of the first weights and the order of text.")] = 0,
    teacher: Annotated[
        Path | None, typer.Option(help="Hugging Face folder to distil from (a draft's target).")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Folder whose tokenizer.json to reuse; else the teacher's or initial."),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Folder of .py files; else this Python's standard library.")
    ] = None,
    eval_every: Annotated[int, typer.Option(help="Steps between held-out losses.")] = 100,
    resume: Annotated[
        bool, typer.Option(help="Go on with the run OUT holds, if it is the same one.")
    ] = True,
) -> None:
    """Train a small Qwen3-architecture language model on Python source, or distil a draft.

    Killed at any moment, the same command goes on and ends with the same weights.
    """
    if (steps is None) == (minutes is None):
        given = "neither" if steps is None else "both"
        raise ValueError(f"give the length as one of --steps and --minutes, got {given}")
    config = TrainConfig(
        out=str(out),
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        context=context,
        batch=batch,
        steps=steps,
        minutes=minutes,
        learning_rate=learning_rate,
        seed=seed,
        teacher=None if teacher is None else str(teacher),
        tokenizer=None if tokenizer is None else str(tokenizer),
        source=None if source is None else str(source),
        eval_every=eval_every,
    )
    with until_interrupted(out / "checkpoints"):
        trained = train_lm(config, resume=resume)
    typer.echo(
        f"{trained.folder}: held-out loss {trained.held_out_loss:.4f} nats per token, "
        f"the lowest, at step {trained.step}"
    )

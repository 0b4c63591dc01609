"""``specjax train shards``, and a ``specjax train`` command for each kind of head."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from specjax.bundled import resolve
from specjax.cli.errors import plainly
from specjax.cli.group_options import with_group_options
from specjax.cli.shared_options import Command, with_options_of
from specjax.cli.train import lm
from specjax.models.config import HEAD_KINDS
from specjax.train.alike import EQUALS, train_alike
from specjax.train.features import SourceConfig, open_shards, write_shards
from specjax.train.head_options import KINDS, HeadTrainConfig, taps_of
from specjax.train.heads import train_head
from specjax.train.interrupt import until_interrupted
from specjax.weights.hf_config import read_config

COMMANDS = {"mlp" if kind == "mlp_speculator" else kind: kind for kind in KINDS}


def read_source(
    target: Annotated[str, typer.Option(help="Hugging Face folder of the target.")] = "bundled",
    batch: Annotated[int, typer.Option(help="Sequences per step, and per shard.")] = 8,
    context: Annotated[int, typer.Option(help="Tokens per sequence.")] = 256,
    own: Annotated[
        int, typer.Option(help="Of them, the last ones the target says by itself.")
    ] = 128,
    temperature: Annotated[float, typer.Option(help="At which it says them.")] = 0.5,
    batches: Annotated[int, typer.Option(help="Different batches to learn from.")] = 400,
    held_out: Annotated[int, typer.Option(help="Batches to measure on.")] = 8,
    seed: Annotated[int, typer.Option(help="Of the order of text, and of first weights.")] = 0,
    source: Annotated[
        Path | None,
        typer.Option(
            help="Folder of .py files, or a .jsonl of answers (--own 0); else the standard library."
        ),
    ] = None,
) -> SourceConfig:
    """Return which text a head learns from, with all layers that some kind of head taps."""
    facts, _ = read_config(resolve(target), dtype="float32")
    return SourceConfig(
        target=target,
        layers=tuple(sorted({layer for kind in HEAD_KINDS for layer in taps_of(kind, facts)})),
        batch=batch,
        context=context,
        own=own,
        temperature=temperature,
        num_batches=batches,
        num_held_out=held_out,
        seed=seed,
        source=None if source is None else str(source),
    )


def with_source_options(command: Command) -> Command:
    """Return a command with ``read_source``'s options, which it gets as ``data``."""

    def run(command: Command, shared: dict[str, Any]) -> None:
        command(data=read_source(**shared))

    return with_options_of(read_source, command, run, filled="data")


def training_app() -> typer.Typer:
    """Return ``specjax train``, with a command for each kind of model."""
    training = typer.Typer(
        help="Train small models on this machine.", no_args_is_help=True, add_completion=False
    )
    training.command("lm")(plainly(with_group_options(lm)))
    training.command("shards")(plainly(with_source_options(shards)))
    training.command("heads")(plainly(with_source_options(heads)))
    for name, kind in COMMANDS.items():
        training.command(name)(plainly(with_group_options(with_source_options(head_command(kind)))))
    return training


def shards(
    data: SourceConfig,
    out: Annotated[Path, typer.Option(help="Folder of the shards.")],
    layers: Annotated[
        str | None, typer.Option(help="Tapped layers, as 2,4,5,8; else all that heads tap.")
    ] = None,
) -> None:
    """Write a target's hidden states to shards that every kind of head can learn from."""
    if layers is not None:
        data = replace(data, layers=tuple(map(int, layers.split(","))))
    with until_interrupted(out):
        written = write_shards(data, out)
    number = f"{data.num_batches} + {data.num_held_out}"
    typer.echo(f"{out}: {number} shards, {written} of them written now")


def heads(
    data: SourceConfig,
    out: Annotated[Path, typer.Option(help="Folder; each head goes to OUT/KIND/model.")],
    steps: Annotated[int, typer.Option(help="Of each head.")],
    kinds: Annotated[
        str | None,
        typer.Option(help="As eagle,dflash; else all kinds that ship and peagle, dspark."),
    ] = None,
    loss: Annotated[list[str] | None, typer.Option(help="As of one head; for all.")] = None,
    unroll: Annotated[int, typer.Option(help="Tokens drafted ahead in training, by all.")] = 4,
    learning_rate: Annotated[float, typer.Option(help="Of all.")] = 3e-3,
    optimizer: Annotated[str, typer.Option(help="adamw, or muon.")] = "adamw",
) -> None:
    """Train a head of each kind on the same batches, for as many steps, so that they compare."""
    with until_interrupted(out):
        rows = train_alike(
            out,
            data,
            EQUALS if kinds is None else tuple(kinds.split(",")),
            steps=steps,
            losses=read_losses(loss or ["kl"]),
            unroll=unroll,
            learning_rate=learning_rate,
            optimizer=optimizer,
            seed=data.seed,
        )
    for row in rows:
        typer.echo(f"{row['kind']}: accepts {row['acceptance']}, {row['parameters']:,} parameters")
    typer.echo(f"compare them: specjax bench methods --heads {out}")


def head_command(kind: str) -> Command:
    """Return the command that trains one kind of head."""

    def command(
        data: SourceConfig,
        out: Annotated[Path, typer.Option(help="Folder of the run; the head goes to OUT/model.")],
        shards: Annotated[
            Path | None,
            typer.Option(help="Folder of `specjax train shards`; else extracted as it goes."),
        ] = None,
        steps: Annotated[int | None, typer.Option(help="How many, or give --minutes.")] = None,
        minutes: Annotated[
            float | None, typer.Option(help="How long; turned into steps by a measurement.")
        ] = None,
        loss: Annotated[
            list[str] | None,
            typer.Option(
                help="kl, cross_entropy, tv, lk, lk_hybrid, feature, or NAME=WEIGHT; repeatable."
            ),
        ] = None,
        unroll: Annotated[
            int, typer.Option(help="Tokens drafted ahead in training (medusa, mlp: ever).")
        ] = 4,
        decay: Annotated[float, typer.Option(help="Weight of a position in the one before.")] = 0.8,
        intermediate: Annotated[
            int | None, typer.Option(help="Width of the block's MLP; else the target's.")
        ] = None,
        heads: Annotated[
            int | None, typer.Option(help="Attention heads of the block; else the target's.")
        ] = None,
        kv_heads: Annotated[
            int | None, typer.Option(help="Its heads of keys and values; else the target's.")
        ] = None,
        draft_vocab: Annotated[
            int | None,
            typer.Option(
                help="Its own vocabulary: so many frequent tokens (eagle3, peagle, dflash, dspark)."
            ),
        ] = None,
        layers: Annotated[
            int, typer.Option(help="Of dflash, dspark, peagle; residual ones of a Medusa head.")
        ] = 2,
        mask_token: Annotated[
            int, typer.Option(help="Of these three and pard: the token that stands for a draft.")
        ] = 0,
        markov_rank: Annotated[int, typer.Option(help="Of dspark's Markov head.")] = 64,
        start: Annotated[
            Path | None,
            typer.Option(help="Folder of such a head (pard: a draft model), to go on from it."),
        ] = None,
        first_batch: Annotated[
            int, typer.Option(help="Where to begin in the source: 0, or after an earlier run.")
        ] = 0,
        learning_rate: Annotated[float, typer.Option(help="At the end of the warm-up.")] = 4e-3,
        optimizer: Annotated[
            str, typer.Option(help="muon, or adamw: cheaper steps where batches are small.")
        ] = "muon",
        eval_every: Annotated[int, typer.Option(help="Steps between held-out losses.")] = 100,
        resume: Annotated[
            bool, typer.Option(help="Go on with the run OUT holds, if it is the same one.")
        ] = True,
    ) -> None:
        config = HeadTrainConfig(
            kind=kind,
            out=str(out),
            source=data if shards is None else open_shards(shards).config,
            steps=steps,
            minutes=minutes,
            losses=read_losses(loss or ["kl"]),
            unroll=unroll,
            decay=decay,
            intermediate_size=intermediate,
            num_heads=heads,
            num_kv_heads=kv_heads,
            draft_vocab_size=draft_vocab,
            num_layers=layers,
            mask_token_id=mask_token,
            markov_rank=markov_rank,
            start=None if start is None else str(start),
            first_batch=first_batch,
            learning_rate=learning_rate,
            optimizer=optimizer,
            eval_every=eval_every,
            seed=data.seed,
        )
        with until_interrupted(out / "checkpoints"):
            trained = train_head(config, shards, resume=resume)
        typer.echo(
            f"{trained.folder}: held-out loss {trained.held_out_loss:.4f}, the lowest, "
            f"at step {trained.step}"
        )

    command.__doc__ = f"Train a head of kind {kind} on a target's hidden states."
    if kind == "pard":
        command.__doc__ = "Train a draft model on, to draft all its tokens in one pass (PARD)."
    return command


def read_losses(given: list[str]) -> dict[str, float]:
    """Return weights by loss from NAME or NAME=WEIGHT. Raises ValueError for a wrong weight."""
    losses = {}
    for word in given:
        name, equals, weight = word.partition("=")
        try:
            losses[name] = float(weight) if equals else 1.0
        except ValueError:
            raise ValueError(f"the weight of a loss must be a number, got {word!r}") from None
    return losses

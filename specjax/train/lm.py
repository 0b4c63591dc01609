"""Train a language model from a folder of Python source to a folder transformers loads."""

import json
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from tokenizers import Tokenizer

from specjax.bundled import resolve
from specjax.files import write_json
from specjax.models.build import build_target
from specjax.train import checkpoint
from specjax.train.batches import crop, measure
from specjax.train.data import Document, fingerprint, load_corpus, manifest, read_documents
from specjax.train.log import draw_losses, open_log, say
from specjax.train.loop import Step, TrainState, make_step
from specjax.train.options import TrainConfig, differences, model_config
from specjax.train.tokenizer import (
    end_of_text,
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
)
from specjax.types import PyTree, Target
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params
from specjax.weights.save import save_model

LOG_EVERY = 10
NUM_HELD_OUT_BATCHES = 16


class Trained(NamedTuple):
    """Where a finished run left its model, and how good it is."""

    folder: Path
    step: int  # the one with the lowest held-out loss
    held_out_loss: float  # nats per token, at that step


class Work(NamedTuple):
    """A run's functions and data, ready to be called."""

    step: Step
    teacher: PyTree | None
    train: np.ndarray
    held_out: list[np.ndarray]


def read_run(out: Path, config: TrainConfig, resume: bool) -> dict | None:
    """Return out/run.json, or None for a fresh folder.

    Raises ValueError, naming the field, if the folder holds a run of another configuration,
    or any run when ``resume`` is False.
    """
    path = out / "run.json"
    if not path.is_file():
        return None
    if not resume:
        raise ValueError(f"{out} already holds a run; choose another folder or resume")
    run = json.loads(path.read_text())
    changed = differences(run["config"], config)
    if changed:
        raise ValueError(f"{out} holds a run of another configuration ({'; '.join(changed)})")
    return run


def find_tokenizer(config: TrainConfig, documents: list[Document]) -> Tokenizer:
    """Take the named tokenizer, else the teacher's, else train one on the training side.

    Raises ValueError when the named one and the teacher's disagree on a token.
    """
    folders = [resolve(folder) for folder in (config.tokenizer, config.teacher) if folder]
    tokenizers = [load_tokenizer(folder, config.vocab_size) for folder in folders]
    if len(tokenizers) == 2 and tokenizers[0].get_vocab() != tokenizers[1].get_vocab():
        raise ValueError(f"{folders[0]} and the teacher {folders[1]} have different vocabularies")
    if tokenizers:
        return tokenizers[0]
    texts = [document.text for document in documents if not document.held_out]
    return train_tokenizer(texts, config.vocab_size)


def load_teacher(config: TrainConfig) -> tuple[Target, PyTree] | tuple[None, None]:
    """Load the teacher's functions and float32 weights, if the run has one."""
    if config.teacher is None:
        return None, None
    facts, _ = read_config(resolve(config.teacher), dtype="float32")
    if facts.vocab_size != config.vocab_size:
        raise ValueError(
            f"the teacher's vocabulary is {facts.vocab_size}, vocab_size {config.vocab_size}"
        )
    if facts.max_position_embeddings < config.context:
        raise ValueError(
            f"the teacher knows {facts.max_position_embeddings} positions, "
            f"context is {config.context}"
        )
    return build_target(facts), load_params(resolve(config.teacher), facts)


def jit_step(config: TrainConfig, steps: int, teacher: Target | None) -> Step:
    """Compile the run's functions; the state is donated, so it is updated in place."""
    step = make_step(config, steps, teacher)
    return Step(step.init, jax.jit(step.update, donate_argnums=0), jax.jit(step.measure))


def held_out_loss(work: Work, params: PyTree) -> float:
    """Average the text's cross-entropy over the fixed held-out batches, in nats per token."""
    return float(np.mean([float(work.step.measure(params, tokens)) for tokens in work.held_out]))


def affordable_steps(config: TrainConfig, work: Work, minutes: float) -> int:
    """Turn a time budget into a number of steps, by timing a few on a throwaway state."""
    seconds, state = [], jax.jit(work.step.init)()
    for number in range(7):
        tokens = crop(work.train, config.seed, number, config.batch, config.context)
        start = time.monotonic()
        state, loss = work.step.update(state, work.teacher, tokens)
        loss.block_until_ready()
        seconds.append(time.monotonic() - start)
    held_out_loss(work, state.params)  # compiles
    start = time.monotonic()
    held_out_loss(work, state.params)
    measuring = (time.monotonic() - start) / config.eval_every
    return max(1, int(60 * minutes / (sorted(seconds[1:])[3] + measuring)))


def train_lm(config: TrainConfig, *, resume: bool = True) -> Trained:
    """Train, or go on training, and export to ``out``/model.

    A killed run started again with the same configuration ends with the same weights, bit
    for bit, on the same machine. Raises ValueError before any long work for a configuration
    that does not fit its folder, text, tokenizer or teacher.
    """
    out = Path(config.out)
    run = read_run(out, config, resume)
    teacher, teacher_params = load_teacher(config)
    say(f"reading Python files of {config.source or 'the standard library'}")
    documents = read_documents(config.source)
    say(f"tokenizing {len(documents)} files")
    tokenizer = find_tokenizer(config, documents)
    end, data = end_of_text(tokenizer), fingerprint(documents, tokenizer)
    if run is not None and run["data"] != data:
        raise ValueError(f"{out} holds a run on other data (source files or tokenizer changed)")
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "manifest.json", manifest(documents), indent=None)
    corpus = load_corpus(documents, tokenizer, end, out / "corpus.npz")
    held_out = measure(corpus.held_out, config.batch, config.context, NUM_HELD_OUT_BATCHES)

    if run is None:
        steps = config.steps
        if steps is None:
            trial = Work(jit_step(config, 1000, teacher), teacher_params, corpus.train, held_out)
            steps = affordable_steps(config, trial, config.minutes or 0.0)
        run = {"config": asdict(config), "steps": steps, "data": data}
        write_json(out / "run.json", run)
    steps = run["steps"]
    work = Work(jit_step(config, steps, teacher), teacher_params, corpus.train, held_out)
    best = train(config, steps, work, out)

    folder = out / "model"
    save_model(folder, model_config(config), best.params, end=end)
    save_tokenizer(tokenizer, folder, config.max_position_embeddings)
    draw_losses(out)
    with checkpoint.open_checkpoints(out / "checkpoints") as manager:
        step = int(best.step)
        return Trained(folder, step, checkpoint.held_out_loss(manager, step))


def train(config: TrainConfig, steps: int, work: Work, out: Path) -> TrainState:
    """Run from the last checkpoint, if there is one, to ``steps``; return the best state.

    Best is the lowest held-out loss of those measured. Raises ValueError when the loss is no
    longer finite.
    """
    with checkpoint.open_checkpoints(out / "checkpoints") as manager:
        like = jax.eval_shape(work.step.init)
        restored = checkpoint.restore(manager, like)
        state = jax.jit(work.step.init)() if restored is None else restored
        first, measured = int(state.step), math.nan
        if first >= steps:
            say(f"the run is complete: step {first} of {steps}")
        else:
            said = "training" if restored is None else f"resuming from step {first}"
            say(f"{said}, to step {steps}")
        losses: list[Any] = []
        with open_log(out, first, steps) as report:
            start = time.monotonic()
            for number in range(first, steps):
                tokens = crop(work.train, config.seed, number, config.batch, config.context)
                state, loss = work.step.update(state, work.teacher, tokens)
                losses.append(loss)
                done, last = number + 1, number + 1 == steps
                measuring = last or done % config.eval_every == 0
                if not (measuring or done % LOG_EVERY == 0):
                    continue
                row = {"step": done, "loss": float(np.mean([float(loss) for loss in losses]))}
                seconds = time.monotonic() - start
                row["tokens_per_second"] = round(len(losses) * tokens[:, 1:].size / seconds, 1)
                if not math.isfinite(row["loss"]):
                    raise ValueError(
                        f"the loss is {row['loss']} at step {done}; lower the learning rate"
                    )
                if measuring:
                    row["held_out_loss"] = measured = held_out_loss(work, state.params)
                report(row)  # before the checkpoint: a resumed run drops what it repeats
                if measuring:
                    checkpoint.save(manager, state, measured)
                losses, start = [], time.monotonic()
        best = checkpoint.restore(manager, like, best=True)
    assert best is not None  # the last step is always measured and saved
    return best

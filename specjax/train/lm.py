"""Train a language model on a folder of Python source, and export a transformers folder."""

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from tokenizers import Tokenizer

from specjax.bundled import resolve
from specjax.core.types import PyTree, Target
from specjax.host.files import write_json
from specjax.host.group import is_first
from specjax.models.build import build_target
from specjax.train.batches import crop, measure
from specjax.train.data import (
    Corpus,
    Document,
    fingerprint,
    load_corpus,
    manifest,
    read_documents,
)
from specjax.train.data_parallel import check_divides, replicate, split, whole
from specjax.train.log import draw_losses, echo
from specjax.train.loop import Measure, Tokens, make_step
from specjax.train.options import TrainConfig, model_config
from specjax.train.run import Trained, Work, read_run, settle, train
from specjax.train.tokenizer import (
    end_of_text,
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
)
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params
from specjax.weights.save import save_model

NUM_HELD_OUT_BATCHES = 16


def find_tokenizer(config: TrainConfig, documents: list[Document]) -> Tokenizer:
    """Return the named tokenizer, else the teacher's, else one trained on the training files.

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
    """Return the teacher's functions and float32 weights; None without a teacher."""
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


def held_out_loss(measure: Measure, batches: Sequence[Tokens], params: PyTree) -> float:
    """Return the mean cross-entropy on the fixed held-out batches, in nats per token."""
    return float(np.mean([float(measure(params, tokens)) for tokens in batches]))


def make_work(config: TrainConfig, steps: int, corpus: Corpus) -> Work:
    """Return the run's compiled functions; the state is donated, so it is updated in place."""
    teacher, teacher_params = load_teacher(config)
    step, everywhere = make_step(config, steps, teacher), whole()
    update = jax.jit(step.update, donate_argnums=0, out_shardings=everywhere)
    score = jax.jit(step.measure, out_shardings=everywhere)
    teacher_params = replicate(teacher_params)
    held_out = [
        split(tokens)
        for tokens in measure(corpus.held_out, config.batch, config.context, NUM_HELD_OUT_BATCHES)
    ]
    return Work(
        init=jax.jit(step.init, out_shardings=everywhere),
        update=lambda state, tokens: update(state, teacher_params, tokens),
        batch=lambda step: split(
            crop(corpus.train, config.seed, step, config.batch, config.context)
        ),
        measure=lambda params: {"held_out_loss": held_out_loss(score, held_out, params)},
        num_tokens=config.batch * config.context,
    )


def train_lm(config: TrainConfig, *, resume: bool = True) -> Trained:
    """Train, or resume training, and export to ``out``/model.

    A killed run started again with the same configuration ends with the same weights, bit
    for bit, on the same machine. Raises ValueError before any long work for a configuration
    that does not fit its folder, text, tokenizer or teacher.
    """
    out = Path(config.out)
    check_divides(config.batch)
    run = read_run(out, config, resume)
    load_teacher(config)  # refuses before the text is read
    echo(f"reading Python files of {config.source or 'the standard library'}")
    documents = read_documents(config.source)
    echo(f"tokenizing {len(documents)} files")
    tokenizer = find_tokenizer(config, documents)
    end, data = end_of_text(tokenizer), fingerprint(documents, tokenizer)
    out.mkdir(parents=True, exist_ok=True)
    corpus = load_corpus(documents, tokenizer, end, out / "corpus.npz")
    steps = settle(config, run, data, lambda steps: make_work(config, steps, corpus))
    best, loss = train(config, steps, make_work(config, steps, corpus))

    folder = out / "model"
    if is_first():
        write_json(out / "manifest.json", manifest(documents), indent=None)
        save_model(folder, model_config(config), best.params, end=end)
        save_tokenizer(tokenizer, folder, config.max_position_embeddings)
        draw_losses(out)
    return Trained(folder, int(best.step), loss)

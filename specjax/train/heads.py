"""Train a drafting head on its target's hidden states, and export a folder that vLLM loads.

A draft model that drafts in parallel (PARD) is trained by the same loop.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from specjax.bundled import resolve
from specjax.core.sampling import FORBIDDEN
from specjax.core.types import PyTree
from specjax.host.group import is_first
from specjax.models.build import HeadConfig, build_target
from specjax.models.config import WITH_LAYERS, ModelConfig
from specjax.train.data_parallel import check_divides, gather, replicate, whole
from specjax.train.features import Features, Source, open_shards, open_source
from specjax.train.head_init import Flat, first_weights
from specjax.train.head_options import HeadTrainConfig, check_start, head_config
from specjax.train.learner import Learner
from specjax.train.log import draw_losses, echo
from specjax.train.loop import make_updates
from specjax.train.losses import (
    cross_entropy,
    divergences,
    lk_hybrid,
    negative_log_acceptance,
    overlap,
    regression,
)
from specjax.train.pard import parallel_draft_model
from specjax.train.run import Trained, Work, read_run, settle, train
from specjax.train.unrolled import Drafted, build_unrolled
from specjax.weights.head_configs import read_head_config
from specjax.weights.heads import assemble, read_head, rows_of
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params
from specjax.weights.save_heads import save_head

COUNTED = 64  # batches in which the tokens of a reduced vocabulary are counted


def train_head(config: HeadTrainConfig, shards: Path | None = None, *, resume: bool = True):
    """Train, or resume training, and export to ``out``/model.

    Batches come from ``shards``, which must have been made as ``config.source`` says, or are
    made as they are needed: the same ones. Killed and started again, it ends with the same
    weights. Raises ValueError before any long work for what does not go together.
    """
    out = Path(config.out)
    check_divides(config.source.batch)
    run = read_run(out, config, resume)
    folder = resolve(config.source.target)
    facts, _ = read_config(folder, dtype="float32")
    head = None if config.kind == "pard" else choose_head(config, facts)
    source = open_source(config.source, out) if shards is None else open_shards(shards)
    if source.config != config.source:
        raise ValueError(f"{shards} was made otherwise: {source.config}, asked {config.source}")
    target = load_params(folder, facts)
    out.mkdir(parents=True, exist_ok=True)
    if head is None:
        learner = parallel_draft_model(config, facts)
    else:
        learner = a_head(config, head, facts, target, source)
    make = functools.partial(make_work, config, learner, facts, target, source)
    steps = settle(config, run, source.data, make)
    best, loss = train(config, steps, make(steps))
    if is_first():
        learner.save(out / "model", best.params)
        draw_losses(out)
    return Trained(out / "model", int(best.step), loss)


def a_head(
    config: HeadTrainConfig, head: HeadConfig, facts: ModelConfig, target: PyTree, source: Source
) -> Learner:
    """Return a head as what is trained: from its first weights, or those of ``config.start``."""
    if config.start is None:
        kept = frequent_tokens(head, source)
        first = functools.partial(first_weights, head, facts, target, kept, config.seed)
    else:
        own, kept = read_head(resolve(config.start), config.kind, head, target)
        first = functools.partial(jax.tree.map, jnp.copy, own)
    vocab_rows = None if kept is None else replicate(rows_of(kept, facts.vocab_size))
    return Learner(
        first=first,
        assemble=lambda own, target: assemble(head, own, target, vocab_rows),
        draft=build_unrolled(head, config.unroll, config.source.layers),
        save=lambda folder, own: save_head(folder, config.kind, head, own, kept),
    )


def choose_head(config: HeadTrainConfig, facts: ModelConfig) -> HeadConfig:
    """Return the config of the head to train: that of ``config.start``, or of the options.

    Raises ValueError if the two differ.
    """
    if config.start is None:
        return head_config(config, facts)
    folder = resolve(config.start)
    found = read_head_config(folder, config.kind, facts)
    check_start(config, folder, found)
    return found


def frequent_tokens(head: HeadConfig, source: Source) -> np.ndarray | None:
    """Return the tokens of a reduced vocabulary: the most frequent ones, in ascending order."""
    if not isinstance(head, WITH_LAYERS) or head.draft_vocab_size is None:
        return None
    number = min(COUNTED, source.config.num_batches)
    counts = np.zeros(head.block.vocab_size, np.int64)
    for i in range(number):
        counts += np.bincount(
            gather(source.read("train", i).token_ids).ravel(), minlength=len(counts)
        )
    kept = np.sort(np.argsort(-counts, kind="stable")[: head.draft_vocab_size])
    echo(f"the draft vocabulary covers {counts[kept].sum() / counts.sum():.1%} of the tokens")
    return kept


def loss_of(
    weights: dict[str, float],
    drafted: Drafted,
    known: Float[Array, "B P V"],
    batch: Features,
) -> Float[Array, ""]:
    """Return the weighted sum of the losses of one drafted position.

    A confidence head learns the chance to accept, beside them.

    Tokens that a reduced vocabulary lacks have probability 0 for it: of the target's distribution
    what remains is what counts, and of the text the tokens that it has.
    """
    logits, known = drafted.logits, known[:, drafted.at]
    has, total = logits > FORBIDDEN, jnp.zeros(())
    kl = divergences(logits, jnp.where(has, known, FORBIDDEN))
    accepted = overlap(logits, known)
    if weight := weights.get("kl"):
        total += weight * kl.mean()
    if weight := weights.get("cross_entropy"):
        labels = batch.token_ids[:, 2:][:, drafted.at]
        can = jnp.take_along_axis(has, labels[..., None], axis=-1)
        fair = jnp.where(can, logits, jnp.zeros_like(logits))  # a constant where it cannot
        total += weight * cross_entropy(fair, labels)
    if weight := weights.get("tv"):
        total += weight * (1 - accepted.mean())
    if weight := weights.get("lk"):
        total += weight * negative_log_acceptance(accepted)
    if weight := weights.get("lk_hybrid"):
        total += weight * lk_hybrid(kl, accepted)
    if weight := weights.get("feature"):
        wanted = batch.hidden_states[:, 1:][:, drafted.at].astype(jnp.float32)
        total += weight * regression(drafted.features, wanted)
    if drafted.confidence is not None:
        sure = jax.lax.stop_gradient(accepted)
        total += optax.sigmoid_binary_cross_entropy(drafted.confidence, sure).mean()
    return total


def make_work(
    config: HeadTrainConfig,
    learner: Learner,
    facts: ModelConfig,
    target: PyTree,
    source: Source,
    steps: int,
) -> Work:
    """Return the run's compiled functions."""
    target, everywhere = replicate(target), whole()
    score = build_target(facts).logits

    def draft(own, target, batch) -> tuple[list[Drafted], jax.Array]:
        known = score(target, batch.hidden_states[:, 1:].astype(jnp.float32))
        return learner.draft(learner.assemble(own, target), batch), known

    def objective(own, target, batch):
        drafted, known = draft(own, target, batch)
        losses = [loss_of(config.losses, x, known, batch) for x in drafted]
        weights = [config.decay**level for level in range(len(losses))]
        return sum(w * loss for w, loss in zip(weights, losses, strict=True)) / sum(weights)

    def measure(own, target, batch):
        drafted, known = draft(own, target, batch)
        agree = [(x.logits.argmax(-1) == known[:, x.at].argmax(-1)) for x in drafted]
        accept = [overlap(x.logits, known[:, x.at]) for x in drafted]
        means = (jnp.stack([x.mean() for x in xs]) for xs in (agree, accept))
        return objective(own, target, batch), *means

    start, update = make_updates(config, steps, objective)
    move = jax.jit(update, donate_argnums=0, out_shardings=everywhere)
    judge = jax.jit(measure, out_shardings=everywhere)
    count = source.config.num_batches

    def measure_all(own: Flat) -> dict:
        batches = (source.read("held_out", i) for i in range(source.config.num_held_out))
        rows = [judge(own, target, batch) for batch in batches]
        loss, agree, accept = (
            np.mean([np.asarray(x) for x in xs], 0) for xs in zip(*rows, strict=True)
        )
        return {
            "held_out_loss": float(loss),
            "agreement": np.round(agree.astype(float), 4).tolist(),
            "acceptance": np.round(accept.astype(float), 4).tolist(),
        }

    return Work(
        init=jax.jit(lambda: start(learner.first()), out_shardings=everywhere),
        update=lambda state, batch: move(state, target, batch),
        batch=lambda step: source.read("train", (config.first_batch + step) % count),
        measure=measure_all,
        num_tokens=config.source.batch * config.source.context,
        trained_before=config.start is not None,
    )

"""Losses: cross-entropy of the next token, and distances from a teacher."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int


def cross_entropy(
    logits: Float[Array, "*lead V"], targets: Int[Array, "*lead"]
) -> Float[Array, ""]:
    """Return the mean cross-entropy of the next token, in nats per token."""
    logprobs = jax.nn.log_softmax(logits, axis=-1)
    return -jnp.take_along_axis(logprobs, targets[..., None], axis=-1).mean()


def divergence(
    logits: Float[Array, "*lead V"], teacher: Float[Array, "*lead V"]
) -> Float[Array, ""]:
    """Return the mean KL(teacher || student), in nats per token."""
    return divergences(logits, teacher).mean()


def divergences(
    logits: Float[Array, "*lead V"], teacher: Float[Array, "*lead V"]
) -> Float[Array, "*lead"]:
    """Return KL(teacher || student) of each token, in nats."""
    known, guessed = jax.nn.log_softmax(teacher, axis=-1), jax.nn.log_softmax(logits, axis=-1)
    return jnp.sum(jnp.exp(known) * (known - guessed), axis=-1)


def distillation(
    logits: Float[Array, "*lead V"],
    teacher: Float[Array, "*lead V"],
    targets: Int[Array, "*lead"],
    teacher_weight: float,
) -> Float[Array, ""]:
    """Return the weighted sum of cross-entropy and KL from the teacher.

    By Pinsker's inequality the chance to accept, 1 - TV, is at least 1 - sqrt(KL / 2)
    (Hinton et al. 2015; DistillSpec, Zhou et al. 2023).
    """
    text = (1 - teacher_weight) * cross_entropy(logits, targets)
    return text + teacher_weight * divergence(logits, teacher)


def overlap(
    logits: Float[Array, "*lead V"], teacher: Float[Array, "*lead V"]
) -> Float[Array, "*lead"]:
    """Return sum min(p, q) = 1 - TV: the chance that rejection sampling accepts a token."""
    return jnp.minimum(jax.nn.softmax(logits, axis=-1), jax.nn.softmax(teacher, axis=-1)).sum(-1)


def negative_log_acceptance(accepted: Float[Array, "*lead"]) -> Float[Array, ""]:
    """Return the mean of -log a, a token's chance to be accepted (``overlap``): the LK loss.

    Samarin et al. 2026, arXiv:2602.23881. Its gradient is that of the overlap loss over a, so that
    it does not vanish where hardly a token is accepted. From a one-hot teacher it is the
    cross-entropy.
    """
    return -jnp.log(jnp.maximum(accepted, LEAST_CHANCE)).mean()


LEAST_CHANCE = 1e-5  # below it nothing is learned from a token


def lk_hybrid(
    kl: Float[Array, "*lead"], accepted: Float[Array, "*lead"], eta: float = 3.0
) -> Float[Array, ""]:
    """Return the mean of w KL + (1 - w) TV with w = exp(-eta a): the hybrid LK loss.

    Samarin et al. 2026, arXiv:2602.23881: KL leads where hardly a token is accepted, and gives way
    to what is wanted. No gradient goes through w; ``eta`` 3 is the paper's best.
    """
    weight = jnp.exp(-eta * jax.lax.stop_gradient(accepted))
    return (weight * kl + (1 - weight) * (1 - accepted)).mean()


def regression(
    features: Float[Array, "*lead D"], wanted: Float[Array, "*lead D"]
) -> Float[Array, ""]:
    """Return the mean smooth L1 distance of features (EAGLE, Li et al. 2024)."""
    return optax.huber_loss(features, wanted, delta=1.0).mean()

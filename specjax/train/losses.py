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
    known, guessed = jax.nn.log_softmax(teacher, axis=-1), jax.nn.log_softmax(logits, axis=-1)
    return jnp.sum(jnp.exp(known) * (known - guessed), axis=-1).mean()


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


def regression(
    features: Float[Array, "*lead D"], wanted: Float[Array, "*lead D"]
) -> Float[Array, ""]:
    """Return the mean smooth L1 distance of features (EAGLE, Li et al. 2024)."""
    return optax.huber_loss(features, wanted, delta=1.0).mean()

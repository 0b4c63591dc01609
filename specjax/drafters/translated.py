"""A draft model with a vocabulary of its own, made to speak the target's token ids.

Token-level intersection (TLI, Timor et al. 2025; vLLM's ``use_heterogeneous_vocab``): the draft
model reads every token as its own id for it, or as its unknown token where it has none, and
proposes only what both vocabularies share. Its law is then its own one restricted to the shared
tokens, renormalised: a law like any other, so every rule keeps its promise. A walk is lossless
and rejection is exact; only acceptance suffers, by what is not shared.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from specjax.sampling import FORBIDDEN
from specjax.types import PyTree, Target


class Dictionary(NamedTuple):
    """For each id of the target, V of them, one of the draft model's."""

    read: Int[Array, "V"]  # that the draft model reads in its place
    say: Int[Array, "V"]  # whose logit it gets; one past the last where there is none


class Bilingual(NamedTuple):
    """What ``translated`` takes as parameters."""

    weights: PyTree  # the draft model's own
    dictionary: Dictionary


@functools.cache
def translated(model: Target, vocab_size: int) -> Target:
    """Build a model that reads and writes another vocabulary of ``vocab_size`` ids."""

    def forward(params: Bilingual, tokens, *where):
        own = params.dictionary.read[tokens]
        return model.forward(params.weights, own, *where)

    def logits(params: Bilingual, hidden):
        own = model.logits(params.weights, hidden)
        return jnp.take(own, params.dictionary.say, axis=-1, mode="fill", fill_value=FORBIDDEN)

    return model._replace(forward=forward, logits=logits, vocab_size=vocab_size)

"""A draft model whose vocabulary is not the target's, used with the target's token ids.

Token-level intersection (TLI, Timor et al. 2025, arXiv:2502.05202; vLLM's
``use_heterogeneous_vocab``): the draft model reads its own id of every token, or its unknown
token where it has none, and proposes only tokens that both vocabularies have. What it samples
from is its distribution restricted to these and renormalised, and that is what the rules get as
q: walk is lossless and rejection is exact, and only acceptance is lower.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from specjax.core.sampling import FORBIDDEN
from specjax.core.types import PyTree, Target


class VocabMapping(NamedTuple):
    """The draft model's ids for each of the target's V ids."""

    input_ids: Int[Array, "V"]  # read in its place
    logit_ids: Int[Array, "V"]  # whose logit it gets; one past the last id where there is none


class MappedVocabParams(NamedTuple):
    """The parameters of a model with a mapped vocabulary."""

    weights: PyTree  # the draft model's own
    mapping: VocabMapping


@functools.cache
def with_mapped_vocab(model: Target, vocab_size: int) -> Target:
    """Return ``model`` with ``vocab_size`` ids of another vocabulary as inputs and logits.

    Its ``params`` are ``MappedVocabParams``.
    """

    def forward(params: MappedVocabParams, tokens, *where):
        own = params.mapping.input_ids[tokens]
        return model.forward(params.weights, own, *where)

    def logits(params: MappedVocabParams, hidden):
        own, ids = model.logits(params.weights, hidden), params.mapping.logit_ids
        return jnp.take(own, ids, axis=-1, mode="fill", fill_value=FORBIDDEN)

    return model._replace(forward=forward, logits=logits, vocab_size=vocab_size)

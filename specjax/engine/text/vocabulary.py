"""Compare the vocabularies of two models, and map the tokens they share."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from specjax.drafters.mapped_vocab import VocabMapping
from specjax.engine.text.tokenizer import Tokenizer

SPACES = ("Ġ", "▁")  # how byte-level BPE and SentencePiece write the space before a word
LEAST_SHARED = 100  # shared tokens that are needed, or half of a tiny vocabulary


class Vocabulary(NamedTuple):
    """The vocabulary of a checkpoint."""

    tokenizer: Tokenizer
    size: int  # the model's rows
    folder: Path


def check_same(target: Vocabulary, draft: Vocabulary) -> None:
    """Raise ValueError, with the first difference, unless both models have the same vocabulary."""
    must = "target and draft model must have the same vocabulary, or use_heterogeneous_vocab=true"
    if target.size != draft.size:
        raise ValueError(
            f"{must}: {target.folder} has {target.size} tokens, {draft.folder} has {draft.size}."
        )
    ours, theirs = (one.tokenizer.backend.get_vocab() for one in (target, draft))
    for word in sorted(ours.keys() | theirs.keys(), key=lambda w: ours.get(w, theirs.get(w, 0))):
        if ours.get(word) != theirs.get(word):
            raise ValueError(
                f"{must}: token {word!r} is {ours.get(word)} in {target.folder} and "
                f"{theirs.get(word)} in {draft.folder}."
            )


def find_shared(target: Vocabulary, draft: Vocabulary) -> VocabMapping:
    """Return the draft model's token id for each of the target's.

    Tokens are the same when their texts are, whichever sign stands for a space, as in vLLM. A
    token that the draft model lacks is replaced by its unknown token, or else by its EOS.

    Raises:
        ValueError: too few tokens are shared, or the draft model has neither of those.
    """
    ours, theirs = words(target), words(draft)
    shared = ours.keys() & theirs.keys()
    least = min(LEAST_SHARED, target.size // 2, draft.size // 2)
    if len(shared) < least:
        raise ValueError(
            f"use_heterogeneous_vocab: only {len(shared)} of the {len(theirs)} tokens of "
            f"{draft.folder} are in the vocabulary of {target.folder}, at least {least} are "
            "needed: use a draft model whose tokenizer is of the same kind."
        )
    logit_ids = np.full(target.size, draft.size)
    logit_ids[[ours[word] for word in shared]] = [theirs[word] for word in shared]
    known = logit_ids < draft.size
    input_ids = logit_ids if known.all() else np.where(known, logit_ids, unknown_id(draft))
    return VocabMapping(jnp.asarray(input_ids, jnp.int32), jnp.asarray(logit_ids, jnp.int32))


def words(vocabulary: Vocabulary) -> Mapping[str, int]:
    """Return token text -> id, for ids the model has; the lowest id where texts are equal."""
    tokens = vocabulary.tokenizer.backend.get_vocab().items()
    highest_first = sorted(tokens, key=lambda item: -item[1])
    return {spaced(token): i for token, i in highest_first if i < vocabulary.size}


def spaced(token: str) -> str:
    """Return a token's text with its sign for a leading space replaced by a space."""
    return " " + token[1:] if token.startswith(SPACES) else token


def unknown_id(draft: Vocabulary) -> int:
    """Return the id that the draft model reads in place of a token it lacks."""
    tokenizer = draft.tokenizer
    unknown = tokenizer.backend.token_to_id(tokenizer.special_tokens.get("unk_token", ""))
    if unknown is not None:
        return unknown
    if not tokenizer.eos_ids:
        raise ValueError(
            f"use_heterogeneous_vocab: {draft.folder} has neither an unk_token nor an eos_token to "
            "read in place of tokens it lacks: name one in its tokenizer_config.json."
        )
    return tokenizer.eos_ids[0]

"""Target and draft distributions of the bundled pair, small enough to enumerate.

After a prompt's tokens, the pair is asked for the next one, and again after every continuation: a
tree of real distributions. Of each only the V tokens that the two models like best together are
kept, and renormalised: what is enumerated is that pair of models with all other tokens forbidden.
"""

import functools
from typing import NamedTuple

import jax
import numpy as np
import tokenizers

from specjax.audit.plain_text import last_logits
from specjax.audit.prefixes import level, num_contexts
from specjax.bundled import prompts, resolve
from specjax.core.types import PyTree, Target
from specjax.models.build import build_target
from specjax.theory.arrays import Value
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params

TOKENS = 32  # of each prompt
MODELS = "bundled", "bundled:draft"


class Recorded(NamedTuple):
    """Distributions of the bundled pair at temperature 1, given every prefix (``prefixes``)."""

    p_tree: np.ndarray  # [cases, C, V] of the target
    q_tree: np.ndarray  # [cases, C, V] of the draft model
    kept: tuple[float, float]  # mean probability of the kept tokens, of target and draft


@functools.cache
def bundled_cases(num: int, size: int, depth: int) -> Recorded:
    """Return the distributions after the first ``num`` bundled prompts of ``TOKENS`` tokens.

    Args:
        num: how many prompts.
        size: V, the tokens kept after each prefix.
        depth: the longest prefix.

    Raises:
        ValueError: fewer prompts are bundled.
    """
    read = tokenizers.Tokenizer.from_file(str(resolve(MODELS[0]) / "tokenizer.json"))
    words = [read.encode(one["turns"][0]).ids[:TOKENS] for one in prompts()]
    words = [one for one in words if len(one) == TOKENS][:num]
    if len(words) < num:
        raise ValueError(f"only {len(words)} bundled prompts have {TOKENS} tokens, {num} are asked")
    models = [load_model(name) for name in MODELS]
    trees = np.zeros((2, num, num_contexts(size, depth), size))
    kept, texts = [], np.array(words, np.int32)
    for length in range(depth + 1):
        both = np.stack([probs_after(*model, texts) for model in models])  # [2, R, vocabulary]
        best = np.argsort(-both.sum(axis=0), axis=-1, kind="stable")[:, :size]
        some = np.take_along_axis(both, best[None], axis=-1)
        kept.append(some.sum(axis=-1).mean(axis=-1))
        trees[:, :, level(size, length)] = (some / some.sum(axis=-1, keepdims=True)).reshape(
            2, num, -1, size
        )
        texts = np.concatenate([texts.repeat(size, axis=0), best.reshape(-1, 1)], axis=1)
        texts = texts.astype(np.int32)
    target, draft = np.mean(kept, axis=0)
    return Recorded(trees[0], trees[1], (float(target), float(draft)))


def load_model(name: str) -> tuple[Target, PyTree]:
    """Return a bundled model as functions, and its weights."""
    folder = resolve(name)
    facts, _ = read_config(folder, dtype="float32")
    return build_target(facts), load_params(folder, facts)


def probs_after(target: Target, params: PyTree, texts: np.ndarray, rows: int = 64) -> Value:
    """Return the distribution after each text [R, T], ``rows`` texts at a time."""
    found = []
    for first in range(0, len(texts), rows):
        some = np.resize(texts[first : first + rows], (rows, texts.shape[1]))
        lengths = np.full(rows, texts.shape[1], np.int32)
        found.append(jax.nn.softmax(last_logits(target, params, some, lengths)))
    return np.concatenate(found)[: len(texts)].astype(float)

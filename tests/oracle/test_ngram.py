"""N-gram proposals on random texts: vLLM's rule."""

import collections

import jax
import jax.numpy as jnp
import numpy as np

from specjax.audit.philox import Noise
from specjax.core.types import Text
from specjax.drafters.ngram import lookup

NUM_CASES, LONGEST = 20_000, 48
SETTINGS = ((1, 1, 3), (1, 3, 3), (2, 4, 5), (5, 5, 4), (3, 3, 1), (1, 5, 8))  # min, max, K
FAR = 1 << 20  # max_model_len, out of the way


def cases() -> list[tuple[list[int], int, int, int, int]]:
    """Draw texts over small alphabets, so that matches of every length are common."""
    noise, found = Noise(0), []
    lengths, alphabets = noise.integers(1, LONGEST + 1, NUM_CASES), noise.integers(1, 7, NUM_CASES)
    letters = noise.uniform(NUM_CASES, LONGEST)
    for i in range(NUM_CASES):
        least, most, k = SETTINGS[i % len(SETTINGS)]
        text = np.floor(letters[i, : lengths[i]] * alphabets[i]).astype(int).tolist()
        found.append((text, least, most, FAR, k))
    return found


def ours(asked) -> list[list[int]]:
    """Propose with our rule, all texts of one setting at a time."""
    groups, drafts = collections.defaultdict(list), [[] for _ in asked]
    for i, (_, least, most, _, k) in enumerate(asked):
        groups[least, most, k].append(i)
    for (least, most, k), members in groups.items():
        tokens = np.zeros((len(members), LONGEST), np.int32)
        for row, i in enumerate(members):
            tokens[row, : len(asked[i][0])] = asked[i][0]
        lengths = jnp.asarray([len(asked[i][0]) for i in members], jnp.int32)
        text = Text(jnp.asarray(tokens), lengths, lengths, lengths, lengths * 0)
        proposed, valid = jax.jit(lookup, static_argnums=(1, 2, 3))(text, k, most, least)
        for i, row, real in zip(members, np.asarray(proposed), np.asarray(valid), strict=True):
            drafts[i] = row[real].tolist()
    return drafts


def test_proposals_are_vllms(vllm, compared):
    asked = cases()
    job = {"kind": "ngram", "cases": asked}
    theirs = vllm("ngram", job, lambda answer: {"drafts": answer["drafts"]})["drafts"]
    mine = ours(asked)
    different = [case for case, a, b in zip(asked, mine, theirs, strict=True) if a != b]
    assert not different, different[0]
    hits = sum(map(bool, mine))
    assert 0.3 < hits / NUM_CASES < 0.95
    compared(
        "n-gram proposals", "vLLM's rule", f"{NUM_CASES} random texts, {hits} matches", "equal"
    )

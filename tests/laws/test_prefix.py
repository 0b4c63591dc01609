"""What was read for one prompt serves another that begins alike: nothing of the other is left."""

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core import cache
from specjax.core.types import Engine
from specjax.testing.harness import CAPACITY, VOCAB, Row
from tests.laws import harness as h

DRAFTERS = {"plain": h.PLAIN, **h.CHAINS, "eagle's tree": h.GROWN["eagle"]}
CHUNK, SHARED = 16, 25
RNG = np.random.default_rng(0)
BEFORE = tuple(RNG.integers(0, VOCAB, 40).tolist())
PROMPT = (*BEFORE[:SHARED], *((token + 1) % VOCAB for token in BEFORE[SHARED:]))


def complete(engine, params, row, *, saved=(), length=0):
    """Complete a row, of which ``length`` positions may be known; return its state and infos."""
    state = h.init_state(engine, params, *h.pack([row], CAPACITY, False))
    if saved:
        state = cache.resume(state, list(saved), jnp.int32(length))
    for start in range(length, len(row.prompt), CHUNK):
        state, first, _ = h.prefill(engine, params, state, start, CHUNK)
    state, infos, _ = h.generate(engine, params, state, 40, 1, 40)
    return state, first, infos


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_text_is_the_same_after_what_another_has_read(name):
    drafter = DRAFTERS[name]
    params = h.weights(drafter)
    engine = Engine(h.TARGET, drafter, h.walk, CAPACITY, num_logprobs=VOCAB)
    other = Row(BEFORE, seed=1, temperature=0.9, max_tokens=40)
    row = Row(PROMPT, seed=2, temperature=0.9, max_tokens=40)
    saved = cache.all_slots(complete(engine, params, other)[0])
    state, first, infos = complete(engine, params, row)
    again, first_again, infos_again = complete(engine, params, row, saved=saved, length=SHARED - 1)
    assert np.array_equal(state.text.tokens, again.text.tokens)
    assert int(again.text.lengths[0]) > len(PROMPT) + 30
    for a, b in ((first, first_again), (infos, infos_again)):
        for field in ("num_drafted", "num_accepted", "num_emitted", "drafted", "reason"):
            assert np.array_equal(getattr(a, field), getattr(b, field)), field
        assert h.close(np.asarray(a.logprobs.values), np.asarray(b.logprobs.values))


def test_one_token_too_many_is_seen():
    """A head's entry for the last shared position has the token after it, which differs."""
    drafter = DRAFTERS["eagle"]
    params = h.weights(drafter)
    engine = Engine(h.TARGET, drafter, h.walk, CAPACITY, num_logprobs=VOCAB)
    row = Row(PROMPT, seed=2, temperature=0.9, max_tokens=40)
    saved = cache.all_slots(complete(engine, params, Row(BEFORE, seed=1, max_tokens=4))[0])
    right = complete(engine, params, row)[0].drafter.cache.layers[0].keys
    wrong = complete(engine, params, row, saved=saved, length=SHARED)[0]
    differ = np.abs(np.asarray(right - wrong.drafter.cache.layers[0].keys)).max(axis=(0, 1, 3))
    assert differ[SHARED - 1] > 1e-3

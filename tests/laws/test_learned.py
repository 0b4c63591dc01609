"""Heads that draw their drafts, for the ratio rules; and a target like DeepSeek-V3.

``test_same_text`` and ``test_state`` hold the laws of the heads that choose theirs.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core import sampling as s
from specjax.core.types import Params
from specjax.models.build import build_target, init_params
from specjax.verify.block import block
from specjax.verify.rejection import rejection
from tests.laws import harness as h

RULES = dict(zip(h.HEADS, [rejection, block] * len(h.HEADS), strict=False))
DRAWING = {name: h.with_head(name, method="probabilistic") for name in h.HEADS}
MANY = 4096


def run(name: str, rows: list[h.Row]) -> h.Result:
    params = h.weights(h.CHAINS[name])
    return h.run(DRAWING[name], rows, rule=RULES[name], params=params, lean=True)


@pytest.mark.parametrize("name", h.HEADS)
def test_a_head_draws_each_token_from_the_law_it_reports(name):
    """2 needs no more of a drafter; the rules' part is enumerated in ``test_same_law``.

    At every level the drawn tokens less their laws have mean zero, given what was drawn before.
    """
    row = h.Row((3, 5, 7), 20, 0, temperature=0.8)
    drafter, params = DRAWING[name], h.weights(h.CHAINS[name]).draft
    text, sampling, _ = h.pack([row] * MANY, capacity=32, lean=True)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(s.row_key(1), jnp.arange(MANY))

    @jax.jit
    def draw(params, keys):
        state = drafter.init(params, MANY, 32)
        one = jax.random.normal(jax.random.key(2), (32,))  # a feature or hidden state
        known = jax.tree.map(lambda x: x + one[None] if x.shape == (MANY, 32) else x, state)
        return drafter.propose(params, known, text, sampling, keys, 32)[0]

    draft = draw(params, keys)
    probs = np.asarray(draft.probs)[:, 1:]
    assert draft.valid.all()
    np.testing.assert_allclose(probs.sum(axis=-1), 1, atol=1e-5)
    drawn = np.eye(h.VOCAB)[np.asarray(draft.tokens)[:, 1:]]
    spread = np.sqrt((probs * (1 - probs)).sum(axis=0)) + 1
    assert (np.abs((drawn - probs).sum(axis=0)) < 5 * spread).all()
    assert (probs.max(axis=-1).mean(axis=0) < 0.9).all()  # a law, not a choice


@pytest.mark.parametrize("name", h.HEADS)
def test_at_temperature_zero_a_ratio_rule_says_what_plain_decoding_says(name):
    """4, in ragged batches with limits, penalties and stops."""
    rows = [row._replace(temperature=0.0) for row in h.random_rows(4, seed=1)]
    drafted = run(name, rows)
    assert drafted.tokens == h.run(h.PLAIN, rows, lean=True).tokens
    assert drafted.infos.num_drafted.sum() > 20


@pytest.mark.parametrize("name", h.HEADS)
def test_neither_slot_nor_mates_change_what_a_ratio_rule_says(name):
    """9 in one shape: drafts, acceptance and recovery are addressed by the row."""
    rows = [row._replace(temperature=0.8) for row in h.random_rows(4, seed=2)]
    first = run(name, rows)
    assert 0 < first.infos.num_accepted.sum() < first.infos.num_drafted.sum()
    turned = run(name, rows[3:] + rows[:3])
    assert turned.tokens == first.tokens[3:] + first.tokens[:3]
    mates = run(name, [rows[0], *h.random_rows(3, seed=99)])
    assert mates.tokens[0] == first.tokens[0]


def test_latent_attention_and_experts_keep_the_laws():
    """1, 5 and 9, bit for bit, for DeepSeek's: trees that move the cache, chunks, a row alone."""
    target, rows = build_target(h.LATENT), h.random_rows(4, seed=3)
    params = Params(init_params(h.LATENT, jax.random.key(4)), None)
    plain = h.run(h.PLAIN, rows, target=target, params=params)
    tree = h.guided(h.TREES["bush"])
    knowing = h.knowing(plain, rows, 0.8)._replace(target=params.target)
    drafted = h.run(tree, rows, target=target, params=knowing, chunk=8)
    assert drafted.infos.num_accepted.sum() > 10
    np.testing.assert_array_equal(drafted.state.cache.lengths, drafted.state.text.lengths - 1)
    alone = h.run(h.PLAIN, rows[2:3], target=target, params=params)
    pairs = [
        (drafted, plain),
        (alone, plain._replace(tokens=plain.tokens[2:3], logprobs=plain.logprobs[2:3])),
    ]
    for ours, theirs in pairs:
        assert ours.tokens == theirs.tokens
        jax.tree.map(np.testing.assert_array_equal, ours.logprobs, theirs.logprobs)
    assert all(one.keys.shape == (4, 1, h.CAPACITY, 20) for one in plain.state.cache.layers)
    assert all(one.values.size == 0 for one in plain.state.cache.layers)

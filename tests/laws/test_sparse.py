"""The laws for sparse attention (DeepSeek-V3.2's indexer): a draft changes no position's choice."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core.types import Params
from specjax.drafters.draft_model import draft_model
from specjax.drafters.feature import feature
from specjax.models import indexer
from specjax.models.build import build_feature_head, build_target, init_params
from specjax.models.config import FeatureConfig, Indexer
from tests.laws import harness as h

TOP_K = 6
LATENT = h.LATENT.latent
assert LATENT is not None
CONFIG = dataclasses.replace(
    h.LATENT,
    latent=dataclasses.replace(LATENT, indexer=Indexer(num_heads=16, head_dim=12, top_k=TOP_K)),
)
TARGET = build_target(CONFIG)
MTP = FeatureConfig(kind="mtp", block=CONFIG.block(1), target_size=CONFIG.hidden_size)
HEAD = build_feature_head(MTP)
ROWS = [*h.random_rows(2, seed=3, plain=True), *h.random_rows(2, seed=4)]
ROWS = [row._replace(stop_ids=(), max_tokens=40) for row in ROWS]
DRAFTERS = {
    "ngram": h.CHAINS["ngram"],
    "draft_model": draft_model(TARGET, h.K, "coupled"),
    "draft_model bush": draft_model(TARGET, h.BUSH, "coupled"),
    "draft_model best": draft_model(TARGET, h.BEST, "greedy"),
    "mtp": feature(HEAD, h.K, "greedy"),
    "mtp best": feature(HEAD, h.BEST, "greedy"),
}


def noisy(params, share, key):
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(key), len(leaves))
    pairs = zip(leaves, keys, strict=True)
    return jax.tree.unflatten(tree, [x + share * jax.random.normal(k, x.shape) for x, k in pairs])


def weights(drafter=None):
    """The target's weights, none at rest, and those of a drafter: a head's, or noisy ones."""
    target = noisy(init_params(CONFIG, jax.random.key(0)), 0.1, 1)
    if drafter in (DRAFTERS["mtp"], DRAFTERS["mtp best"]):
        return Params(target, init_params(MTP, jax.random.key(1)))
    return Params(target, noisy(target, 0.02, 2))


def run(drafter, rows=ROWS, *, target=TARGET, params=None, **shape):
    return h.run(drafter, rows, target=target, params=params or weights(drafter), **shape)


def assert_same(found, expected):
    """Text and every bit of every log probability are the same."""
    assert found.tokens == expected.tokens
    for ours, theirs in zip(found.logprobs, expected.logprobs, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def knowing(truth, skill):
    return h.knowing(truth, ROWS, skill)._replace(target=weights().target)


def differs(found, expected):
    return any(
        len(ours) != len(theirs) or (ours != theirs).any()
        for ours, theirs in zip(found.logprobs, expected.logprobs, strict=True)
    )


@pytest.fixture(scope="module")
def plain():
    found = run(h.PLAIN)
    assert min(found.state.text.lengths) > 5 * TOP_K
    return found


@pytest.mark.parametrize("name", DRAFTERS)
def test_speculation_never_changes_a_bit(name, plain):
    found = run(DRAFTERS[name])
    assert found.infos.num_accepted.sum() < found.infos.num_drafted.sum()
    assert found.infos.num_accepted.sum() > 0 or name == "mtp"  # a chain of a head at random
    assert_same(found, plain)


@pytest.mark.parametrize("name", h.TREES)
def test_accepted_branches_keep_their_keys_of_both_kinds(name, plain):
    found = run(h.guided(h.TREES[name]), params=knowing(plain, 0.8))
    assert found.infos.num_accepted.sum() > 30
    assert_same(found, plain)


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_a_prompt_is_read_in_chunks_of_any_size(chunk, plain):
    assert_same(run(h.PLAIN, chunk=chunk), plain)


def test_neither_batch_nor_slot_nor_window_changes_a_bit(plain):
    turned = run(DRAFTERS["ngram"], ROWS[1:] + ROWS[:1], window=112)
    assert_same(turned, plain._replace(
        tokens=plain.tokens[1:] + plain.tokens[:1], logprobs=plain.logprobs[1:] + plain.logprobs[:1]
    ))  # fmt: skip
    for b, row in enumerate(ROWS):
        one = run(h.PLAIN, [row])
        assert one.tokens == [plain.tokens[b]]
        np.testing.assert_array_equal(one.logprobs[0], plain.logprobs[b])


def test_a_text_that_is_no_longer_than_the_choice_is_seen_whole():
    """Up to ``top_k`` positions the attention is that of the model without its indexer."""
    rows = [row._replace(prompt=row.prompt[:3], max_tokens=TOP_K - 2) for row in ROWS]
    assert LATENT is not None
    whole = build_target(dataclasses.replace(CONFIG, latent=LATENT))
    params = weights()
    layers = {
        i: layer | {"self_attn": {k: v for k, v in layer["self_attn"].items() if k != "indexer"}}
        for i, layer in params.target["layers"].items()
    }
    without = params._replace(target=params.target | {"layers": layers})
    assert_same(run(h.PLAIN, rows), run(h.PLAIN, rows, target=whole, params=without))
    longer = [row._replace(max_tokens=TOP_K + 4) for row in rows]
    found = run(h.PLAIN, longer, target=whole, params=without)
    assert differs(run(h.PLAIN, longer), found)


def test_the_law_sees_positions_that_are_chosen_among_other_branches(plain, monkeypatch):
    """The mutation: a rejected or unrelated node takes the place of a chosen position."""
    right = indexer.highest

    def careless(scores, mask, top_k):
        return mask & right(scores, jnp.ones_like(mask), top_k)

    monkeypatch.setattr(indexer, "highest", careless)
    target = TARGET._replace(logits=lambda *args: TARGET.logits(*args))  # compiled anew
    assert differs(run(h.guided(h.CHAIN), target=target, params=knowing(plain, 0.5)), plain)


def test_the_law_sees_the_choices_keys_left_behind(plain, monkeypatch):
    """The mutation: an accepted branch moves, and the indexer's keys of its nodes do not."""
    from specjax.core import cache

    right = cache.keep

    def lazy(before, path, count):
        after = right(before, path, count)
        pairs = zip(after.layers, before.layers, strict=True)
        return after._replace(layers=tuple(new._replace(values=old.values) for new, old in pairs))

    monkeypatch.setattr(cache, "keep", lazy)
    target = TARGET._replace(logits=lambda *args: TARGET.logits(*args))
    found = run(h.guided(h.TREES["bush"]), target=target, params=knowing(plain, 0.8))
    assert differs(found, plain)

"""The laws for recurrent state (Qwen3-Next's layers): a rejected token leaves no trace in it."""

import jax
import numpy as np
import pytest

from specjax.core.types import Params, Recurrent
from specjax.drafters.feature import feature
from specjax.models.build import build_feature_head, build_target, init_params
from specjax.models.config import FeatureConfig
from tests.laws import harness as h

CONFIG = h.RECURRENT
TARGET = build_target(CONFIG)
# greedy texts repeat themselves, so that drafts are accepted; the others are rejected more often
ROWS = [*h.random_rows(2, seed=3, plain=True), *h.random_rows(2, seed=3)]
ROWS = [row._replace(stop_ids=(), max_tokens=40) for row in ROWS]
MTP = FeatureConfig(  # as in weights.head_configs: the layer of attention once more
    kind="mtp", block=CONFIG.block(1), target_size=CONFIG.hidden_size, mask_first=False
)
DRAFTERS = {name: h.CHAINS[name] for name in ("ngram", "suffix", "draft_model greedy")}
DRAFTERS["mtp"] = feature(build_feature_head(MTP), 3, "greedy")


def weights(drafter=None):
    """The target's weights, none at rest, and those of a drafter."""
    leaves, tree = jax.tree.flatten(init_params(CONFIG, jax.random.key(0)))
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noisy = [
        x * 1.3 + 0.1 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)
    ]
    head = drafter == DRAFTERS["mtp"]
    draft = init_params(MTP, jax.random.key(1)) if head else h.weights(drafter).draft
    return Params(jax.tree.unflatten(tree, noisy), draft)


def run(drafter, rows=ROWS, *, target=TARGET, params=None, **shape):
    return h.run(
        drafter, rows, target=target, params=params or weights(drafter), lean=True, **shape
    )


def knowing(truth, skill):
    return h.knowing(truth, ROWS, skill)._replace(target=weights().target)


def states(result):
    """The recurrent layers, whole: no part of them is garbage."""
    return [one for one in result.state.cache.layers if isinstance(one, Recurrent)]


def assert_no_trace(drafted, plain):
    """Text and every bit of every state are those of plain decoding."""
    assert drafted.tokens == plain.tokens
    jax.tree.map(np.testing.assert_array_equal, states(drafted), states(plain))


@pytest.fixture(scope="module")
def plain():
    return run(h.PLAIN)


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_rejected_token_leaves_no_trace_in_any_state(name, plain):
    drafted = run(DRAFTERS[name])
    assert 0 < drafted.infos.num_accepted.sum() < drafted.infos.num_drafted.sum()
    assert_no_trace(drafted, plain)


def test_a_rejected_branch_leaves_no_trace_in_any_state(plain):
    """Trees: a node's state follows its parent's, and only the accepted path is kept."""
    tree = h.guided(h.TREES["bush"])
    for skill in (0.5, 0.9):
        drafted = run(tree, params=knowing(plain, skill))
        assert drafted.infos.num_accepted.sum() > 10
        assert_no_trace(drafted, plain)


@pytest.mark.parametrize("chunk", [4, 64])
def test_a_prompt_read_in_chunks_of_any_size_leaves_the_same_state(chunk, plain):
    assert_no_trace(run(h.PLAIN, chunk=chunk), plain)


def test_neither_batch_nor_slot_changes_a_state(plain):
    turned = run(h.PLAIN, ROWS[1:] + ROWS[:1])
    alone = run(h.PLAIN, ROWS[2:3])
    for ours, theirs in zip(states(turned), states(plain), strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, np.roll(b, -1, 0)), ours, theirs)
    for ours, theirs in zip(states(alone), states(plain), strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[0], b[2]), ours, theirs)


def test_the_law_sees_a_state_that_read_a_rejected_token(plain):
    """The mutation: a pass that advances states by all its nodes, as it does for a prompt."""

    def eager(
        params, tokens, positions, visible, cache, window, only=None, present=None, order="tree"
    ):
        return TARGET.forward(
            params, tokens, positions, visible, cache, window, only, present, "text"
        )

    drafted = run(h.CHAINS["ngram"], target=TARGET._replace(forward=eager))
    with pytest.raises(AssertionError):
        assert_no_trace(drafted, plain)

"""Law 2 by enumeration of the shipped kernels, and laws 3 and 4 for every rule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.audit.cases import KINDS, random_cases
from specjax.audit.exact import exact_distribution
from specjax.audit.noise_reuse import noise_reuse_rate
from specjax.audit.prefixes import texts, transport_bound
from specjax.core.topology import chain_parents
from specjax.core.types import Draft
from specjax.verify.block import block
from specjax.verify.entropy import entropy
from specjax.verify.noise import Noise
from specjax.verify.rejection import reject, rejection
from specjax.verify.rejection_tree import descend, rejection_tree
from specjax.verify.typical import typical
from specjax.verify.walk import follow, walk
from tests.laws.test_rules import K, V, emitted, random_chain

RATIO = {"rejection": rejection, "rejection_tree": rejection_tree, "block": block}
NUM, SIZE, DEPTH = 20 * len(KINDS), 3, 3
CASES = random_cases(NUM, SIZE, DEPTH)
FEW = 5 * len(KINDS)
TREES = {"two levels": ((0, 0, 0, 1, 1), 2), "interleaved": ((0, 0, 1, 0, 2), 3)}


def assert_exact(law):
    assert law.tv.max() < 1e-6
    assert law.doubt.max() < 1e-6
    assert law.stray.max() == 0


@pytest.fixture(scope="module")
def lengths():
    """Expected lengths of the ratio rules on the same chains, filled in as they are audited."""
    return {}


@pytest.mark.parametrize("name", RATIO)
def test_ratio_rules_have_the_target_s_law(name, lengths):
    law = exact_distribution(RATIO[name], *CASES, DEPTH)
    assert_exact(law)
    lengths[name] = law.expected_length
    assert (law.expected_length <= transport_bound(*CASES, DEPTH) + 1e-6).all()


def test_block_is_never_shorter_than_rejection_and_sometimes_longer(lengths):
    gain = lengths["block"] - lengths["rejection"]
    assert gain.min() > -1e-6
    assert gain.max() > 0.05
    assert np.allclose(lengths["rejection_tree"], lengths["rejection"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", RATIO)
def test_drafts_that_end_early_are_exact_too(name):
    for there in ("yyyn", "yynn", "ynnn", "yyny"):
        valid = [mark == "y" for mark in there]
        law = exact_distribution(RATIO[name], *CASES, DEPTH, valid=valid)
        assert_exact(law)
        assert law.expected_length.max() <= valid.index(False) + 1e-6  # what follows a gap is lost


@pytest.mark.parametrize("name", RATIO)
def test_a_draft_that_tells_no_law_is_taken_for_certain(name):
    """So it may be any token, however it was chosen."""
    cases = random_cases(FEW, SIZE, 2)
    assert_exact(exact_distribution(RATIO[name], *cases, 2, with_probs=False))


def test_a_rule_that_walks_has_the_target_s_law():
    assert_exact(exact_distribution(walk, *random_cases(FEW, SIZE, 2), 2))


@pytest.mark.parametrize("tree", TREES)
def test_sibling_rejection_has_the_target_s_law_on_any_tree(tree):
    shape, depth = TREES[tree]
    for replacement in (True, False):
        cases = random_cases(FEW, SIZE, depth)
        law = exact_distribution(
            rejection_tree, *cases, depth, parents=shape, replacement=replacement
        )
        assert_exact(law)


def test_distinct_siblings_are_accepted_more_often_than_independent_ones():
    p_tree, q_tree = random_cases(FEW, 4, 1)
    independent, distinct = (
        exact_distribution(rejection_tree, p_tree, q_tree, 1, parents=(0, 0, 0), replacement=how)
        for how in (True, False)
    )
    assert_exact(independent)
    assert_exact(distinct)
    alone = 1 + np.minimum(texts(p_tree, 1), texts(q_tree, 1)).sum(axis=-1)
    assert (distinct.expected_length >= independent.expected_length - 1e-6).all()
    assert (independent.expected_length >= alone - 1e-6).all()
    assert distinct.expected_length.mean() > independent.expected_length.mean() + 0.02


@pytest.mark.parametrize("rule", [*RATIO.values(), walk])
def test_no_noise_decides_two_rounds(rule):
    """Block verification looks past its refusals: addressed by token it would not be exact."""
    assert noise_reuse_rate(rule, size=SIZE, rounds=NUM * SIZE**DEPTH) == 0


def test_siblings_have_noise_of_their_own():
    assert noise_reuse_rate(rejection_tree, parents=TREES["two levels"][0], rounds=64) == 0


@pytest.mark.parametrize("told", [True, False])
def test_a_chain_is_a_tree_for_rejection_too(told):
    """3: token for token, given the same noise; ragged drafts, zeros in p and q."""
    rng = np.random.default_rng(5)
    draft, logits, _, _ = random_chain(rng)
    p = jax.nn.softmax(jnp.where(logits < -2, -1e30, logits), -1)
    q = rng.dirichlet(np.ones(V), p.shape[:2]) * (rng.random(p.shape) < 0.8)
    draft = draft._replace(probs=jnp.asarray(q, jnp.float32) if told else None)
    uniform = jnp.asarray(rng.random(p.shape[:2]), jnp.float32)
    noise = Noise(uniform, jnp.asarray(rng.exponential(size=p.shape), jnp.float32))
    chain, tree = (
        jax.jit(rule, static_argnums=3)(noise, draft, p, K) for rule in (reject, descend)
    )
    assert emitted(chain) == emitted(tree)
    for b, count in enumerate(np.asarray(chain.num_accepted)):
        assert (chain.path[b, : count + 1] == tree.path[b, : count + 1]).all()


@pytest.mark.parametrize(
    ("rule", "told"),
    [(block, True), (block, False), (rejection_tree, True), (typical(), False), (entropy(), True)],
)
def test_temperature_zero_is_the_same_kernel_for_every_rule(rule, told):
    """4: with one-hot p each emits exactly what the walk emits, whatever the noise."""
    rng = np.random.default_rng(6)
    draft, logits, text, sampling = random_chain(rng, temperature=0.0)
    choice = jnp.argmax(logits, -1).astype(jnp.int32)
    guess = jnp.where(jnp.asarray(rng.random(choice[:, 1:].shape) < 0.7), choice[:, :-1], 0)
    tokens = jnp.concatenate([draft.tokens[:, :1], guess], axis=1)
    draft = Draft(tokens, chain_parents(*tokens.shape), draft.valid, None)
    if told:
        draft = draft._replace(probs=jax.nn.one_hot(tokens, V, dtype=jnp.float32))
    verify = jax.jit(rule.verify, static_argnums=5)
    for _ in range(3):
        uniform = jnp.asarray(rng.random(tokens.shape), jnp.float32)
        noise = Noise(uniform, jnp.asarray(rng.exponential(size=logits.shape), jnp.float32))
        verdict = verify(noise, draft, logits, text, sampling, K)
        assert emitted(verdict) == emitted(follow(draft, choice, K))

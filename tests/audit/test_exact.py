"""The audit against what is known otherwise: papers, closed forms, and a lot of samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjax.audit.cases import KINDS, PARTS, random_cases
from specjax.audit.exact import exact_distribution
from specjax.audit.noise_partition import GRID, count
from specjax.audit.prefixes import continued, level, num_contexts, spell, texts, transport_bound
from specjax.audit.request import plain_request, repeat
from specjax.audit.zoo import block_by_products_of_uniforms
from specjax.core.types import Draft
from specjax.verify.block import block
from specjax.verify.entropy import entropy
from specjax.verify.noise import Noise
from specjax.verify.rejection import rejection


def alike(law, K):
    """The same distribution after every prefix."""
    return np.broadcast_to(law, (1, num_contexts(len(law), K), len(law))).astype(float)


def test_the_example_of_the_block_verification_paper():
    """Sun et al. 2024, section 2: 10/9 accepted by tokens, 11/9 by blocks, 12/9 by transport."""
    p_tree, q_tree = alike([1 / 3, 2 / 3], 2), alike([2 / 3, 1 / 3], 2)
    tokens, blocks = (exact_distribution(rule, p_tree, q_tree, 2) for rule in (rejection, block))
    assert tokens.expected_length == pytest.approx(1 + 10 / 9, abs=1e-6)
    assert blocks.expected_length == pytest.approx(1 + 11 / 9, abs=1e-6)
    assert transport_bound(p_tree, q_tree, 2) == pytest.approx(1 + 12 / 9)


def test_expected_lengths_have_the_closed_form():
    """Leviathan et al. 2023: with the same p and q everywhere, the sum of alpha ** i."""
    p, q = np.array([6, 5, 4, 1]) / PARTS, np.array([1, 3, 6, 6]) / PARTS
    alpha = np.minimum(p, q).sum()
    law = exact_distribution(rejection, alike(p, 2), alike(q, 2), 2)
    assert law.expected_length == pytest.approx(1 + alpha + alpha**2, abs=1e-6)


def test_a_million_rounds_agree_with_the_law_of_a_lossy_rule():
    """Real noise, drawn drafts: the law is not the target's, and the audit knows which it is."""
    rng, n, K, rule = np.random.default_rng(0), 1_000_000, 1, entropy(0.5, 1.0)
    p, q = np.array([9, 5, 2]) / PARTS, np.array([2, 4, 10]) / PARTS
    law = exact_distribution(rule, alike(p, K), alike(q, K), K)
    assert law.tv > 0.1
    request = plain_request(np.ones((1, 1, 3)), K)
    drafted = rng.choice(3, size=n, p=q)
    draft = Draft(
        jnp.stack([jnp.zeros(n, jnp.int32), jnp.asarray(drafted, jnp.int32)], axis=1),
        jnp.zeros((n, 2), jnp.int32),
        jnp.ones((n, 2), bool),
        jnp.broadcast_to(jnp.asarray(q, jnp.float32), (n, 2, 3)),
    )
    uniform = jnp.asarray(rng.random((n, 2)), jnp.float32)
    noise = Noise(uniform, jnp.asarray(rng.exponential(size=(n, 2, 3)), jnp.float32))
    logits = jnp.broadcast_to(jnp.log(jnp.asarray(p, jnp.float32)), (n, 2, 3))
    said = jax.jit(rule.verify, static_argnums=5)(
        noise, draft, logits, repeat(request.text, n), repeat(request.sampling, n), K
    )
    second = np.where(said.num_accepted == 1, said.tokens[:, 1], rng.choice(3, size=n, p=p))
    found = np.bincount(np.asarray(said.tokens[:, 0]) * 3 + second, minlength=9) / n
    assert abs(found - law.joint[0]).sum() / 2 < 0.003
    assert np.mean(said.num_accepted + 1) == pytest.approx(law.expected_length[0], abs=0.003)


def test_noise_that_interacts_is_doubted_until_it_is_cut_finely():
    """A product of uniforms is no box: the audit says so, and how wrong it can be."""
    specimen = block_by_products_of_uniforms()
    cases = random_cases(len(KINDS), 3, 2)
    coarse, fine, finer = (exact_distribution(specimen.rule, *cases, 2, parts=n) for n in (1, 4, 8))
    assert coarse.doubt.max() > fine.doubt.max() > finer.doubt.max() > 0
    apart = abs(fine.joint - finer.joint).sum(axis=-1) / 2
    assert (apart <= fine.doubt + finer.doubt + 1e-12).all()  # float64 sums
    assert (finer.tv - finer.doubt).max() > 0.05


def test_cutting_finely_changes_nothing_for_a_rule_of_thresholds():
    cases = random_cases(len(KINDS), 3, 2)
    whole, cut = (exact_distribution(block, *cases, 2, parts=n) for n in (1, 3))
    assert np.allclose(whole.joint, cut.joint, rtol=0, atol=1e-12)


@given(st.integers(0, GRID), st.integers(1, 7))
def test_counting_finds_every_threshold(threshold, at_once):
    asked = []

    def holds(points):
        asked.append(points)
        assert ((points >= 0) & (points < GRID)).all()
        return points < threshold

    assert count(holds, (1,), at_once) == threshold
    assert len(asked) <= 24


def test_prefixes_are_numbered_in_dictionary_order():
    words = spell(3, 2)
    assert words.tolist()[:5] == [[-1, -1], [0, -1], [1, -1], [2, -1], [0, 0]]
    for context, word in enumerate(words):
        number = 0
        for token in word[word >= 0]:
            number = number * 3 + 1 + token
        assert number == context
    assert level(3, 1) == slice(1, 4)


def test_a_law_continues_what_another_has_begun():
    p_tree, _ = random_cases(len(KINDS), 3, 2)
    whole = texts(p_tree, 3)
    assert np.allclose(whole.sum(axis=-1), 1)
    mass = np.zeros((len(p_tree), num_contexts(3, 3)))
    mass[:, level(3, 1)] = p_tree[:, 0]
    assert np.allclose(continued(mass, p_tree, 3), whole)


def test_cases_are_laws_on_a_grid_and_have_every_corner():
    p_tree, q_tree = random_cases(len(KINDS), 4, 2)
    for tree in (p_tree, q_tree):
        assert np.allclose(tree.sum(axis=-1), 1)
        assert np.allclose(tree * 4 * PARTS, np.round(tree * 4 * PARTS))
        assert (tree == 0).any()
    kind = dict(zip(KINDS, zip(p_tree, q_tree, strict=True), strict=True))
    assert (kind["same"][0] == kind["same"][1]).all()
    assert not (np.minimum(*kind["disjoint"]) > 0).any()
    assert set(np.unique(kind["sure draft"][1])) == {0, 1}
    assert (kind["tied"][0] == kind["tied"][0][:, ::-1]).all()

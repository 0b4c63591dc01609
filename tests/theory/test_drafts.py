"""Several drafts, whole blocks and mixtures of texts: enumerated, bounded, and from the papers."""

import itertools

import numpy as np
import pytest

from specjax import theory

P, Q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.1, 0.3, 0.2, 0.4])


def random_law(rng, size):
    weights = rng.gamma(0.7, size=size)
    return weights / weights.sum()


@pytest.mark.parametrize("replacement", [True, False])
def test_one_draft_is_rejection_sampling_and_more_drafts_accept_more(replacement):
    chances = [theory.multi_draft_acceptance(P, Q, k, replacement) for k in (1, 2, 3)]
    assert chances[0] == pytest.approx(theory.acceptance_prob(P, Q))
    assert chances == sorted(chances)
    assert chances[-1] <= 1


def simulate(rng, p, q, k, replacement):
    """Run recursive rejection once, token by token; return whether a draft was accepted."""
    p, q = p.copy(), q.copy()
    for _ in range(k):
        x = rng.choice(len(q), p=q / q.sum())
        if rng.random() * q[x] < p[x]:
            return True
        p = np.maximum(p - q, 0)
        p /= p.sum()
        if not replacement:
            q[x] = 0
            q /= q.sum()
    return False


@pytest.mark.parametrize("replacement", [True, False])
def test_simulated_siblings_are_accepted_as_often(replacement):
    rng, n = np.random.default_rng(0), 4000
    hits = sum(simulate(rng, P, Q, 2, replacement) for _ in range(n))
    _, low, high = theory.acceptance_ci(hits, n, level=0.9999)
    assert low < theory.multi_draft_acceptance(P, Q, 2, replacement) < high


@pytest.mark.parametrize("k", [1, 2, 3])
def test_no_rule_beats_optimal_transport_which_is_halls_bound(k):
    """By max-flow = min-cut the program's value is 1 - max over sets A of q(A)^k - p(A)."""
    rng = np.random.default_rng(k)
    for _ in range(5):
        p, q = random_law(rng, 4), random_law(rng, 4)
        subsets = [list(one) for r in range(5) for one in itertools.combinations(range(4), r)]
        bound = 1 - max(q[A].sum() ** k - p[A].sum() for A in subsets)
        best = theory.optimal_transport_acceptance(p, q, k)
        assert best == pytest.approx(bound, abs=1e-9)
        assert theory.multi_draft_acceptance(p, q, k) <= best + 1e-9
        distinct = theory.optimal_transport_acceptance(p, q, k, replacement=False)
        assert theory.multi_draft_acceptance(p, q, k, False) <= distinct + 1e-9
        assert best <= distinct + 1e-9


def test_block_verification_turns_10_ninths_into_11():
    """Sun et al. 2024, motivating example: p = (1/3, 2/3), q = (2/3, 1/3), two draft tokens."""
    p, q = np.array([1, 2]) / 3, np.array([2, 1]) / 3
    p_tree, q_tree = [p, np.stack([p, p])], [q, np.stack([q, q])]
    assert theory.token_verification_tokens(p_tree, q_tree) - 1 == pytest.approx(10 / 9)
    assert theory.block_verification_tokens(p_tree, q_tree) - 1 == pytest.approx(11 / 9)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_block_verification_never_accepts_less(depth):
    """And it accepts prefix i with chance E[r_i], which no exact rule exceeds (idem)."""
    rng = np.random.default_rng(depth)
    for _ in range(10):
        trees = []
        for _ in range(2):
            weights = [rng.gamma(0.7, size=(3,) * (i + 1)) for i in range(depth)]
            trees.append([w / w.sum(axis=-1, keepdims=True) for w in weights])
        block = theory.block_verification_tokens(*trees)
        token = theory.token_verification_tokens(*trees)
        assert block >= token - 1e-12
        if depth == 1:
            assert block == pytest.approx(1 + theory.acceptance_prob(trees[0][0], trees[1][0]))
        kept, reach, expected = np.ones(()), np.ones(()), 1.0
        for p, q in zip(*trees, strict=True):
            kept, reach = np.minimum(kept[..., None] * p / q, 1), reach[..., None] * q
            expected += (kept * reach).sum()
        assert block == pytest.approx(expected)


def test_equal_laws_accept_everything():
    tree = [P, np.stack([Q] * 4)]
    assert theory.block_verification_tokens(tree, tree) == pytest.approx(3)
    assert theory.multi_draft_acceptance(P, P, 3) == pytest.approx(1)


def test_mixtures_average_by_steps_or_by_tokens():
    alphas, w, K = np.array([0.2, 0.9]), np.array([0.5, 0.5]), 4
    tokens = theory.tokens_per_step(alphas, K)
    by_steps = theory.mixture_tokens(alphas, w, K)
    by_tokens = theory.mixture_tokens(alphas, w, K, "tokens")
    assert by_steps == pytest.approx(tokens.mean())
    assert by_tokens == pytest.approx(1 / (1 / tokens).mean())
    shares = w * tokens / (w @ tokens)  # of tokens, when w counts steps
    assert theory.mixture_tokens(alphas, shares, K, "tokens") == pytest.approx(by_steps)
    gap = theory.jensen_gap(alphas, w, K)
    assert gap == pytest.approx(by_steps - theory.tokens_per_step(0.55, K))
    assert gap > 0.3
    assert theory.jensen_gap([0.5, 0.5], w, K) == pytest.approx(0)


def test_beta_mixture_is_the_average_over_drawn_alphas():
    drawn = np.random.default_rng(0).beta(2.0, 1.5, 200_000)
    tokens = theory.tokens_per_step(drawn, 5)
    error = tokens.std() / np.sqrt(len(drawn))
    assert abs(tokens.mean() - theory.beta_mixture_tokens(2.0, 1.5, 5)) < 4.5 * error
    assert theory.beta_mixture_tokens(1, 1, 2) == pytest.approx(1 + 1 / 2 + 1 / 3)


def test_markov_tokens_walk_the_states():
    alphas, T = np.array([0.9, 0.4]), np.array([[0.8, 0.2], [0.3, 0.7]])
    pi, K = np.array([0.6, 0.4]), 3
    total = 1.0
    for length in range(1, K + 1):
        for path in itertools.product(range(2), repeat=length):
            chance = pi[path[0]] * alphas[path[0]]
            for here, there in itertools.pairwise(path):
                chance *= T[here, there] * alphas[there]
            total += chance
    assert theory.markov_tokens(pi, T, alphas, K) == pytest.approx(total)
    same = theory.markov_tokens(pi, T, [0.7, 0.7], K)
    assert same == pytest.approx(theory.tokens_per_step(0.7, K))
    assert theory.markov_tokens(pi, T, alphas, 0) == pytest.approx(1)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: theory.multi_draft_acceptance(P, Q, 0), "k must be"),
        (lambda: theory.multi_draft_acceptance(P, Q[:3] / Q[:3].sum(), 2), "one distribution"),
        (lambda: theory.optimal_transport_acceptance(P, Q, 20), "outcomes to enumerate"),
        (lambda: theory.block_verification_tokens([P], [Q, Q]), "level i needs shape"),
        (lambda: theory.mixture_tokens([0.5], [0.9], 3), "w must sum to 1"),
        (lambda: theory.mixture_tokens([0.5], [1.0], 3, "words"), "weight must be"),
        (lambda: theory.beta_mixture_tokens(0, 1, 3), "a must be"),
    ],
)
def test_what_cannot_be_enumerated_or_weighed_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()

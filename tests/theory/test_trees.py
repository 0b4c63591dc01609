"""Draft trees: brute force, best-first growth and the papers' identities agree."""

import functools
import heapq
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import theory

ACC = np.array([0.6, 0.2, 0.1])


@functools.cache
def every_tree(n, depth):
    """List the worths of all trees of n nodes at most ``depth`` deep, children in order."""
    if n == 1:
        return (1.0,)
    if depth == 0:
        return ()
    worths = []
    for children in range(1, min(n - 1, len(ACC)) + 1):
        for sizes in itertools.product(range(1, n), repeat=children):
            if sum(sizes) == n - 1:
                parts = [every_tree(size, depth - 1) for size in sizes]
                for one in itertools.product(*parts):
                    worths.append(1.0 + sum(a * w for a, w in zip(ACC, one, strict=False)))
    return tuple(worths)


def worth(tree, acc=ACC):
    """Recompute a tree's tokens from its parents: the i-th child of a node has acc[i]."""
    seen, probs = {}, [1.0]
    for node in range(1, len(tree.parents)):
        parent = int(tree.parents[node])
        rank = seen[parent] = seen.get(parent, -1) + 1
        probs.append(acc[rank])
    return theory.tree_tokens(tree.parents, np.array(probs))


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("depth", [1, 2, 6])
def test_the_dynamic_program_finds_the_best_of_all_trees(n, depth):
    possible = every_tree(n, depth)
    if not possible:  # a flat tree has at most 1 + len(ACC) nodes
        assert len(theory.tree_optimal(ACC, n, depth).parents) < n
        return
    tree = theory.tree_optimal(ACC, n, depth)
    assert len(tree.parents) == n
    assert tree.tokens == pytest.approx(max(possible))
    assert worth(tree) == pytest.approx(tree.tokens)


def best_first(acc, n):
    """Grow the tree by its most likely next node, n - 1 times."""
    front, total = [(-a, i) for i, a in enumerate(acc)], 1.0
    heapq.heapify(front)
    for _ in range(n - 1):
        reached, _ = heapq.heappop(front)
        total -= reached
        for i, a in enumerate(acc):
            heapq.heappush(front, (reached * a, i))
    return total


@pytest.mark.parametrize("n", [4, 16, 48])
def test_the_dynamic_program_is_best_first_growth(n):
    assert theory.tree_optimal(ACC, n).tokens == pytest.approx(best_first(ACC, n))


def test_a_chain_is_a_degenerate_tree():
    chain = theory.tree_optimal([0.8], 6)
    assert chain.parents.tolist() == [0, 0, 1, 2, 3, 4]
    assert chain.tokens == pytest.approx(theory.tokens_per_step(0.8, 5))
    flat = theory.tree_optimal(ACC, 4, max_depth=1)
    assert flat.parents.tolist() == [0, 0, 0, 0]
    assert flat.tokens == pytest.approx(1.9)


def test_levels_may_have_chances_of_their_own():
    """Against the n best nodes of a large candidate tree, whose nodes' chances differ by level."""
    acc = np.array([[0.6, 0.25, 0.1], [0.5, 0.2, 0.1], [0.3, 0.15, 0.05]])
    parents, probs, levels = [0], [1.0], [0]
    for node in range(1 + 3 + 9):
        for rank in range(3):
            parents.append(node)
            levels.append(levels[node] + 1)
            probs.append(acc[levels[node], rank])
    for n in (2, 5, 9):
        tree = theory.tree_optimal(acc, n, 3)
        best = theory.tree_from_probs(parents, np.array(probs), n).tree.tokens
        assert tree.tokens == pytest.approx(best)
    assert theory.tree_optimal([0.5, 0.0], 4).tokens == pytest.approx(1.875)  # no child of rank 1
    same = theory.tree_optimal(np.tile(ACC, (4, 1)), 12)
    np.testing.assert_array_equal(same.parents, theory.tree_optimal(ACC, 12).parents)


def test_the_best_nodes_of_a_candidate_are_a_tree_and_no_choice_is_better():
    rng = np.random.default_rng(0)
    parents = np.array([0, 0, 0, 1, 1, 2, 3, 3, 5])
    for _ in range(5):
        probs = rng.uniform(0.1, 0.6, 9)
        choice = theory.tree_from_probs(parents, probs, 5)
        best = 0.0
        for nodes in itertools.combinations(range(1, 9), 4):
            kept = {0, *nodes}
            if all(int(parents[node]) in kept for node in nodes):
                reached = np.ones(9)
                for node in range(1, 9):
                    reached[node] = probs[node] * reached[parents[node]]
                best = max(best, reached[sorted(kept)].sum())
        assert choice.tree.tokens == pytest.approx(best)
        assert theory.tree_tokens(choice.tree.parents, probs[choice.nodes]) == pytest.approx(best)


def test_medusas_cartesian_tree_is_the_tree_it_names():
    accuracies = np.array([[0.5, 0.7], [0.4, 0.6]])
    assert theory.cartesian_tree_tokens(accuracies, [2, 2]) == pytest.approx(1 + 0.7 + 0.7 * 0.6)
    parents, probs = [0, 0, 0, 1, 1, 2, 2], [1, 0.5, 0.2, 0.4, 0.2, 0.4, 0.2]
    assert theory.tree_tokens(parents, probs) == pytest.approx(
        theory.cartesian_tree_tokens(accuracies, [2, 2])
    )


def test_hardware_decides_how_large_a_tree_pays():
    def cost(n):
        return 1 + 0.02 * (n - 1)

    best = theory.tree_hardware_optimal(ACC, cost, 0.05, 24, 6)
    gains = {
        (n, d): theory.tree_optimal(ACC, n, d).tokens / (cost(n) + 0.05 * d)
        for n in range(1, 25)
        for d in range(7)
        if n == len(theory.tree_optimal(ACC, n, d).parents)
    }
    assert best.speedup == pytest.approx(max(gains.values()))
    assert (len(best.tree.parents), best.depth) == max(gains, key=lambda key: gains[key])
    dear = theory.tree_hardware_optimal(ACC, lambda n: n, 0.05, 24, 6)
    assert (len(dear.tree.parents), dear.depth, dear.speedup) == (1, 0, 1.0)


def test_the_gradient_says_what_each_subtree_is_worth():
    parents, probs = np.array([0, 0, 0, 1, 1, 3]), np.array([1, 0.5, 0.3, 0.6, 0.2, 0.5])
    with jax.enable_x64(True):
        slope = jax.grad(lambda x: theory.tree_tokens(parents, x))(jnp.asarray(probs))
    for node, subtree in {1: [1, 3, 4, 5], 2: [2], 3: [3, 5], 5: [5]}.items():
        without = probs.copy()
        without[node] = 0.0
        loss = theory.tree_tokens(parents, probs) - theory.tree_tokens(parents, without)
        assert float(slope[node]) * probs[node] == pytest.approx(loss), subtree
    assert float(slope[0]) == 0


def test_batches_of_probabilities_broadcast():
    probs = np.array([[1, 0.5, 0.5], [1, 1.0, 1.0]])
    np.testing.assert_allclose(theory.tree_tokens([0, 0, 1], probs), [1.75, 3.0])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: theory.tree_tokens([0, 1, 2], [1, 0.5, 0.5]), "index - parent"),
        (lambda: theory.tree_tokens([0, 0], [1, 1.5]), "node_prob"),
        (lambda: theory.tree_optimal([0.9, 0.3], 4), "sum of acc_vector"),
        (lambda: theory.tree_optimal([0.9], 0), "n must be"),
        (lambda: theory.tree_from_probs([0, 0], [1, 0.5], 3), "n must be in"),
        (lambda: theory.cartesian_tree_tokens([[0.5]], [2]), "sizes must be"),
        (lambda: theory.tree_hardware_optimal([0.5], lambda n: -n, 0.1, 4, 2), "t must be"),
    ],
)
def test_what_is_no_tree_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()

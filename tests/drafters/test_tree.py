"""Which trees there are, and that they are refused by name where they are none."""

import numpy as np
import pytest

from specjax.drafters.tree import Tree, candidates, chain_of, fixed, lay_out
from specjax.engine.options.trees import read_paths, read_sizes, to_text

MEDUSA = [[0], [0, 0], [1], [0, 1], [2], [0, 0, 0], [1, 0], [0, 2]]


def test_a_number_is_a_chain_and_a_chain_a_tree():
    tree = chain_of(3)
    assert tree == fixed([(0,), (0, 0), (0, 0, 0)])
    assert (tree.depth, tree.top_k, tree.num_nodes, tree.width, tree.slots) == (3, 1, 3, 1, 2)
    np.testing.assert_array_equal(lay_out(tree).parents, [0, 0, 1, 2])
    np.testing.assert_array_equal(lay_out(tree).kept, range(4))


def test_a_fixed_tree_is_found_among_what_is_read():
    tree = fixed(MEDUSA)
    assert (tree.depth, tree.top_k, tree.width) == (3, 3, 2)
    layout, known = lay_out(tree), candidates(tree)
    paths = ((), *(tree.paths or ()))
    assert [paths[i] for i in layout.parents[1:]] == [path[:-1] for path in paths[1:]]
    np.testing.assert_array_equal(known.level[layout.kept], [len(path) for path in paths])
    np.testing.assert_array_equal(np.bincount(known.level), [1, 3, 6, 6])
    np.testing.assert_array_equal(np.bincount(known.pass_index), [4, 3, 3, 3, 3])
    assert (np.diff(layout.kept) > 0).all()


@pytest.mark.parametrize("said", [MEDUSA, str(MEDUSA), tuple(map(tuple, MEDUSA))])
def test_vllms_text_and_medusas_choices_are_the_same_trees(said):
    tree = read_paths(said)
    assert tree == fixed(MEDUSA)
    assert to_text(tree).startswith("[(0,), (1,), (2,), (0, 0), (0, 1), ")
    assert read_paths(to_text(tree)) == tree


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("[(0,), (0", r"must be a list of nodes, .*got '\[\(0,\), \(0'"),
        ("3", "must be a list of nodes"),
        ("[(0,), 1]", "got 1"),
        ("[(0,), ()]", r"got \(\)"),
        ("[(0,), (-1,)]", r"got \(-1,\)"),
        ("[(0,), (0.5,)]", r"got \(0.5,\)"),
        ("[]", "depth must be at least 1, got 0"),
        ([(0,), (0, 0), (0,)], r"node \(0,\) of the draft tree is listed twice"),
        ([(0,), (1, 0)], r"node \(1, 0\) of the draft tree needs \(1,\): add it"),
        ([(0,), (2,)], r"node \(2,\) of the draft tree needs \(1,\): add it"),
        ([(i,) for i in range(300)], "a tree of 300 nodes is too large: draft at most 256"),
    ],
)
def test_what_is_no_tree_is_named(said, words):
    with pytest.raises(ValueError, match=words):
        read_paths(said)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"depth": 3, "top_k": 2}, "tree must be a mapping of depth, top_k, num_nodes, got"),
        ("[(0,)]", "tree must be a mapping"),
        ({"depth": 3, "top_k": 2, "num_nodes": "8"}, "num_nodes must be an integer, got '8'"),
        ({"depth": 0, "top_k": 2, "num_nodes": 8}, "depth must be at least 1, got 0"),
        ({"depth": 3, "top_k": 2, "num_nodes": 11}, "num_nodes=11 must be 4 to 10 in a tree"),
        ({"depth": 3, "top_k": 2, "num_nodes": 3}, "num_nodes=3 must be 4 to 10 in a tree"),
        ({"depth": 9, "top_k": 9, "num_nodes": 257}, "257 nodes is too large"),
    ],
)
def test_an_impossible_dynamic_tree_is_named(said, words):
    with pytest.raises(ValueError, match=words):
        read_sizes(said)


def test_a_dynamic_tree_of_one_child_is_a_chain():
    assert read_sizes({"depth": 4, "top_k": 1, "num_nodes": 4}) == Tree(4, 1, 4)
    with pytest.raises(ValueError, match="num_nodes=3 must be 4 to 4"):
        Tree(4, 1, 3)

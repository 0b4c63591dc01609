"""Draft trees as options: vLLM's ``speculative_token_tree``, and ``tree``, which is ours."""

import ast
from collections.abc import Mapping
from typing import Any

from specjax.drafters.tree import Tree, fixed

SIZES = ("depth", "top_k", "num_nodes")


def read_paths(given: Any) -> Tree:
    """Read a fixed tree: a list of its nodes, or the text of one, tuples or lists.

    vLLM's ``speculative_token_tree`` and the Medusa authors' ``medusa_choices`` are both.

    Raises:
        ValueError: it is no such list, or no tree.
    """
    said = given
    if isinstance(given, str):
        try:
            said = ast.literal_eval(given)
        except (ValueError, SyntaxError):
            said = None
    nodes: Any = said if isinstance(said, list | tuple) else [said]
    for node in nodes:
        good = isinstance(node, list | tuple) and all(type(rank) is int for rank in node)
        if not good or not node or min(node) < 0:
            wrong = node if isinstance(said, list | tuple) else given
            raise ValueError(
                "speculative_token_tree must be a list of nodes, each the ranks of its path, "
                f"such as '[(0,), (0, 0), (1,)]', got {wrong!r}."
            )
    return fixed(nodes)


def read_sizes(given: Any) -> Tree:
    """Read a dynamic tree: how deep, how many children, how many nodes.

    Raises:
        ValueError: another mapping than of these three whole numbers, or impossible ones.
    """
    if isinstance(given, Tree):
        return given
    if not isinstance(given, Mapping) or set(given) != set(SIZES):
        raise ValueError(f"tree must be a mapping of {', '.join(SIZES)}, got {given!r}.")
    for name in SIZES:
        if type(given[name]) is not int:
            raise ValueError(f"tree: {name} must be an integer, got {given[name]!r}.")
    return Tree(**given)


def to_text(tree: Tree) -> str:
    """Write a fixed tree as vLLM does."""
    return str(list(tree.paths or ()))

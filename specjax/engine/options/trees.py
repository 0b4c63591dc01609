"""Read draft trees from options: vLLM's ``speculative_token_tree`` and specjax's ``tree``."""

import ast
from collections.abc import Mapping
from typing import Any

from specjax.drafters.tree import Tree, fixed

SIZES = ("depth", "top_k", "num_nodes")


def read_paths(given: Any) -> Tree:
    """Return a fixed tree from the list of its nodes, or from the list's text.

    vLLM's ``speculative_token_tree`` is a text of tuples, Medusa's ``medusa_choices`` a list of
    lists.

    Raises:
        ValueError: it is no such list, or no tree.
    """
    parsed = given
    if isinstance(given, str):
        try:
            parsed = ast.literal_eval(given)
        except (ValueError, SyntaxError):
            parsed = None
    nodes: Any = parsed if isinstance(parsed, list | tuple) else [parsed]
    for node in nodes:
        good = isinstance(node, list | tuple) and all(type(rank) is int for rank in node)
        if not good or not node or min(node) < 0:
            wrong = node if isinstance(parsed, list | tuple) else given
            raise ValueError(
                "speculative_token_tree must be a list of nodes, each the ranks of its path, "
                f"such as '[(0,), (0, 0), (1,)]', got {wrong!r}."
            )
    return fixed(nodes)


def read_sizes(given: Any) -> Tree:
    """Return a dynamic tree from {"depth", "top_k", "num_nodes"}.

    Raises:
        ValueError: not a mapping of these three integers, or no such tree exists.
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
    """Return vLLM's text of a fixed tree."""
    return str(list(tree.paths or ()))

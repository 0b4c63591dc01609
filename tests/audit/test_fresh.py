"""Noise that is used twice is seen, whether by another round or by a sibling."""

from specjax.audit.fresh import reused
from specjax.types import Rule
from specjax.verify.block import block
from specjax.verify.noise import by_token
from specjax.verify.rejection_tree import rejection_tree


def test_siblings_that_share_a_number_are_found():
    by_index = Rule(by_token, rejection_tree.verify)
    assert reused(by_index, parents=(0, 0, 0, 1, 1), rounds=64) > 0.02


def test_rounds_that_share_a_number_are_found_where_it_decides():
    assert reused(Rule(by_token, block.verify), rounds=64) > 0.05
    assert reused(block, rounds=64) == 0

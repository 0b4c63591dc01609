"""Noise that is used twice is seen, whether by another round or by a sibling."""

from specjax.audit.noise_reuse import noise_reuse_rate
from specjax.core.types import Rule
from specjax.verify.block import block
from specjax.verify.noise import by_token
from specjax.verify.rejection_tree import rejection_tree


def test_siblings_that_share_a_number_are_found():
    by_index = Rule(by_token, rejection_tree.verify)
    assert noise_reuse_rate(by_index, parents=(0, 0, 0, 1, 1), rounds=64) > 0.02


def test_rounds_that_share_a_number_are_found_where_it_decides():
    assert noise_reuse_rate(Rule(by_token, block.verify), rounds=64) > 0.05
    assert noise_reuse_rate(block, rounds=64) == 0

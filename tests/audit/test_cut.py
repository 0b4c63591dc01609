"""Cuts that read what they may are proved lossless, the others refuted with an example."""

import numpy as np
import pytest

from specjax.audit.cut import CUTS, after_unsure_tokens, at_most, certify_cut
from specjax.verify.block import block

LOSSLESS = (
    "after 1 token", "before places where max(q) < 0.6", "after tokens with q(d) < 0.4",
    "best tokens per cost, equal steps", "the 2 likeliest of the batch (vLLM)",
)  # fmt: skip


@pytest.mark.parametrize("name", CUTS)
def test_a_cut_is_lossless_unless_it_reads_the_token_it_drops(name):
    found = certify_cut(CUTS[name])
    assert found.lossless == (name in LOSSLESS), found
    assert (found.tv < 1e-6) == (found.peek is None)
    assert 0 < found.kept < 2  # of K = 2: it does cut
    if found.peek is not None:
        assert found.peek[0] != found.peek[1]


def test_the_example_that_can_be_checked_by_hand():
    p, q = (np.tile(np.array(law), (1, 3, 1)) for law in ([0.6, 0.4], [0.2, 0.8]))
    found = certify_cut(lambda draft: draft.tokens == 0, p, q)
    assert found.tv == pytest.approx(0.68 - 0.6, abs=1e-6)
    assert found.kept == pytest.approx(0.2)
    assert found.peek == ((0,), (1,))
    assert not found.lossless


def test_block_verification_can_be_cut_too():
    assert certify_cut(after_unsure_tokens(0.4), rule=block).lossless
    none = certify_cut(at_most(0), rule=block)
    assert none.lossless
    assert none.expected_length == pytest.approx(1)

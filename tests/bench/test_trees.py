"""``bench trees``: acceptance by rank is counted along the text."""

import numpy as np
import pytest

from specjax.bench.trees import acceptance_by_rank, bench_trees, every_path
from specjax.drafters.tree import fixed
from specjax.engine.outputs import CompletionOutput, RequestOutput, SpecDecodeMetrics

TREE = fixed(every_path((2, 2)))  # (0,) (1,) (0, 0) (0, 1) (1, 0) (1, 1)


def completion(prompt, tokens, drafts, accepted) -> RequestOutput:
    metrics = SpecDecodeMetrics.from_steps([6] * len(accepted), accepted, 2)
    one = CompletionOutput(0, "", tokens, spec_decode_metrics=metrics, drafts=drafts)
    return RequestOutput("0", None, prompt, None, [one], True)


def test_every_path_lists_a_full_tree():
    assert TREE.paths == ((0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1))


def test_acceptance_is_counted_by_level_and_rank():
    """Text 7 | 1 2 3 4 5 6: three rounds, from 2, 4 and 5 committed tokens."""
    drafts = [
        (2, [9, 2, 0, 0, 8, 3]),  # 2 is rank 1, then 3 is rank 1 of its children
        (4, [8, 9, 4, 4, 4, 4]),  # neither is 4
        (5, [5, 9, 6, 7, 0, 0]),  # 5 is rank 0, then 6 is rank 0
    ]
    output = completion([7], [1, 2, 3, 4, 5, 6], drafts, [2, 0, 2])
    rates = acceptance_by_rank(TREE, [output])
    np.testing.assert_allclose(rates, [[1 / 3, 1 / 3], [1 / 2, 1 / 2]])


def test_a_drafter_without_trees_is_refused_before_any_work():
    with pytest.raises(ValueError, match="method='ngram' drafts no trees"):
        bench_trees("nowhere", {"method": "ngram"}, None)

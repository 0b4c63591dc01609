"""A speed is measured on completions that are no loops, and on enough of them."""

import pytest

from specjax.bench.prompts import (
    Completion,
    Prompt,
    complete,
    fitting,
    halves,
    not_degenerate,
)
from specjax.engine.llm import LLM


def made(distinct: float) -> Completion:
    return Completion(Prompt("x", "", [1]), [1, 2], distinct)


def test_loops_do_not_count():
    completions = [made(0.49)] * 5 + [made(0.5)] * 12
    assert not_degenerate(completions) == completions[5:]


def test_too_few_are_an_error_not_a_figure():
    with pytest.raises(ValueError, match=r"only 11 of 20 .* 12 are needed"):
        not_degenerate([made(0.9)] * 11 + [made(0.1)] * 9)


def test_halves_are_equally_hard():
    """The ranks in both have the same sum, whatever the order they came in."""
    sure = [-0.3, -5.0, -2.0, -4.0, -0.1, -1.0, -3.0, -0.2]
    completions = [made(value) for value in sure]
    first, second = halves(completions, sure)
    assert sorted(first + second) == sorted(completions)
    ranks = [sum(sorted(sure).index(one.distinct) for one in half) for half in (first, second)]
    assert ranks == [14, 14]


def test_most_shipped_prompts_do_not_degenerate():
    llm = LLM("bundled")
    prompts = fitting(llm, 64)
    assert len(prompts) == 24
    completions = complete(llm, prompts, 64)
    for one in completions:
        assert len(one.tokens) == 64
    assert len(not_degenerate(completions)) >= 20

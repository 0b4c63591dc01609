"""A speed is measured on completions that are no loops, and on enough of them."""

import pytest

from specjax.bench.prompts import (
    Chosen,
    Completion,
    Prompt,
    choose,
    complete,
    fitting,
    halves,
    not_degenerate,
)
from specjax.core.metrics import LEAST_DISTINCT
from specjax.engine.llm import LLM


def made(distinct: float) -> Completion:
    return Completion(Prompt("x", "", [1]), [1, 2], distinct)


def test_loops_do_not_count():
    completions = [made(0.49)] * 5 + [made(0.5)] * 12
    assert not_degenerate(completions) == completions[5:]


def test_none_is_an_error_and_few_are_said_to_be_few():
    with pytest.raises(ValueError, match="none of 9 completions"):
        not_degenerate([made(0.1)] * 9)
    few = str(Chosen("random", [made(0.9)] * 7, 7, 24))
    assert few.startswith("7 random prompts: of 24 completions 7 are no loops, fewer than 12")
    assert "fewer" not in str(Chosen("shipped", [made(0.9)] * 12, 23, 24))


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


def test_random_prompts_are_filtered_alike():
    chosen = choose(LLM("bundled"), 64, "random")
    assert chosen.num_prompts == 96
    assert len(chosen.completions) == 12 <= chosen.num_kept
    assert all(one.distinct >= LEAST_DISTINCT for one in chosen.completions)

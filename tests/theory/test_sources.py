"""Every formula names its source, and ``help(specjax.theory)`` begins with an index by question."""

import inspect
import re

import pytest

from specjax import theory

FUNCTIONS = [name for name in theory.__all__ if inspect.isfunction(getattr(theory, name))]
# what follows from definitions alone
BY_COUNTING = {
    "devices_needed",
    "draft_memory_impact",
    "kv_bytes_per_token",
    "marginal_to_conditional",
    "model_cost",
    "tokens_from_positions",
    "tokens_from_ratio",
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_formula_names_its_source(name):
    said = inspect.getdoc(getattr(theory, name))
    if name in BY_COUNTING:
        assert re.search(r"[Bb]y (counting|linearity|the definition)|The counts are", said)
        return
    cited = re.findall(r"\b(?:1[789]|20)\d\d\b", said)
    assert cited, "paper and year"
    recent = re.findall(r"([A-Z][\w&, ]+ (?:et al\. )?20(?:1[3-9]|2\d))(?!\d)", said)
    for paper in recent:
        after = said[said.index(paper) + len(paper) :]
        assert re.match(r"[,\s(]*arXiv:?\s\d{4}\.\d{5}", after), f"{paper}: no arXiv number"


def test_the_index_names_everything_once():
    index = theory.__doc__.partition("Leviathan's letters")[0]
    words = re.findall(r"\w+", index)
    for name in theory.__all__:
        assert words.count(name) == 1, name
    questions = re.findall(r"^\S.*\?$", index, re.MULTILINE)
    assert len(questions) >= 8

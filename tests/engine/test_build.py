"""Which rule verifies: by rejection_sample_method, by the draft's law and by its shape."""

import warnings

import pytest

from specjax.core.types import Engine
from specjax.drafters.ngram import ngram
from specjax.drafters.none import none
from specjax.engine.build import build_schedule, choose_rule
from specjax.engine.options.rules import LOSSY, RULES
from specjax.engine.options.speculative import SpeculativeConfig
from specjax.verify.block import block
from specjax.verify.entropy import entropy
from specjax.verify.rejection import rejection
from specjax.verify.rejection_tree import rejection_tree
from specjax.verify.synthetic import synthetic
from specjax.verify.typical import typical
from specjax.verify.walk import walk
from tests.laws import harness as h

CHAIN, TREE = none._replace(depth=3, nodes=4), none._replace(depth=3, nodes=9)
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
SAMPLED = {"model": "x", "num_speculative_tokens": 3, "draft_sample_method": "probabilistic"}
LENGTH = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5}


def choose(config, drafter=CHAIN):
    return choose_rule(SpeculativeConfig.from_dict(config), drafter)


@pytest.mark.parametrize(
    ("config", "drafter", "rule"),
    [
        (NGRAM, CHAIN, walk),
        (NGRAM, TREE, walk),
        ({**SAMPLED, "draft_sample_method": "greedy"}, CHAIN, walk),
        ({**SAMPLED, "draft_sample_method": "coupled"}, TREE, walk),
        (SAMPLED, CHAIN, rejection),
        (SAMPLED, TREE, rejection_tree),
        ({**NGRAM, "rejection_sample_method": "block"}, CHAIN, block),
        ({**SAMPLED, "rejection_sample_method": "block"}, CHAIN, block),
    ],
)
def test_rules_that_keep_the_law_are_chosen_silently(config, drafter, rule):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose(config, drafter) is rule


@pytest.mark.parametrize("method", LOSSY)
@pytest.mark.parametrize("config", [NGRAM, SAMPLED])
def test_a_rule_that_changes_the_law_says_so_once(method, config):
    options = LENGTH if method == "synthetic" else {"rejection_sample_method": method}
    with pytest.warns(UserWarning, match=f"'{method}' is lossy.*{LOSSY[method][:20]}") as seen:
        rule = choose({**config, **options})
    assert len(seen) == 1
    made = {"typical": typical(0.09, 0.3), "entropy": entropy(0.95, 0.4)}
    assert rule is {**made, "synthetic": synthetic((1.0, 0.5, 0.0))}[method]


@pytest.mark.parametrize("method", sorted(set(RULES) - {"standard", "typical"}))
def test_rules_for_chains_refuse_trees(method):
    options = LENGTH if method == "synthetic" else {"rejection_sample_method": method}
    with pytest.raises(ValueError, match=f"'{method}' verifies chains"):
        choose({**SAMPLED, **options}, TREE)


def test_typical_acceptance_takes_trees():
    with pytest.warns(UserWarning, match="lossy"):
        assert choose({**NGRAM, "rejection_sample_method": "typical"}, TREE) is typical(0.09, 0.3)


def test_a_schedule_names_an_engine_for_every_number_of_requests():
    """Gaps belong to the range before (vLLM's rule); equal depths share one engine."""
    engine = Engine(h.TARGET, ngram(3, 5, 5), walk, 0)
    ranges = [[1, 2, 3], [5, 6, 1], [7, 7, 0]]
    config = {**NGRAM, "num_speculative_tokens_per_batch_size": ranges}
    schedule = build_schedule(engine, None, SpeculativeConfig.from_dict(config))
    assert [one.drafter.depth for one in schedule] == [3, 3, 3, 3, 1, 1, 0]
    assert len(set(schedule)) == 3
    assert schedule[0] is engine
    assert build_schedule(engine, None, SpeculativeConfig.from_dict(NGRAM)) == (engine,)

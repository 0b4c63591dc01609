"""``audit server`` flags faults of the zoo through our own server, and not the shipped rule."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.audit.cases import random_cases
from specjax.audit.exact import exact_distribution
from specjax.audit.joint import joint
from specjax.audit.request import plain_request
from specjax.audit.specimen import random_tables
from specjax.audit.zoo_engines import CHAIN, keys_of_rejected_tokens_kept
from specjax.audit.zoo_reported import cut_after_looking, one_coin_for_both
from specjax.core import decode
from specjax.core.types import Draft, Params
from specjax.host.compile_cache import enable_compile_cache
from specjax.models.toy import attentive_target
from specjax.verify.rejection import rejection
from tests.audit.power import CASES, SURE, UNSURE, after_looking, exact_power, measure
from tests.audit.served import beyond_the_prompt

PLAIN = {
    case.served.__name__: case
    for case in CASES
    if case.options is None and case.plan.temperature == 1
}


def test_a_specimen_leaves_the_prompts_first_token_to_the_sound_rule():
    rule = beyond_the_prompt(one_coin_for_both().rule, rejection)
    asked = plain_request(np.full((1, 1, 3), 1 / 3), 1)
    tokens, root = jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), bool)
    draft, keys = Draft(tokens, tokens, root, None), jax.random.split(jax.random.key(0), 1)
    noise = rule.draw_noise(keys, asked.text, draft, asked.sampling, 3)
    logits = jnp.array([[[-1e30, 0.0, -1e30]]])
    verdict = rule.verify(noise, draft, logits, asked.text, asked.sampling, 0)
    assert verdict.tokens.tolist() == [[1]]
    assert verdict.num_accepted.tolist() == [0]


@pytest.mark.parametrize(
    "name",
    ["shipped", "recovered_with_the_drafts_noise", "one_coin_for_both", "recovered_from_p"],
)
def test_a_served_fault_is_flagged_and_the_shipped_rule_is_not(name):
    enable_compile_cache()
    found = measure(PLAIN[name], None)
    assert found.flagged == (name != "shipped"), found
    if found.flagged:
        assert found.texts <= 4000
        assert found.tv > found.by_chance


def test_shared_noise_takes_a_few_thousand_texts_exactly():
    tv, needed = exact_power(UNSURE)
    assert 0.03 < tv < 0.06
    assert 2000 < needed < 3500


def test_a_cut_is_seen_where_the_draft_model_is_sure_of_some_tokens_and_not_of_others():
    """Where it is never surer than the cut asks, nothing is verified, and the text is right."""
    tv, needed = exact_power(SURE, after_looking)
    assert tv > 0.1
    assert needed < 500
    with pytest.raises(ValueError, match="the difference of the distributions"):
        exact_power(UNSURE, after_looking)


def test_a_cut_after_looking_is_what_enumeration_says_it_is():
    p_tree, q_tree = random_cases(12, 4, 1)
    specimen = cut_after_looking()
    found = exact_distribution(specimen.rule, p_tree, q_tree, 1)
    first = found.joint.reshape(12, 4, 4).sum(axis=-1)
    for i in range(12):
        ours = after_looking(p_tree[i, 0], q_tree[i, 0])
        np.testing.assert_allclose(first[i], ours, atol=1e-6)


def test_a_broken_round_in_the_place_of_the_shipped_one_runs_the_shipped_one():
    """A specimen's step is called by the name of the one that it calls itself."""
    broken = keys_of_rejected_tokens_kept().step
    with mock.patch.object(decode, "step", broken):
        tables = random_tables(2)
        found = joint(
            CHAIN, rejection, Params(*tables), target=attentive_target(2), step=decode.step
        )
    assert found.tv > 0.01

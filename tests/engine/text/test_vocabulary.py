"""A draft model with another vocabulary: what it shares, what it may say, and its law."""

import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import LLM, SamplingParams
from specjax.audit.cases import KINDS, random_cases
from specjax.audit.exact import exact_distribution
from specjax.bundled import prompts, resolve
from specjax.core import sampling as s
from specjax.core.types import Sampling
from specjax.drafters.mapped_vocab import MappedVocabParams, VocabMapping, with_mapped_vocab
from specjax.engine.text.tokenizer import load_tokenizer
from specjax.engine.text.vocabulary import Vocabulary, find_shared
from specjax.models.toy import markov_target
from specjax.verify.rejection import rejection
from specjax.verify.walk import walk
from tests.checkpoints.foreign import FOREIGN, KEPT, foreign_draft
from tests.engine.text.backends import byte_fallback, byte_level, unigram

TOKENS = load_tokenizer(resolve("bundled"))
PROMPTS = [{"prompt_token_ids": TOKENS.encode(one["turns"][0])[:28]} for one in prompts()][:8]
PARAMS = [SamplingParams(temperature=t, max_tokens=32, seed=5) for t in (0.0, 0.8)] * 4


@pytest.fixture(scope="module")
def shuffled(tmp_path_factory):
    return foreign_draft(tmp_path_factory.mktemp("shuffled"), 2048, 0)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    return foreign_draft(tmp_path_factory.mktemp("foreign"))


def drafted(folder, how, heterogeneous=True):
    config = {"model": str(folder), "num_speculative_tokens": 4, "draft_sample_method": how}
    config["use_heterogeneous_vocab"] = heterogeneous
    return LLM("bundled", speculative_config=config, max_num_seqs=8)


def said(outputs):
    return [(out.outputs[0].text, out.outputs[0].token_ids) for out in outputs]


def proposals(outputs):
    return [tuple(draft) for out in outputs for _, draft in out.outputs[0].drafts]


def test_a_draft_model_that_is_only_numbered_otherwise_drafts_the_same(shuffled):
    """Token for token, by its own law and noise: those are over the target's ids."""
    mine, theirs = (
        llm.generate(PROMPTS, PARAMS)
        for llm in (
            drafted(shuffled, "probabilistic"),
            drafted("bundled:draft", "probabilistic", heterogeneous=False),
        )
    )
    assert said(mine) == said(theirs)
    assert proposals(mine) == proposals(theirs)


def test_another_vocabulary_never_changes_the_text(foreign):
    outputs = drafted(foreign, "greedy").generate(PROMPTS, PARAMS)
    assert said(outputs) == said(LLM("bundled", max_num_seqs=8).generate(PROMPTS, PARAMS))
    metrics = [out.outputs[0].spec_decode_metrics for out in outputs]
    assert sum(one.num_accepted_draft_tokens for one in metrics) > 40
    assert max(itertools.chain.from_iterable(proposals(outputs))) < KEPT


def test_only_shared_tokens_are_said_and_the_others_are_read_as_unknown(foreign):
    target, own = (resolve("bundled"), 2048), (foreign, KEPT + FOREIGN)
    ours, theirs = (Vocabulary(load_tokenizer(f), size, f) for f, size in (target, own))
    found = find_shared(ours, theirs)
    words, other = (v.tokenizer.backend.id_to_token for v in (ours, theirs))
    assert [other(int(i)) for i in found.logit_ids[:KEPT]] == [words(i) for i in range(KEPT)]
    assert (found.logit_ids[KEPT:] == KEPT + FOREIGN).all()
    assert (found.input_ids[:KEPT] == found.logit_ids[:KEPT]).all()
    assert set(np.asarray(found.input_ids[KEPT:])) == set(theirs.tokenizer.eos_ids)


def test_the_sign_for_a_space_does_not_matter(load):
    theirs = load(unigram(), tokenizer_config={"unk_token": "<unk>"})
    ours = load(byte_level())
    found = find_shared(*(Vocabulary(one, one.vocab_size, Path()) for one in (ours, theirs)))
    pairs = {
        (ours.backend.id_to_token(i), theirs.backend.id_to_token(int(j)))
        for i, j in enumerate(found.logit_ids)
        if j < theirs.vocab_size
    }
    assert any(one.startswith("Ġ") and other.startswith("▁") for one, other in pairs)
    assert all(one.replace("Ġ", "▁", 1) == other for one, other in pairs)
    assert theirs.backend.token_to_id("<unk>") in np.asarray(found.input_ids)


def test_vocabularies_that_do_not_fit_are_refused(foreign, shuffled, load):
    with pytest.raises(ValueError, match=r"use_heterogeneous_vocab=true: .* 2048 tokens, .* 1540"):
        drafted(foreign, "greedy", heterogeneous=False)
    with pytest.raises(ValueError, match=r"vocab=true: token .* is 1 in .* and 13 in"):
        drafted(shuffled, "greedy", heterogeneous=False)
    ours, few = load(byte_level()), load(byte_fallback())
    with pytest.raises(ValueError, match=r"only \d of the 265 tokens of few .* at least 100 are"):
        find_shared(Vocabulary(ours, 300, Path("ours")), Vocabulary(few, 265, Path("few")))
    mute = Vocabulary(load(unigram()), 39, Path("mute"))
    with pytest.raises(ValueError, match="neither an unk_token nor an eos_token"):
        find_shared(Vocabulary(ours, 300, Path("ours")), mute)


@pytest.mark.parametrize("rule", [rejection, walk])
def test_a_translated_law_is_a_law_like_any_other(rule):
    """Exact by enumeration: 4 target tokens, of which a draft model of 5 has three."""
    logit_ids = [3, 5, 0, 4]
    model, size = with_mapped_vocab(markov_target(5), 4), len(logit_ids)
    read = jnp.asarray([3, 1, 0, 4], jnp.int32)
    p_tree, own = random_cases(len(KINDS), 5, 2)
    p_tree, _ = random_cases(len(KINDS), size, 2)
    vocab_mapping = VocabMapping(read, jnp.asarray(logit_ids, jnp.int32))
    own = own[:, : p_tree.shape[1]] + 1 / 64  # some of it is on shared tokens
    hidden = jnp.log(jnp.asarray(own, jnp.float32))
    one = jnp.ones(len(own), jnp.int32)
    sampling = Sampling(jnp.ones(len(own)), one, one[:, None])
    q_tree = s.compute_probs(
        model.logits(MappedVocabParams(jnp.zeros((5, 5)), vocab_mapping), hidden), sampling
    )
    assert (np.asarray(q_tree)[..., 1] == 0).all()
    assert np.allclose(q_tree[..., 0] * own[..., 0], q_tree[..., 2] * own[..., 3], atol=1e-6)
    law = exact_distribution(rule, p_tree, np.asarray(q_tree, float), 2)
    assert max(law.tv.max(), law.doubt.max()) < 1e-6
    assert law.stray.max() == 0
    untranslated = np.roll(np.asarray(q_tree, float), 1, axis=-1)
    if rule is rejection:
        assert (
            exact_distribution(rule, p_tree, untranslated, 2, drawn=np.asarray(q_tree)).tv.max()
            > 0.05
        )


def test_a_translated_model_reads_its_own_ids():
    model = with_mapped_vocab(markov_target(3), 2)
    table = jnp.arange(9, dtype=jnp.float32).reshape(3, 3)
    vocab_mapping = VocabMapping(jnp.asarray([2, 0], jnp.int32), jnp.asarray([1, 3], jnp.int32))
    tokens = jnp.asarray([[0, 1]], jnp.int32)
    cache = model.init_cache(1, 4)
    params = MappedVocabParams(table, vocab_mapping)
    output, _ = jax.jit(model.forward, static_argnums=5)(
        params, tokens, tokens, jnp.ones((1, 2, 2), bool), cache, 4
    )
    assert (output.hidden[0] == table[jnp.asarray([2, 0])]).all()
    assert (model.logits(params, output.hidden)[0, :, 0] == table[jnp.asarray([2, 0]), 1]).all()
    assert (model.logits(params, output.hidden)[0, :, 1] == s.FORBIDDEN).all()

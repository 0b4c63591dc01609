"""The responses suffix decoding shares: first in first out, and nobody's prompt."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import LLM, SamplingParams
from specjax.core import cache
from specjax.core.types import Engine
from specjax.drafters import suffix_index
from specjax.engine import corpus_file
from specjax.engine.corpus import Corpus
from specjax.verify.walk import walk
from tests.laws import harness as h

SUFFIX = {"method": "suffix", "num_speculative_tokens": 4, "suffix_decoding_max_tree_depth": 6}

APART = {"suffix_decoding_max_cached_requests": 0}


def shared(llm: LLM) -> Corpus:
    """Return the responses that an LLM's requests share."""
    assert llm.core.corpus is not None
    return llm.core.corpus


def occurs(index, tokens) -> bool:
    """Say whether a string was ever indexed."""
    context = jnp.asarray([tokens], jnp.int32)
    return bool(suffix_index.match(index, context)[0, -1] != suffix_index.NONE)


def test_responses_grow_side_by_side_and_the_oldest_go_first():
    corpus = Corpus(max_tree_depth=4, max_requests=2, capacity=64)
    first, second = corpus.start(), corpus.start()
    corpus.extend(first, [1, 2])
    corpus.extend(second, [7, 8])
    corpus.extend(first, [3, 4])
    corpus.extend(second, [9])
    assert occurs(corpus.index, [1, 2, 3, 4])
    assert occurs(corpus.index, [7, 8, 9])
    assert not occurs(corpus.index, [2, 7])
    third = corpus.start()
    corpus.extend(first, [5])  # evicted while it runs: no longer learned from
    corpus.extend(second, [6])
    corpus.extend(third, [5])
    assert not occurs(corpus.index, [1])
    assert not occurs(corpus.index, [9, 5])
    assert occurs(corpus.index, [7, 8, 9, 6])
    assert corpus.num_tokens == 5


def test_a_full_corpus_forgets_the_oldest_and_stays_within_its_capacity():
    corpus = Corpus(max_tree_depth=3, max_requests=100, capacity=64)
    for number in range(30):
        name = corpus.start()
        corpus.extend(name, [number, number + 100, number + 200])
        corpus.finish(name)
        assert corpus.num_tokens == min(3 * number + 3, 63)
        assert int(corpus.index.size[0]) == corpus.num_tokens
        assert occurs(corpus.index, [number, number + 100, number + 200])
        assert number < 21 or not occurs(corpus.index, [number - 21])
    assert occurs(corpus.index, [9])
    assert not corpus.growing
    name = corpus.start()
    corpus.extend(name, list(range(65)))  # more than there is room for, whoever goes
    assert corpus.num_tokens == len(corpus.responses) == int(corpus.index.size[0]) == 0
    corpus.extend(name, [1])
    assert not occurs(corpus.index, [1])


@pytest.fixture(scope="module")
def llm(pair):
    return LLM(pair.target, speculative_config=SUFFIX, max_num_seqs=2)


def test_only_outputs_are_shared_and_the_text_is_plain_text(llm, pair):
    prompts = [{"prompt_token_ids": list(range(50 + i, 70 + i))} for i in range(3)]
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    plain = LLM(pair.target).generate(prompts, params)
    texts = [one.outputs[0].token_ids for one in plain]
    for _ in range(2):  # the second time everything was said before
        drafted = llm.generate(prompts, params)
        assert [one.outputs[0].token_ids for one in drafted] == texts
    said = {tuple(tokens) for tokens in llm.core.corpus.responses.values()}
    assert said == {tuple(tokens) for tokens in texts}
    assert not occurs(llm.core.corpus.index, [53, 54, 55])
    assert llm.counters.num_accepted_tokens > 0


def test_requests_of_two_streams_may_take_turns(llm):
    """What one stream teaches the index replaces the arrays that the other one used before."""
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    prompts = [{"prompt_token_ids": list(range(i, i + 8))} for i in (30, 90)]
    alone = [llm.generate(prompt, params)[0].outputs[0].token_ids for prompt in prompts]
    turns = list(itertools.zip_longest(*(llm.stream(prompt, params) for prompt in prompts)))
    for i, tokens in enumerate(alone):
        *_, last = [samples[i] for samples in turns if samples[i] is not None]
        assert last.request_state.tokens == tokens


def test_no_draft_holds_a_word_of_anothers_prompt(llm, pair):
    """Requests join and leave, responses are shared and evicted; prompts are nobody else's."""
    apart = LLM(pair.target, speculative_config={**SUFFIX, **APART}, max_num_seqs=2)
    tight = {
        **SUFFIX,
        "suffix_decoding_max_cached_requests": 2,
        "suffix_decoding_min_token_prob": 0,
    }
    crowded = LLM(pair.target, speculative_config=tight, max_num_seqs=2)
    prompts = [[*range(20 + 7 * i, 27 + 7 * i)] * 2 for i in range(6)]  # no word in common
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    for engine in (llm, crowded, apart):
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = [one.outputs[0] for one in engine.generate(asked, params)]
        said = {token for one in outputs for token in one.token_ids}
        corpus = engine.core.corpus or llm.core.corpus
        said |= {token for one in corpus.responses.values() for token in one}
        for prompt, output in zip(prompts, outputs, strict=True):
            known = {*prompt, *(output.token_ids if engine is apart else said)}
            drafted = {token for _, draft in output.drafts for token in draft}
            assert drafted
            assert drafted <= known
    assert len(shared(crowded).responses) == 2


def test_no_cached_requests_means_nothing_is_shared(pair):
    alone = LLM(pair.target, speculative_config={**SUFFIX, **APART})
    assert alone.core.corpus is None
    assert alone.core.params.draft is None


def test_a_corpus_is_saved_and_started_from(llm, pair, tmp_path):
    file, tokenizer = tmp_path / "said.npz", llm.get_tokenizer()
    responses = [[7, 8, 9], [], list(range(200))]
    corpus_file.save(file, responses, tokenizer)
    assert corpus_file.load(file, tokenizer) == responses
    config = {**SUFFIX, "suffix_decoding_corpus": str(file)}
    frozen = LLM(pair.target, speculative_config={**config, **APART})
    growing = LLM(pair.target, speculative_config=config)
    for engine in (frozen, growing):
        assert list(shared(engine).responses.values()) == responses
        assert occurs(shared(engine).index, list(range(60, 66)))
        engine.generate({"prompt_token_ids": [1, 2, 3]}, SamplingParams(max_tokens=4))
    assert (len(shared(frozen).responses), len(shared(growing).responses)) == (3, 4)
    corpus_file.save(file, shared(growing).responses.values(), tokenizer)
    assert len(corpus_file.load(file)) == 4


def test_what_is_no_corpus_of_ours_is_refused(llm, kinds, tmp_path):
    file = tmp_path / "said.npz"
    file.write_text("no")
    with pytest.raises(ValueError, match="is no corpus"):
        corpus_file.load(file)
    corpus_file.save(file, [], kinds["word_level"])
    assert corpus_file.load(file) == []
    with pytest.raises(ValueError, match="another tokenizer"):
        corpus_file.load(file, llm.get_tokenizer())


def test_a_corpus_is_written_whole_or_not_at_all(kinds, tmp_path):
    file = tmp_path / "said.npz"
    corpus_file.save(file, [[1]], kinds["word_level"])
    before = file.read_bytes()
    with pytest.raises(OverflowError):
        corpus_file.save(file, [[2**40]], kinds["word_level"])
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_a_slot_taken_over_keeps_nothing_of_the_request_before():
    """The index of a row that joins replaces that of the row that left, to the last entry."""
    engine = Engine(h.TARGET, h.CHAINS["suffix"], walk, h.CAPACITY)
    rows = h.random_rows(3, seed=5, plain=True)
    batch = h.run(h.CHAINS["suffix"], rows[:2], lean=True).state
    new = h.init_state(engine, h.weights(), *h.pack(rows[2:], lean=True))
    for start in range(0, 40, 16):
        new, _, _ = h.prefill(engine, h.weights(), new, start, 16)
    joined = cache.insert_row(batch, jnp.asarray(1), new)
    jax.tree.map(
        lambda all_rows, one: np.testing.assert_array_equal(all_rows[1], one[0]),
        joined.drafter,
        new.drafter,
    )

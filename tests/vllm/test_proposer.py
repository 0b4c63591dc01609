"""Drafts of ``specjax.vllm`` are those that a real vLLM made and verified, however rows move."""

import json
import random
from types import SimpleNamespace

import numpy as np
import pytest

from specjax.bundled import BUNDLED
from specjax.engine.text.tokenizer import load_tokenizer
from specjax.vllm import Proposer
from tests.oracle.prompts import read
from tests.oracle.recordings import FOLDER

K, MAX_MODEL_LEN = 3, 512
NGRAM = {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1}
SUFFIX = {"method": "suffix", "suffix_decoding_max_cached_requests": 0}
DRAFT = {"method": "draft_model", "model": "bundled:draft"}
CONFIGS = {"ngram": NGRAM, "suffix": SUFFIX, "draft_model": DRAFT}
SOME = slice(0, 6)


def vllm_config(options, max_model_len=MAX_MODEL_LEN, depth=K):
    """Return what a proposer reads of vLLM's config."""
    model = SimpleNamespace(
        model=str(BUNDLED["bundled"]),
        max_model_len=max_model_len,
        get_vocab_size=lambda: 2048,
        get_hidden_size=lambda: 256,
    )
    return SimpleNamespace(
        model_config=model,
        speculative_config=SimpleNamespace(num_speculative_tokens=depth),
        additional_config=options if options is None else {"specjax": options},
    )


def recorded(method: str) -> list[tuple[list[int], list[int], dict[int, list[int]]]]:
    """Return (prompt, output, {length: draft}) of requests that vLLM completed."""
    answer = json.loads((FOLDER / f"text_{method}.json").read_bytes())["answer"]
    prompts = [list(prompt) for prompt in prompts_of()]
    return [
        (prompt, output["token_ids"], dict(rounds))
        for prompt, output, rounds in zip(prompts, answer["outputs"], answer["rounds"], strict=True)
    ]


def prompts_of() -> list[list[int]]:
    """Return the prompts that vLLM was asked to complete."""
    tokenizer = load_tokenizer(BUNDLED["bundled"])
    return [tokenizer.encode(text) for text in read()]


class Request:
    """A request that vLLM completed, replayed round by round."""

    def __init__(self, prompt, output, drafts):
        self.text, self.drafts = [*prompt, *output], drafts
        self.length, self.num_new = len(prompt) + 1, 1
        self.number = 0

    def check(self, draft) -> bool:
        """Compare a draft with vLLM's, and commit what it emitted; return whether it goes on.

        vLLM also asks for a draft after the last token, which nobody verifies.
        """
        if self.length == len(self.text):
            return False
        assert draft == self.drafts.get(self.length, [])
        self.number += bool(draft)
        said = self.text[self.length :]
        agree = [a == b for a, b in zip(draft, said, strict=False)]
        accepted = agree.index(False) if False in agree else len(agree)
        self.num_new = min(accepted + 1, len(said))
        self.length += self.num_new
        return True


def replay(proposer, requests, seed: int = 0, most: int = 5) -> int:
    """Run requests through a proposer, a few at a time, in rows that move; count the drafts."""
    order, waiting, running = random.Random(seed), list(requests), []
    table = np.zeros((most, MAX_MODEL_LEN), np.int32)
    while waiting or running:
        while waiting and len(running) < most:
            running.append(waiting.pop(0))
        order.shuffle(running)
        shown = running[: order.randint(1, len(running))]  # the others wait, as if preempted
        lengths = np.zeros(most, np.int32)
        table[:] = -1  # garbage past the lengths
        for row, one in enumerate(shown):
            table[row, : one.length] = one.text[: one.length]
            lengths[row] = one.length
        sampled = [one.text[one.length - one.num_new : one.length] for one in shown]
        drafts = proposer.propose(sampled, lengths[: len(shown)], table[: len(shown)])
        assert len(drafts) == len(shown)
        ended = [one for one, draft in zip(shown, drafts, strict=True) if not one.check(draft)]
        running = [one for one in running if one not in ended]
    return sum(one.number for one in requests)


@pytest.mark.parametrize("method", CONFIGS)
def test_every_draft_is_the_one_that_vllm_verified(method):
    proposer = Proposer(vllm_config(CONFIGS[method]))
    proposer.load_model()
    requests = [Request(*one) for one in recorded(method)[SOME]]
    assert replay(proposer, requests) > 10 * len(requests)


def test_responses_of_other_requests_are_drafted_from():
    """One request at a time, and all of them twice: the drafts that vLLM's shared suffixes made."""
    answer = json.loads((FOLDER / "text_suffix_shared.json").read_bytes())["answer"]
    prompts = prompts_of()[:12] * 2
    requests = [
        Request(prompt, output["token_ids"], dict(rounds))
        for prompt, output, rounds in zip(prompts, answer["outputs"], answer["rounds"], strict=True)
    ]
    proposer = Proposer(vllm_config({"method": "suffix"}))
    assert replay(proposer, requests, most=1) > 10 * len(requests)


def test_a_drafter_of_ones_own_drafts():
    proposer = Proposer(vllm_config({"method": "custom_class", "model": "tests.vllm.own:repeat"}))
    table = np.asarray([[5, 6, 7, -1], [5, 9, -1, -1], [1, 2, 3, 4]], np.int32)
    drafts = proposer.propose([[7], [9], []], np.asarray([3, 2, 4], np.int32), table)
    assert drafts == [[7] * K, [9] * K, []]


def test_nothing_is_drafted_past_the_models_length():
    proposer = Proposer(vllm_config(NGRAM, max_model_len=12))
    text = np.asarray([[1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4]], np.int32)
    drafts = [
        proposer.propose([[int(text[0, length - 1])]], np.asarray([length]), text)[0]
        for length in (9, 10, 11, 12)
    ]
    assert drafts == [[2, 3, 4], [3, 4], [4], []]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (None, "needs vLLM's additional_config"),
        ({"method": "eagle3", "model": "bundled:eagle3"}, "vLLM runs heads itself"),
        ({"method": "ngram", "prompt_lookup_maximum": 3}, "Did you mean 'prompt_lookup_max'"),
        ({**NGRAM, "num_speculative_tokens": 4}, "leave it out of additional_config"),
        ({**DRAFT, "draft_sample_method": "probabilistic"}, "greedy chains"),
        ({**DRAFT, "tree": {"depth": 2, "top_k": 2, "num_nodes": K}}, "greedy chains"),
        ({**SUFFIX, "fallback": {**NGRAM, "num_speculative_tokens": K}}, "greedy chains"),
        ({"method": "custom_class", "model": "tests.vllm.own:nobody"}, "cannot be imported"),
        ({"method": "custom_class", "model": "tests.vllm.own:reads_hidden"}, "hidden states"),
        ({**NGRAM, "device": "nowhere"}, "is not available"),
    ],
    ids=str,
)
def test_what_vllm_cannot_give_is_refused_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        Proposer(vllm_config(options))


def test_a_drafter_that_runs_the_target_is_refused_when_it_is_loaded():
    own = {"method": "custom_class", "model": "tests.vllm.own:runs_the_target"}
    with pytest.raises(ValueError, match="does not run on text alone"):
        Proposer(vllm_config(own)).load_model()


def test_a_draft_model_of_another_vocabulary_is_refused():
    config = vllm_config(DRAFT)
    config.model_config.get_vocab_size = lambda: 2049
    with pytest.raises(ValueError, match="same vocabulary"):
        Proposer(config)

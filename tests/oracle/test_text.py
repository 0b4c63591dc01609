"""Greedy text, drafts, counters and per-request metrics: equal to vLLM's, request by request."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import LLM, SamplingParams
from specjax.bundled import HEADS as SHIPPED_HEADS
from specjax.core.metrics import SpecDecodeCounters, Vector
from specjax.core.topology import causal
from specjax.engine import output_processor
from specjax.engine.corpus import Corpus
from specjax.oracle.ask import TABLE_DRAFTS, table
from tests.oracle import recordings
from tests.oracle.conftest import weights as weights_of
from tests.oracle.prompts import read

K, NUM_TOKENS, MAX_MODEL_LEN = 3, 64, 512
WHOLE = ("plain", "ngram", "draft_model")  # replayed on all prompts, the others on `FEW`
FEW = range(80, 129)  # tokens of a prompt: read by one program; of these, every second
GREEDY = {"temperature": 0.0, "max_tokens": NUM_TOKENS, "ignore_eos": True}
TOLERANCE = 1e-4  # of logits, relative to the largest
NGRAM = {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1}
VLLM_HEADS = (
    "eagle",
    "eagle3",
    "medusa",
    "dflash",
)  # it has no mlp_speculator, no MTP layer for Qwen3
SUFFIX = {"method": "suffix", "suffix_decoding_max_cached_requests": 0}
DRAFT = {"method": "draft_model", "model": "bundled:draft"}
HEADS = {n: {"method": n, "model": f"bundled:{n}"} for n in VLLM_HEADS if n in SHIPPED_HEADS}
CONFIGS = {"plain": None, "ngram": NGRAM, "suffix": SUFFIX, "draft_model": DRAFT, **HEADS}
CONFIGS = {k: v and {**v, "num_speculative_tokens": K} for k, v in CONFIGS.items()}
SPECULATIVE = [name for name, config in CONFIGS.items() if config]


@functools.cache
def ours(method: str, some: tuple[int, ...] | None = None):
    """Complete all prompts, or some, with specjax; return the engine too."""
    options = {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": 8}
    llm = LLM("bundled", speculative_config=CONFIGS[method], **options)
    asked = read() if some is None else [read()[i] for i in some]
    return llm, llm.generate(asked, SamplingParams(**GREEDY), use_tqdm=False)


def few() -> tuple[int, ...]:
    """Choose prompts of much the same length."""
    lengths = [len(output.prompt_token_ids) for output in ours("plain")[1]]
    return tuple(i for i, length in enumerate(lengths) if length in FEW)[::2]


def both(method: str, vllm):
    """Return vLLM's answer, then our engine and outputs, all about the same prompts."""
    theirs = vllm(f"text_{method}", job(method))
    if vllm.live or method in WHOLE:
        return theirs, *ours(method)
    some = few()
    kept = {name: [theirs[name][i] for i in some] for name in ("outputs", "rounds")}
    return {**kept, "counters": None}, *ours(method, some)


def job(method: str) -> dict:
    """Ask vLLM for the same completions."""
    return {
        "kind": "offline",
        "model": "bundled",
        "prompts": [list(output.prompt_token_ids) for output in ours("plain")[1]],
        "sampling_params": GREEDY,
        "speculative_config": CONFIGS[method],
        "engine": {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": 16},
    }


def logprobs(llm: LLM, tokens: list[int]) -> np.ndarray:
    """Score what follows a text under our target: teacher forcing, [V]."""
    target, length = llm.core.engine.target, len(tokens)
    cache = target.init_cache(1, length)
    positions = jnp.arange(length)[None]
    output, _ = target.forward(
        llm.core.params.target, jnp.asarray([tokens]), positions, causal(length), cache, length
    )
    logits = target.logits(llm.core.params.target, output.hidden[:, -1])
    return np.asarray(jax.nn.log_softmax(logits[0]))


def triage(name: str, vllm, mine, theirs: dict) -> list[int]:
    """Return the requests whose texts differ, after making sure that rounding explains each.

    Law 1b: teacher-forced on the common prefix, both emitted tokens are the best to within
    rounding; and where vLLM is at hand, its logits there are ours. Anything else fails.
    """
    llm, cases = ours("plain")[0], []
    for i, (one, other) in enumerate(zip(mine, theirs["outputs"], strict=True)):
        pairs = zip(one.outputs[0].token_ids, other["token_ids"], strict=True)
        first = next((j for j, (a, b) in enumerate(pairs) if a != b), None)
        if first is None:
            continue
        prefix = [*one.prompt_token_ids, *other["token_ids"][:first]]
        own = logprobs(llm, prefix)
        scale = TOLERANCE * max(1.0, np.abs(own).max())
        for emitted in (one.outputs[0].token_ids[first], other["token_ids"][first]):
            assert own.max() - own[emitted] < scale, f"request {i}, token {first}"
        cases.append((i, prefix, own, scale))
    if cases and vllm.live:
        forced = {
            "kind": "offline",
            "model": "bundled",
            "prompts": [prefix for _, prefix, *_ in cases],
            "sampling_params": {"temperature": 0.0, "max_tokens": 1, "logprobs": -1},
            "engine": {"max_model_len": MAX_MODEL_LEN, "max_logprobs": -1},
        }
        answers = vllm(f"{name}_forced", forced)["outputs"]
        for (_, _, own, scale), answer in zip(cases, answers, strict=True):
            (said,) = answer["logprobs"]
            dense = np.asarray([said[str(token)] for token in range(len(said))])
            assert np.abs(own - dense).max() < scale
    return [i for i, *_ in cases]


@pytest.mark.parametrize("method", CONFIGS)
def test_greedy_text_is_vllms(method, vllm, compared):
    theirs, _, mine = both(method, vllm)
    different = triage(f"text_{method}", vllm, mine, theirs)
    num_tokens = len(theirs["outputs"]) * NUM_TOKENS
    assert len(different) <= 1 + num_tokens / 10_000
    compared(
        f"greedy text, {method}",
        "vLLM's",
        f"{len(theirs['outputs'])} prompts x {NUM_TOKENS} tokens",
        f"equal, {len(different)} differences by rounding",
    )


def same(method: str, vllm, mine, theirs: dict) -> list[int]:
    """Return the requests with equal texts."""
    different = triage(f"text_{method}", vllm, mine, theirs)
    return [i for i in range(len(theirs["outputs"])) if i not in different]


@pytest.mark.parametrize("method", SPECULATIVE)
def test_every_verified_draft_is_vllms(method, vllm, compared):
    theirs, _, mine = both(method, vllm)
    number = 0
    for i in same(method, vllm, mine, theirs):
        drafts = [[at, list(draft)] for at, draft in mine[i].outputs[0].drafts]
        assert drafts == theirs["rounds"][i], f"request {i}"
        number += len(drafts)
    assert number > 10 * len(mine)
    compared(f"drafts, {method}", "what vLLM verified", f"{number} drafts", "equal")


@pytest.mark.parametrize("method", SPECULATIVE)
def test_counters_are_vllms(method, vllm, compared):
    theirs, llm, mine = both(method, vllm)
    rows, counters = same(method, vllm, mine, theirs), llm.get_metrics()
    for i in rows:
        metrics, expected = mine[i].outputs[0].spec_decode_metrics, theirs["outputs"][i]["metrics"]
        assert metrics is not None
        got = metrics.to_dict()
        assert got == {name: expected[name] for name in got}
    if len(rows) == len(mine) and theirs["counters"] is not None:
        counted = {m.name: list(m.values) if isinstance(m, Vector) else m.value for m in counters}
        assert counted == {name: theirs["counters"][name] for name in counted}
    total = SpecDecodeCounters.zeros(K)
    for i in rows:
        one = mine[i].outputs[0].spec_decode_metrics
        total = total.add(one.per_step_drafted, one.per_step_accepted)
    if len(rows) == len(mine):
        assert llm.counters == total
    assert 0.05 < total.acceptance_rate < 0.95  # a blind test would compare zeros
    compared(
        f"counters and per-request metrics, {method}",
        "vLLM's",
        f"{len(rows)} requests, {total.num_drafts} drafts, {total.num_draft_tokens} draft tokens",
        f"equal, {total.num_accepted_tokens} accepted"
        + ("" if len(rows) == len(mine) else "; totals not compared"),
    )


def test_drafts_from_what_others_said_are_vllms(vllm, compared):
    """One request at a time, and all of them twice: the second time everything was said before.

    Every request ends with a round: vLLM's index also takes the tokens that a limit cuts off.
    """
    config = {"method": "suffix", "num_speculative_tokens": K}
    prompts = [list(one.prompt_token_ids) for one in ours("plain")[1][:12]] * 2
    llm = LLM("bundled", speculative_config=config, max_model_len=MAX_MODEL_LEN, max_num_seqs=1)
    said, drafts, params = [], [], []
    for prompt in prompts:
        llm.core.corpus = Corpus(24, 10_000, 1 << 16, said)
        *_, last = llm.stream({"prompt_token_ids": prompt}, SamplingParams(**GREEDY))
        last.request_state.cut(NUM_TOKENS - len(last.request_state.rounds[-1].tokens))
        said.append(list(last.request_state.tokens))
        drafts.append([[at, draft] for at, draft in output_processor.drafts(last.request_state)])
        params.append({**GREEDY, "max_tokens": len(said[-1])})
    shared = {**job("plain"), "prompts": prompts, "speculative_config": config}
    shared["engine"] = {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": 1}
    theirs = vllm("text_suffix_shared", {**shared, "sampling_params": params})
    assert [one["token_ids"] for one in theirs["outputs"]] == said
    assert theirs["rounds"] == drafts
    rates = [one["metrics"]["draft_acceptance_rate"] for one in theirs["outputs"]]
    once, again = np.mean(rates[:12]), np.mean(rates[12:])
    assert again > 0.9 > once
    number = sum(map(len, drafts))
    result = f"equal; {once:.0%} are accepted, replayed {again:.0%}"
    compared("drafts, suffix, shared responses", "what vLLM verified", f"{number} drafts", result)


def test_vllm_verifies_our_drafts_as_we_do(vllm, compared):
    """Feed vLLM the draft model's drafts as a table: the helper for methods it lacks."""
    mine = ours("draft_model")[1]
    asked = {
        **job("plain"),
        "speculative_config": {**TABLE_DRAFTS, "num_speculative_tokens": K},
        "drafts": table(mine),
    }
    theirs = vllm("text_table", asked)
    assert not triage("text_table", vllm, mine, theirs)
    number = 0
    for one, rounds, other in zip(mine, theirs["rounds"], theirs["outputs"], strict=True):
        output = one.outputs[0]
        assert [[at, list(draft)] for at, draft in output.drafts] == rounds
        assert (
            list(output.spec_decode_metrics.per_step_accepted)
            == (other["metrics"]["per_step_accepted"])
        )
        number += len(rounds)
    compared("verification of our drafts", "vLLM's custom_class", f"{number} drafts", "equal")


PROPOSERS = {
    "ngram": NGRAM,
    "suffix": SUFFIX,
    "draft_model": DRAFT,
    "own": {"method": "custom_class", "model": "tests.vllm.own:ngram"},
}


@pytest.mark.parametrize("method", PROPOSERS)
def test_specjax_drafts_inside_vllm_what_vllm_drafts(method, vllm, checkpoints, compared):
    """The same drafts, counters and texts as vLLM's own, which the tests above hold to be ours."""
    peer = "ngram" if method == "own" else method
    asked = {
        **job(peer),
        "prompts": job("plain")["prompts"][:12],
        "speculative_config": {
            "method": "custom_class",
            "model": "specjax.vllm.Proposer",
            "num_speculative_tokens": K,
        },
        "beside": True,
    }
    asked["engine"] = {**asked["engine"], "additional_config": {"specjax": PROPOSERS[method]}}
    inside = vllm(f"text_inside_{method}", asked)
    theirs = recordings.replay(f"text_{peer}", job(peer), weights_of(job(peer), checkpoints))
    number, total = 0, 0
    for i, output in enumerate(inside["outputs"]):
        assert output["token_ids"] == theirs["outputs"][i]["token_ids"], f"request {i}"
        assert inside["rounds"][i] == theirs["rounds"][i], f"request {i}"
        assert output["metrics"] == theirs["outputs"][i]["metrics"], f"request {i}"
        number += len(inside["rounds"][i])
        total += output["metrics"]["num_draft_tokens"]
    assert inside["counters"]["vllm:spec_decode_num_drafts"] == number > 100
    assert inside["counters"]["vllm:spec_decode_num_draft_tokens"] == total
    what = f"specjax.vllm in vLLM, {method}: drafts, counters, texts"
    compared(what, f"vLLM's {peer}", f"{len(inside['outputs'])} requests, {number} drafts", "equal")

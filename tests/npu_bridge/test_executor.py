"""The loop on a torch device: same seed, same text (law 1b), lowered once, and never instead."""

import asyncio

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from npu_bridge.certificate import certify, page
from npu_bridge.executor import SPARE, Executor, check_room
from npu_bridge.lower import lower
from specjax import LLM, SamplingParams
from specjax.audit import batches
from specjax.audit.peers import vllm_ascend
from specjax.audit.source_loader import NotInstalled
from specjax.bundled import prompts
from specjax.core import cache as kv
from specjax.engine import rows
from specjax.engine.service import Service
from specjax.verify.rejection import reject

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
ASKED = ["def add(a, b):\n    return a", "import os\nimport sys\nimport", "x"]
RICH = {
    "temperature": 0.9, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.2, "min_tokens": 3,
    "logit_bias": {5: 1.5}, "logprobs": 2, "prompt_logprobs": 1,
}  # fmt: skip


SHAPE = rows.Layout(260, 0, 1, frozenset(), 0, 0)


def executor(llm: LLM) -> Executor:
    return llm.core.driver.prefill.__self__


def said(llm: LLM, params: SamplingParams, asked=ASKED):
    outputs = llm.generate(asked, params, use_tqdm=False)
    return [(one.outputs[0].token_ids, one.outputs[0].finish_reason) for one in outputs]


GREEDY, WARM = {"temperature": 0.0}, {"temperature": 0.9, "top_k": 40}
DRAFT: dict = {"model": "draft", "num_speculative_tokens": 3}
WAYS = {
    "ngram": (NGRAM, RICH),
    "suffix": ({"method": "suffix", "num_speculative_tokens": 3}, GREEDY),
    "probabilistic": (DRAFT | {"draft_sample_method": "probabilistic"}, WARM),
}


@pytest.mark.parametrize("name", WAYS)
def test_the_lowered_loop_writes_the_same_text(name, pair):
    config, wanted = WAYS[name]
    if "model" in config:
        config = config | {"model": pair.draft}
    ours, theirs = (
        LLM(pair.target, speculative_config=config, max_num_seqs=2, device=device, seed=4)
        for device in ("cpu", "torch-cpu")
    )
    params = SamplingParams(max_tokens=12, **wanted)
    assert said(ours, params) == said(theirs, params)
    assert ours.counters == theirs.counters


def test_logprobs_come_out_too(pair):
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=2, prompt_logprobs=2)
    ours, theirs = (
        LLM(pair.target, device=device).generate(ASKED[:1], params, use_tqdm=False)[0]
        for device in ("cpu", "torch-cpu")
    )
    for one, two in (
        (ours.outputs[0].logprobs, theirs.outputs[0].logprobs),
        (ours.prompt_logprobs[1:], theirs.prompt_logprobs[1:]),
    ):
        for a, b in zip(one, two, strict=True):
            assert a.keys() == b.keys()
            assert all(abs(a[token].logprob - b[token].logprob) < 1e-4 for token in a)


def test_a_second_call_lowers_nothing(pair):
    llm = LLM(pair.target, speculative_config=NGRAM, device="torch-cpu")
    params = SamplingParams(temperature=0.0, max_tokens=8)
    said(llm, params)
    before = executor(llm).num_lowered
    assert before >= 2
    said(llm, params)
    said(llm, SamplingParams(temperature=0.5, max_tokens=8))
    assert executor(llm).num_lowered == before


def test_the_bundled_model_writes_the_same_texts():
    asked = [one["turns"][0] for one in prompts()]
    params = SamplingParams(temperature=0.0, max_tokens=64)
    ours, theirs = (
        said(LLM("bundled", speculative_config=NGRAM, device=device), params, asked)
        for device in ("cpu", "torch-cpu")
    )
    assert len(ours) == 24
    assert ours == theirs  # law 1b allows a near tie in 10,000 tokens; here there is none


def test_no_device_is_no_device():
    with pytest.raises(ValueError, match=r"device='npu' cannot be used.*CANN 9.1.0.*torch-cpu"):
        LLM("bundled", device="npu")
    with pytest.raises(ValueError, match="tensor_parallel_size=1"):
        LLM("bundled", device="torch-cpu", tensor_parallel_size=2)


def test_a_slot_past_the_cache_is_refused_before_it_is_written(pair):
    llm = LLM(pair.target, device="torch-cpu")
    state = executor(llm).init_state(llm.core.engine, llm.core.params, *rows.idle(1, SHAPE, 64))
    full = state.cache._replace(lengths=jnp.asarray([64 + SPARE - 1], jnp.int32))
    check_room(state._replace(cache=full), 1)
    with pytest.raises(RuntimeError, match="128 slots"):
        check_room(state._replace(cache=full), 2)


def test_an_idle_batch_lowers_its_round_and_counts_none(pair):
    """What a service's warm-up asks for."""
    llm = LLM(pair.target, speculative_config=NGRAM, device="torch-cpu")
    engine = llm.core.engine._replace(window=64)
    state = llm.core.driver.init_state(engine, llm.core.params, *rows.idle(1, SHAPE, 64))
    _, infos, rounds = llm.core.driver.generate(engine, llm.core.params, state, 1, 1, 1)
    assert (infos, rounds, executor(llm).num_lowered) == (None, 0, 1)


def test_rows_join_leave_and_move_as_they_do_in_jax(pair):
    llm = LLM(pair.target, speculative_config=DRAFT | {"model": pair.draft}, device="torch-cpu")

    def make(size: int):
        state = llm.core.driver.init_state(
            llm.core.engine, llm.core.params, *rows.idle(size, SHAPE, 64)
        )
        drawn = jax.tree.map(lambda leaf: leaf.normal_() if torch.is_tensor(leaf) else leaf, state)
        twin = jax.tree.map(lambda leaf: jnp.array(leaf) if torch.is_tensor(leaf) else leaf, drawn)
        return drawn, twin

    (state, twin), (row, row_twin) = make(3), make(1)
    slots = np.asarray([2, 0], np.int32)
    same(llm.core.driver.select(state, slots, 1), kv.select(twin, jnp.asarray(slots), jnp.int32(1)))
    same(llm.core.driver.release_slot(state, 1), kv.release_slot(twin, jnp.int32(1)))
    same(llm.core.driver.insert_row(state, 1, row), kv.insert_row(twin, jnp.int32(1), row_twin))


def same(ours, theirs) -> None:
    """Compare two states, one of them with tensors."""
    for one, two in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if jnp.issubdtype(two.dtype, jax.dtypes.prng_key):
            one, two = jax.random.key_data(one), jax.random.key_data(two)
        assert one.shape == two.shape
        assert (np.asarray(one) == np.asarray(two)).all()


def test_a_service_runs_lowered_and_says_what_generate_says(pair):
    """A last piece that is padded past the text's end; a second row comes and goes."""
    llm = LLM(
        pair.target, speculative_config=NGRAM, max_num_seqs=2, max_model_len=100,
        device="torch-cpu",
    )  # fmt: skip
    asked = [{"prompt_token_ids": [*range(5, 18)] * 7 + [*range(5, 11)]}, ASKED[0]]
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (3, 2)]
    wanted = LLM(pair.target, max_model_len=100).generate(asked, params, use_tqdm=False)
    service = Service(llm.core, max_waiting=2, prefix_cache_bytes=2**20)
    assert service.prefixes is None

    async def read(stream):
        return [token async for delta in stream for token in delta.token_ids]

    async def everything():
        streams = [service.submit(*one)[0] for one in zip(asked, params, strict=True)]
        return [await read(stream) for stream in streams]

    try:
        got = asyncio.run(everything())
    finally:
        service.close(drain=False)
    assert got == [output.outputs[0].token_ids for output in wanted]


def say_lowered(batch: batches.Batch) -> list[list[int]]:
    """Emit with our kernel, lowered."""
    args = batches.pad(batch)
    key = args[1].probs is None
    if key not in PROGRAMS:
        PROGRAMS[key] = lower(lambda *given: reject(*given, batches.K), args)
    verdict = PROGRAMS[key](*args)
    counts = (verdict.num_accepted + 1).tolist()
    return [verdict.tokens[row, : counts[row]].tolist() for row in range(len(batch.counts))]


PROGRAMS: dict = {}


def test_the_lowered_rejection_kernel_says_what_the_jitted_one_says():
    for seed in range(60):
        batch = batches.make(seed)
        assert say_lowered(batch) == batches.emit(batch)
    assert say_lowered(batches.edge()) == batches.emit(batches.edge())


def test_the_lowered_rejection_kernel_is_vllm_ascends():
    try:
        replay = vllm_ascend()
    except NotInstalled as missing:
        pytest.skip(str(missing))
    for seed in range(200):
        batch, theirs = replay(batches.make(seed), seed)
        assert say_lowered(batch) == theirs


def test_the_certificate_says_what_was_and_was_not_run(pair):
    certificate = certify(pair.target, num_prompts=1, max_tokens=6)
    assert all(row["passes"] for row in [*certificate["compared"], *certificate["texts"]])
    assert not certificate["hardware"]["run"]
    words = page(certificate)
    assert "not executed on hardware" in words
    assert "not run: device='npu' cannot be used" in words
    assert "works on Ascend" not in words
    # heads of 8: too narrow for the fused attention, so the certificate does not pass
    assert not certificate["passes"]
    assert certificate["fusible_ops"]["npu"]["decomposed"]["attention"] == 2
    broken = {**certificate, "compared": [certificate["compared"][0] | {"passes": False}]}
    assert "FAILS" in page(broken)
    assert np.isfinite(list(certificate["bfloat16_rms_error"].values())).all()

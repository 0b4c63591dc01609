"""vllm-ascend's and tpu-inference's own samplers on our batches, recorded or where installed."""

import time

import pytest

from specjax.audit import peers
from specjax.audit.batches import KINDS, make, say
from specjax.audit.borrow import NotInstalled, version
from tests.oracle import recordings
from tests.oracle.conftest import LIVE

NUM_BATCHES = 240
ENGINES = {"vllm-ascend": peers.vllm_ascend, "tpu-inference": peers.tpu_inference}


@pytest.fixture(params=["recorded", LIVE])
def tokens(request):
    """Return a function from an engine's name to what it emits on every batch."""

    def replay(engine: str) -> list[list[list[int]]]:
        job = {"kind": "replay", "engine": engine, "num_batches": NUM_BATCHES}
        name = f"replay_{engine.replace('-', '_')}"
        if request.param == "recorded":
            return recordings.replay(name, job, {})["tokens"]
        try:
            sampler = ENGINES[engine]()
        except NotInstalled as missing:
            pytest.skip(str(missing))
        start = time.monotonic()
        said = [sampler(make(seed), seed)[1] for seed in range(NUM_BATCHES)]
        if request.config.option.record:
            facts = {"versions": {engine: version(engine)}, "repairs": {}}
            seconds = {"total": time.monotonic() - start}
            recordings.record(name, job, {}, {**facts, "tokens": said, "seconds": seconds})
        return said

    return replay


@pytest.mark.parametrize("engine", ENGINES)
def test_our_kernel_emits_what_the_engines_sampler_emits(engine, tokens, compared):
    accepted = drafted = 0
    for seed, theirs in enumerate(tokens(engine)):
        batch = make(seed)
        if engine == "tpu-inference":
            batch = peers.with_noise_of(batch, seed)
        assert say(batch) == theirs, f"batch {seed}, {KINDS[seed % len(KINDS)]}"
        accepted += sum(len(text) - 1 for text in theirs)
        drafted += int(batch.counts.sum())
    assert 0.2 < accepted / drafted < 0.8
    what = "its PyTorch fallback on a CPU" if engine == "vllm-ascend" else "its JAX sampler"
    compared(
        f"{engine}'s rejection_sample",
        f"our kernel, same p, q and noise; {what}",
        f"{NUM_BATCHES} batches, {drafted} drafted tokens",
        "equal tokens",
    )

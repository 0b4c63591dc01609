"""vllm-ascend's and tpu-inference's own samplers on our batches, recorded or where installed.

Neither belongs to the oracle's environment: `pip install --no-deps` puts them beside specjax,
and then `make oracle-record` records them anew.
"""

import importlib.util
import time

import pytest

from specjax.audit import peers
from specjax.audit.batches import KINDS, emit, make
from specjax.audit.source_loader import version
from tests.oracle import recordings

NUM_BATCHES = 240
ENGINES = {"vllm-ascend": peers.vllm_ascend, "tpu-inference": peers.tpu_inference}
CASES = [(engine, False) for engine in ENGINES] + [
    pytest.param(engine, True, marks=pytest.mark.oracle)
    for engine in ENGINES
    if importlib.util.find_spec(engine.replace("-", "_"))
]


def replay(engine: str, live: bool, record: bool) -> list[list[list[int]]]:
    """Return what an engine emits on every batch."""
    job = {"kind": "replay", "engine": engine, "num_batches": NUM_BATCHES}
    name = f"replay_{engine.replace('-', '_')}"
    if not live:
        return recordings.replay(name, job, {})["tokens"]
    start, sampler = time.monotonic(), ENGINES[engine]()
    said = [sampler(make(seed), seed)[1] for seed in range(NUM_BATCHES)]
    if record:
        facts = {"versions": {engine: version(engine)}, "repairs": {}}
        seconds = {"total": time.monotonic() - start}
        recordings.record(name, job, {}, {**facts, "tokens": said, "seconds": seconds})
    return said


@pytest.mark.parametrize(("engine", "live"), CASES)
def test_our_kernel_emits_what_the_engines_sampler_emits(engine, live, request, compared):
    accepted = drafted = 0
    for seed, theirs in enumerate(replay(engine, live, request.config.option.record)):
        batch = make(seed)
        if engine == "tpu-inference":
            batch = peers.with_noise_of(batch, seed)
        assert emit(batch) == theirs, f"batch {seed}, {KINDS[seed % len(KINDS)]}"
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

"""The rejection kernel on the same p, q and noise as vLLM's ``rejection_sample``."""

import pytest

from specjax.audit.batches import KINDS, edge, emit, make, save

NUM_BATCHES = 1000


@pytest.fixture
def theirs(vllm, tmp_path_factory) -> list[list[list[int]]]:
    """Ask vLLM's kernel about all batches, the edge last."""
    batches = [*map(make, range(NUM_BATCHES)), edge()]
    path = tmp_path_factory.mktemp("kernel") / "batches.npz"
    save(batches, path)
    job = {"kind": "rejection", "arrays": path, "num_batches": len(batches)}
    return vllm("rejection", job)["tokens"]


def test_the_kernel_emits_what_vllms_emits(theirs, compared):
    accepted = drafted = 0
    for seed in range(NUM_BATCHES):
        batch = make(seed)
        said = emit(batch)
        assert said == theirs[seed], f"batch {seed}, {KINDS[seed % len(KINDS)]}"
        accepted += sum(len(row) - 1 for row in said)
        drafted += int(batch.counts.sum())
    assert 0.2 < accepted / drafted < 0.8
    compared(
        "rejection kernel",
        "vLLM's rejection_sample, same p, q, uniforms, exponentials",
        f"{NUM_BATCHES} batches, {drafted} drafted tokens ({', '.join(KINDS)})",
        "equal tokens",
    )


def test_at_equality_vllm_accepts_and_we_do_not(theirs):
    """u q < p is strict here, so that u = 0 never accepts p = 0; vLLM takes p / q >= u."""
    assert theirs[-1] == [[0, 1]]
    assert emit(edge()) == [[1]]

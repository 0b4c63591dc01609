"""The rejection kernel on the same p, q and noise as vLLM's ``rejection_sample``."""

import pytest

from specjax.audit.batches import KINDS, K, edge, emit, make, save
from specjax.verify.block import accept_block
from specjax.verify.rejection import reject
from specjax.verify.synthetic import accept_by_rate

NUM_BATCHES, MANY = 1000, 120
RATES = (0.9, 0.7, 0.6, 0.5, 0.3)[:K]


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


RULES = {  # of vLLM's other runner, whose kernels Triton interprets: a second for each batch
    "standard": reject,
    "block": accept_block,
    "synthetic": accept_by_rate(RATES),
}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_emits_what_the_v2_runners_kernel_emits(rule, vllm, tmp_path, compared):
    """The same p, q, uniforms and exponentials; a draft token's law is never given as p itself.

    There ("same") a rate may reject what is never rejected, and the residual is empty: vLLM then
    emits token 0, we sample from p.
    """
    seeds = [seed for seed in range(MANY) if KINDS[seed % len(KINDS)] != "same"]
    batches = [make(seed) for seed in seeds]
    save(batches, tmp_path / "batches.npz")
    rates = {"rates": list(RATES)} if rule == "synthetic" else {}
    job = {"kind": "rejection", "arrays": tmp_path / "batches.npz", "num_batches": len(batches)}
    theirs = vllm(f"rejection_v2_{rule}", {**job, "rule": rule, **rates})["tokens"]
    accepted = drafted = 0
    for batch, tokens, seed in zip(batches, theirs, seeds, strict=True):
        said = emit(batch, RULES[rule])
        assert said == tokens, f"batch {seed}, {KINDS[seed % len(KINDS)]}"
        accepted += sum(len(row) - 1 for row in said)
        drafted += int(batch.counts.sum())
    assert 0.1 < accepted / drafted < 0.9
    compared(
        f"{rule} rule, kernels of the V2 runner",
        "vLLM's rejection_sample, same p, q, uniforms, exponentials",
        f"{len(batches)} batches, {drafted} drafted tokens",
        "equal tokens",
    )

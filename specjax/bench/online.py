"""``specjax bench online``: a head learns from the answers it helps to give, while it serves them.

The traffic is text that the head has never seen: lines of a server's log, where it was trained on
Python. A round: answer requests, train the head on all of them so far while others are answered
(``train.online``), and exchange its weights between two rounds of decoding. Requests that are never
trained on are repeated after each exchange: their acceptance rises, and their texts are the same to
the token.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from specjax.bench.report import Row, machine_row, print_rows, write_rows
from specjax.bundled import resolve
from specjax.engine.llm import LLM
from specjax.engine.options.methods import infer_method
from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.service import Service
from specjax.measure.load import closed_loop
from specjax.train.online import OnlineTrainer

MODEL, DEPTH = "bundled", 3
NUM_TOKENS, NUM_LINES = 64, 5  # of an answer, of a prompt
CLIENTS, NUM_JUDGED = 2, 16  # the latter are the requests that are never trained on
VERBS, THINGS = ("GET", "POST", "PUT"), ("items", "users", "orders", "carts", "reviews")


class Answer(NamedTuple):
    """The answer to a request."""

    tokens: list[int]  # with the prompt's
    num_drafted: int
    num_accepted: int


def bench_online(
    json_file: Path | None,
    *,
    head: str = "bundled:eagle3",
    rounds: int = 3,
    num_requests: int = 48,
    num_judged: int = NUM_JUDGED,
    out: Path | None = None,
    console: Console | None = None,
) -> list[Row]:
    """Return, print and write the acceptance of requests outside the training, round by round.

    Args:
        json_file: where to write the rows.
        head: folder of the head.
        rounds: how often it is trained on, and its weights exchanged.
        num_requests: to learn from in each round.
        num_judged: requests that are never trained on.
        out: folder for answers and heads; None: a temporary one.
        console: where to print.

    Raises:
        ValueError: a bad head.
        RuntimeError: training failed, or a text changed with the head.
    """
    method = infer_method(str(resolve(head)))
    config = {"method": method, "model": head, "num_speculative_tokens": DEPTH}
    llm = LLM(MODEL, speculative_config=config, max_num_seqs=CLIENTS, max_model_len=384)
    service, rng = Service(llm.core, max_waiting=CLIENTS), random.Random(0)

    def draw(number: int) -> list[list[int]]:
        return [llm.core.tokenizer.encode(log_lines(rng)) for _ in range(number)]

    judged, rows = draw(num_judged), [machine_row()]
    where = nullcontext(out) if out is not None else tempfile.TemporaryDirectory()
    with where as folder:
        trainer = OnlineTrainer(
            Path(folder),
            target=MODEL,
            head=head,
            kind=method,
            depth=DEPTH,
            every=num_requests,
        )
        trainer.start(service.update_drafter)
        try:
            before = answer(service, judged)
            rows.append(rate("before training", before))
            for number in range(1, rounds + 1):
                for one in answer(service, draw(num_requests)):
                    trainer.add(one.tokens)
                while trainer.rounds < number:
                    if trainer.error:
                        raise RuntimeError(trainer.error)
                    start = time.perf_counter()
                    answer(service, draw(1))
                    time.sleep(time.perf_counter() - start)  # traffic that leaves time to learn in
                after = answer(service, judged)
                if [one.tokens for one in after] != [one.tokens for one in before]:
                    raise RuntimeError("a text changed with the head: this must never happen")
                rows.append(rate(f"after round {number}", after))
        finally:
            trainer.close()
            service.close(drain=False)
    print_rows(rows, console or Console(highlight=False))
    if json_file is not None:
        write_rows(rows, json_file)
    return rows


def rate(name: str, answers: Sequence[Answer]) -> Row:
    """Return the row of an acceptance rate."""
    drafted = sum(one.num_drafted for one in answers)
    value = round(sum(one.num_accepted for one in answers) / max(drafted, 1), 4)
    return Row(name=f"acceptance {name}", value=value, unit="accepted / drafted")


def log_lines(rng: random.Random) -> str:
    """Return the beginning of a server's log, drawn at random."""
    start, lines = rng.randrange(20 * 3600), []
    for _ in range(NUM_LINES):
        start += rng.randrange(1, 20)
        hour, minute, second = start // 3600, start // 60 % 60, start % 60
        path = f"{rng.choice(VERBS)} /api/{rng.choice(THINGS)}/{rng.randrange(1000, 9999)}"
        lines.append(
            f"2026-11-{rng.randrange(10, 30)} {hour:02}:{minute:02}:{second:02} INFO worker-"
            f"{rng.randrange(8)} {path} {rng.choice((200, 200, 201, 404))} {rng.randrange(90)}ms"
        )
    return "\n".join(lines) + "\n"


def answer(service: Service, prompts: Sequence[list[int]]) -> list[Answer]:
    """Return the answers to prompts, a few of which are in work at a time."""

    async def send(prompt: list[int]) -> Answer:
        params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
        (stream,) = service.submit_ids(prompt, params)
        async for _ in stream:
            pass
        output = stream.completion()
        metrics = output.spec_decode_metrics
        counts = (0, 0)
        if metrics is not None:
            counts = metrics.num_draft_tokens, metrics.num_accepted_draft_tokens
        return Answer([*prompt, *output.token_ids], *counts)

    return asyncio.run(closed_loop(send, prompts, CLIENTS))

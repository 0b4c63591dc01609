"""Put load on an arm: so many requests at a time, or arrivals at random at a rate."""

import asyncio
import time
from collections.abc import Callable, Sequence

import numpy as np

from specjax.ab.arms import Arm
from specjax.ab.questions import Question, grade
from specjax.ab.records import Record
from specjax.engine.tokenizer import Tokenizer

WARM_UP = "# {}\nimport {}\n\n\ndef main(argument, number):\n    for one in range(number):\n"
MODULES = "os", "re", "sys", "json", "math", "time", "string", "random", "socket", "struct"


async def closed_loop(arm: Arm, questions: Sequence[Question], concurrency: int, **options):
    """Keep ``concurrency`` requests under way until all questions are asked.

    Returns (seconds, records in the order of the questions, turn by turn).
    """
    waiting = iter(enumerate(questions))
    found: dict[int, list[Record]] = {}
    began = time.perf_counter()

    async def work():
        for index, question in waiting:  # shared: each takes the next
            found[index] = await ask(arm, question, began, **options)

    await asyncio.gather(*(work() for _ in range(concurrency)))
    return time.perf_counter() - began, in_order(found)


async def open_loop(arm: Arm, questions: Sequence[Question], rate: float, seed: int, **options):
    """Send questions at random times, ``rate`` per second (Poisson), whatever is under way.

    Equal seeds give equal arrivals. Returns as ``closed_loop`` does.
    """
    found: dict[int, list[Record]] = {}
    began = time.perf_counter()

    async def work(index: int, question: Question, arrival: float):
        await asyncio.sleep(max(began + arrival - time.perf_counter(), 0.0))
        found[index] = await ask(arm, question, began, **options)

    pairs = zip(questions, arrivals(rate, len(questions), seed), strict=True)
    await asyncio.gather(*(work(i, one, when) for i, (one, when) in enumerate(pairs)))
    return time.perf_counter() - began, in_order(found)


def arrivals(rate: float, num: int, seed: int) -> list[float]:
    """Draw when requests are sent [s]."""
    return np.random.default_rng(seed).exponential(1 / rate, num).cumsum().tolist()


def in_order(found: dict[int, list[Record]]) -> list[Record]:
    """Put records into their questions' order."""
    return [record for index in sorted(found) for record in found[index]]


async def ask(
    arm: Arm,
    question: Question,
    began: float,
    *,
    chat: bool,
    salt: str,
    tokenizer: Tokenizer | None = None,
    tell: Callable[[], None] = lambda: None,
) -> list[Record]:
    """Ask one question: in a chat all its turns, each after the answer to the one before.

    What is not measured (grading, counting again) happens after the stream has ended.
    """
    records, messages = [], []
    turns = question.turns if chat else question.turns[:1]
    for number, turn in enumerate(turns, start=1):
        messages.append({"role": "user", "content": turn})
        name = question.id if len(turns) == 1 else f"{question.id} turn {number}"
        record, text = await arm.complete(messages, name, began, salt)
        if record.error is None:
            if tokenizer is not None:
                again = len(tokenizer.encode(text, add_special_tokens=False))
                record = record._replace(retokenized=again)
            record = record._replace(correct=grade(question, text))
        records.append(record)
        messages.append({"role": "assistant", "content": text})
        if record.error is not None:
            break
    tell()
    return records


async def warm_up(arm: Arm, concurrency: int, *, chat: bool) -> list[Record]:
    """Send as many requests at once as there will be, on texts of no dataset."""
    texts = [WARM_UP.format(i, MODULES[i % len(MODULES)]) for i in range(max(concurrency, 1))]
    questions = [Question(f"warm-up {i}", (text,)) for i, text in enumerate(texts)]
    _, records = await closed_loop(arm, questions, len(texts), chat=chat, salt="warm-up")
    return records

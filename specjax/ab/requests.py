"""Generate load on an arm: a closed loop of a given concurrency, or Poisson arrivals."""

import functools
import time
from collections.abc import Sequence

from specjax.ab.arms import Arm
from specjax.ab.questions import Question, grade
from specjax.ab.records import Record
from specjax.engine.text.tokenizer import Tokenizer
from specjax.measure import load

WARM_UP = "# {}\nimport {}\n\n\ndef main(argument, number):\n    for one in range(number):\n"
MODULES = "os", "re", "sys", "json", "math", "time", "string", "random", "socket", "struct"


async def closed_loop(arm: Arm, questions: Sequence[Question], concurrency: int, **options):
    """Send all questions, ``concurrency`` requests at a time.

    Returns (seconds, records in the order of the questions, turn by turn).
    """
    began = time.perf_counter()
    send = functools.partial(ask, arm, began=began, **options)
    found = await load.closed_loop(send, questions, concurrency)
    return time.perf_counter() - began, [record for records in found for record in records]


async def open_loop(arm: Arm, questions: Sequence[Question], rate: float, seed: int, **options):
    """Send all questions at Poisson arrival times, ``rate`` per second.

    Equal seeds give equal arrivals. Returns as ``closed_loop`` does.
    """
    arrivals = load.poisson_arrivals(rate, len(questions), seed)
    began = time.perf_counter()
    send = functools.partial(ask, arm, began=began, **options)
    found = await load.open_loop(send, questions, [began + one for one in arrivals])
    return time.perf_counter() - began, [record for records in found for record in records]


async def ask(
    arm: Arm,
    question: Question,
    *,
    began: float,
    chat: bool,
    salt: str,
    tokenizer: Tokenizer | None = None,
) -> list[Record]:
    """Return the records of one question: in a chat one per turn, sent in sequence.

    Grading and counting tokens again happen after the stream has ended, outside its time.
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
    return records


async def warm_up(arm: Arm, concurrency: int, *, chat: bool) -> list[Record]:
    """Send ``concurrency`` requests at once, on texts of no dataset; return their records."""
    texts = [WARM_UP.format(i, MODULES[i % len(MODULES)]) for i in range(max(concurrency, 1))]
    questions = [Question(f"warm-up {i}", (text,)) for i, text in enumerate(texts)]
    _, records = await closed_loop(arm, questions, len(texts), chat=chat, salt="warm-up")
    return records

"""Read datasets from local files, and grade answers.

The format of a file is recognised by its keys: ``{"turns"}`` lines (Spec-Bench, MT-bench, the
shipped prompts), HumanEval, GSM8K, ARC, BoolQ, AGIEval, a ShareGPT file, or plain lines. Answers
are graded where a dataset has them; speculation must not change the grades.
"""

import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specjax import bundled

CHOICE = re.compile(r"\b([A-E1-5])\b")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
BOOLEAN = re.compile(r"\b(yes|no|true|false)\b", re.IGNORECASE)
ASKED_CHOICE = "Answer with the letter of the right choice: 'The answer is X'."


class Question(NamedTuple):
    """One prompt with its turns, and the reference answer if the dataset has one."""

    id: str
    turns: tuple[str, ...]
    answer: str | None = None
    kind: str = "turns"  # how an answer is read from a text


class Dataset(NamedTuple):
    """A named list of questions."""

    name: str
    questions: tuple[Question, ...]
    sha256: str  # of all prompts


def read_dataset(path: str) -> Dataset:
    """Return a dataset: a local file, or ``"bundled"`` for the shipped prompts.

    Raises ValueError for a file that is no dataset, naming the line, and OSError for no file.
    """
    if path == "bundled":
        rows: Any = bundled.prompts()
        name = "bundled"
    else:
        file = Path(path).expanduser()
        name = file.name.removesuffix(".gz").rpartition(".")[0] or file.name
        rows = read_rows(file)
    questions = []
    for number, row in enumerate(rows, start=1):
        try:
            questions.append(read_question(row, f"{name}/{number}"))
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise ValueError(
                f"{path} entry {number} is of no dataset that specjax ab knows ({error}); known: "
                "turns, HumanEval, GSM8K, ARC, BoolQ, AGIEval, ShareGPT, plain lines."
            ) from None
    if not questions:
        raise ValueError(f"{path} has no prompts.")
    if len({one.id for one in questions}) < len(questions):
        questions = [one._replace(id=f"{one.id}#{i}") for i, one in enumerate(questions, 1)]
    digest = hashlib.sha256(json.dumps([one.turns for one in questions]).encode()).hexdigest()
    return Dataset(name, tuple(questions), digest)


def read_rows(file: Path) -> Iterable[Any]:
    """Return the entries of a JSON list, JSON lines or plain lines, gzipped or not."""
    raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text: {error}") from None
    kind = file.name.removesuffix(".gz").rpartition(".")[2]
    if kind == "json":
        try:
            rows = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{file} is not valid JSON: {error}") from None
        if not isinstance(rows, list):
            raise ValueError(f"{file} must hold a JSON list, got {type(rows).__name__}")
        return rows
    lines = [line for line in text.splitlines() if line.strip()]
    if kind != "jsonl":
        return lines
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{file} line {number} is not valid JSON: {error}") from None
    return rows


def read_question(row: Any, name: str) -> Question:
    """Return one entry of any known dataset. Raises KeyError or TypeError for an unknown one."""
    if isinstance(row, str):
        return Question(name, (row,))
    own = row.get("id", row.get("question_id", row.get("task_id", name)))
    own = str(own)
    if "turns" in row:
        return Question(own, tuple(texts(row["turns"])))
    if "conversations" in row:
        return Question(own, (first_human(row["conversations"]),))
    if "passage" in row and ("label" in row or "answer" in row) and "options" not in row:
        right = row["answer"] if "answer" in row else row["label"]
        asked = f"{row['passage']}\nQuestion: {row['question']}?\nAnswer yes or no."
        return Question(own, (asked,), "yes" if right in (True, 1, "true") else "no", "boolean")
    if "options" in row and "label" in row:  # AGIEval
        asked = "\n".join(filter(None, (row.get("passage"), row["question"], *row["options"])))
        return Question(own, (f"{asked}\n{ASKED_CHOICE}",), str(row["label"]), "choice")
    if "answerKey" in row:  # ARC, in its own and in Hugging Face's form
        asked = row["question"]
        choices = asked["choices"] if isinstance(asked, Mapping) else row["choices"]
        stem = asked["stem"] if isinstance(asked, Mapping) else asked
        if isinstance(choices, Mapping):
            pairs = list(zip(choices["label"], choices["text"], strict=True))
        else:
            pairs = [(one["label"], one["text"]) for one in choices]
        listed = "\n".join(f"({label}) {text}" for label, text in pairs)
        return Question(own, (f"{stem}\n{listed}\n{ASKED_CHOICE}",), row["answerKey"], "choice")
    if "question" in row and "answer" in row:  # GSM8K
        right = row["answer"].rpartition("####")[2].strip().replace(",", "")
        return Question(own, (row["question"],), right, "number")
    return Question(own, (texts([row["prompt"]])[0],))


def texts(turns: Any) -> list[str]:
    """Return the turns as a list. Raises TypeError unless they are texts."""
    if not turns or isinstance(turns, str) or not all(isinstance(one, str) for one in turns):
        raise TypeError(f"turns must be a list of texts, got {turns!r:.60}")
    return list(turns)


def first_human(conversation: Iterable[Mapping[str, str]]) -> str:
    """Return the first message of the user."""
    for message in conversation:
        if message["from"] in ("human", "user"):
            return message["value"]
    raise KeyError("no human turn in the conversation")


def as_number(text: str) -> str | None:
    """Return the last number in a text, without thousands' commas or a zero fraction."""
    found = NUMBER.findall(text)
    return None if not found else f"{float(found[-1].replace(',', '')):.10g}"


def as_choice(text: str) -> str | None:
    """Return the last letter that stands alone, preferring what follows "answer is"."""
    after = text.lower().rfind("answer is")
    found = CHOICE.findall(text[after:] if after >= 0 else text)
    if not found:
        return None
    return found[0] if after >= 0 else found[-1]


def as_boolean(text: str) -> str | None:
    """Return the first yes or no."""
    found = BOOLEAN.search(text)
    return None if found is None else "yes" if found[1].lower() in ("yes", "true") else "no"


READ: Mapping[str, Callable[[str], str | None]] = {
    "number": as_number,
    "choice": as_choice,
    "boolean": as_boolean,
}


def grade(question: Question, text: str) -> bool | None:
    """Return whether a text contains the right answer; None if the dataset has no answers."""
    if question.answer is None:
        return None
    right = as_number(question.answer) if question.kind == "number" else question.answer
    return READ[question.kind](text) == right

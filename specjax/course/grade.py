"""Start an exercise file, and grade one: hints, and never the answer."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specjax.course.exercises import LESSONS, Exercise
from specjax.host.files import write_atomically

NUM_INPUTS = 40  # random inputs per exercise
SECONDS = 60.0  # for a file
MOST_SHOWN = 200  # characters of a value


class Grade(NamedTuple):
    """What became of one exercise."""

    name: str
    right: bool
    says: str


def start(number: int, folder: Path) -> Path:
    """Write the exercises of a lesson to a file of their own, and return its path.

    Raises:
        ValueError: there is no such lesson, or the file exists.
    """
    lesson, path = lesson_of(number), folder / f"exercises_{number:02}.py"
    if path.exists():
        raise ValueError(f"{path} exists: your answers may be in it. Move it, or name --folder.")
    parts = [f'"""Exercises to notebook {number:02}. Check them:\n\n'
             f'    python -m specjax.course check {number:02} {path.name}\n"""\n\n'
             "import numpy as np\n"]  # fmt: skip
    for one in lesson:
        task = one.task.replace("\n", "\n    ").replace("\n    \n", "\n\n")
        end = '\n    """' if "\n" in task else '"""'
        body = "    raise NotImplementedError\n"
        parts.append(f'\n\ndef {one.signature}:\n    """{task}{end}\n{body}')
    with write_atomically(path) as file:
        file.write("".join(parts).encode())
    return path


def check(number: int, path: Path) -> str:
    """Return a line per exercise of an answered file, graded in a process of its own.

    Raises:
        ValueError: there is no such lesson or file, it cannot be run, or an answer is wrong: then
            the message has the lines.
    """
    lesson_of(number)
    if not path.is_file():
        raise ValueError(f"{path} is no file: python -m specjax.course start {number:02} makes it.")
    command = [sys.executable, "-m", "specjax.course", "grade", str(number), str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise ValueError(f"{path} took longer than {SECONDS:g} s: is a loop endless?") from None
    if done.returncode:
        raise ValueError(done.stdout.strip() or done.stderr.strip().splitlines()[-1])
    return done.stdout.strip()


def lesson_of(number: int) -> tuple[Exercise, ...]:
    """Return the exercises of a lesson. Raises ValueError if it has none."""
    if number not in LESSONS:
        known = ", ".join(f"{one:02}" for one in LESSONS)
        raise ValueError(f"there are no exercises to {number:02}: take one of {known}.")
    return LESSONS[number]


def grade_file(number: int, path: Path) -> Iterator[Grade]:
    """Yield the grades of a file's answers; the file is executed.

    Raises:
        ValueError: it is no Python, or fails when it is imported.
    """
    spec = importlib.util.spec_from_file_location("answers", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is no Python file: its name must end with .py.")
    answers = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(answers)
    except Exception as error:
        raise ValueError(f"{path} does not run: {type(error).__name__}: {error}") from None
    for exercise in lesson_of(number):
        yield grade(exercise, getattr(answers, exercise.name, None))


def grade(exercise: Exercise, answer: Any) -> Grade:
    """Return the grade of an answer: right, or a hint."""
    if not callable(answer):
        return Grade(exercise.name, False, "the function is missing.")
    rng = np.random.default_rng(0)
    inputs = [exercise.draw(rng) for _ in range(NUM_INPUTS)]
    given: list[Any] = []
    for one in inputs:
        try:
            with np.errstate(all="ignore"):
                given.append(answer(*copies(one)))
        except NotImplementedError:
            return Grade(exercise.name, False, "not written yet.")
        except Exception as error:
            called = f"{exercise.name}({shown(one)})"
            return Grade(exercise.name, False, f"{called} fails: {type(error).__name__}: {error}")
    if answers_like(exercise.right, inputs, given):
        return Grade(exercise.name, True, "right.")
    for mistake in exercise.mistakes:
        if answers_like(mistake.answer, inputs, given):
            return Grade(exercise.name, False, mistake.hint)
    wrong = next(i for i, one in enumerate(inputs) if not same(exercise.right(*one), given[i]))
    called = f"{exercise.name}({shown(inputs[wrong])})"
    return Grade(exercise.name, False, f"{called} is not {shown((given[wrong],))}.")


def copies(values: tuple) -> tuple:
    """Return arguments that an answer may change."""
    return tuple(one.copy() if isinstance(one, np.ndarray | list) else one for one in values)


def answers_like(function: Any, inputs: list[tuple], given: list[Any]) -> bool:
    """Return whether a function returns what was given, on all inputs."""
    with np.errstate(all="ignore"):
        return all(same(function(*one), two) for one, two in zip(inputs, given, strict=True))


def same(expected: Any, given: Any) -> bool:
    """Return whether two values are equal up to rounding, in shape too."""
    try:
        one, two = np.asarray(expected, float), np.asarray(given, float)
    except (TypeError, ValueError):
        return False
    return one.shape == two.shape and bool(np.allclose(one, two, 1e-6, 1e-9, equal_nan=True))


def shown(values: tuple) -> str:
    """Return arguments as they are written in a call, shortened."""
    texts = [
        np.array2string(one, precision=3, separator=", ") if isinstance(one, np.ndarray) else
        f"{one:.4g}" if isinstance(one, float) else repr(one)
        for one in values
    ]  # fmt: skip
    text = ", ".join(texts)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]} ..."

"""The checker: right answers pass, known mistakes get their hints, and nothing gives the answer."""

import inspect
import re
from pathlib import Path

import pytest

from specjax.course import grade as grading
from specjax.course.__main__ import main
from specjax.course.exercises import LESSONS
from specjax.course.grade import check, grade, grade_file, start

EXERCISES = [one for lesson in LESSONS.values() for one in lesson]
MISTAKES = [(one, wrong) for one in EXERCISES for wrong in one.mistakes]
SOLVED = {
    3: """
import numpy as np
def residual(p, q):
    left = np.maximum(p - q, 0)
    return left / left.sum()
def acceptance(p, q):
    return sum(min(a, b) for a, b in zip(p, q))
""",
    4: """
def tokens_per_round(alpha, K):
    return sum(alpha**i for i in range(K + 1))
def speedup(alpha, K, c):
    return tokens_per_round(alpha, K) / (1 + K * c)
def break_even_cost(alpha, K):
    return sum(alpha**i for i in range(1, K + 1)) / K
""",
}


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.name)
def test_the_right_answer_is_right(exercise):
    assert grade(exercise, exercise.right) == (exercise.name, True, "right.")


@pytest.mark.parametrize(("exercise", "mistake"), MISTAKES)
def test_a_known_mistake_gets_its_hint(exercise, mistake):
    assert grade(exercise, mistake.answer) == (exercise.name, False, mistake.hint)


def test_another_mistake_is_shown_where_it_happens_without_the_right_value():
    for exercise in EXERCISES:
        found = grade(exercise, lambda *given: 12345)
        assert not found.right
        assert found.says.endswith("is not 12345.")
        assert found.says.startswith(f"{exercise.name}(")


def test_what_cannot_be_graded_is_said():
    exercise = LESSONS[4][0]
    assert grade(exercise, None).says == "the function is missing."
    assert "fails: TypeError" in grade(exercise, lambda: 1).says
    assert not grade(exercise, lambda alpha, K: "text").right
    assert not grade(exercise, lambda alpha, K: [1.0, 2.0]).right


@pytest.mark.parametrize("number", LESSONS)
def test_a_new_file_is_python_with_everything_to_write(number, tmp_path):
    path = start(number, tmp_path)
    grades = list(grade_file(number, path))
    assert [one.name for one in grades] == [one.name for one in LESSONS[number]]
    assert {one.says for one in grades} == {"not written yet."}
    compiled = path.read_text()
    for exercise in LESSONS[number]:
        assert exercise.signature in compiled
        expected = list(inspect.signature(exercise.right).parameters)
        assert re.findall(r"\w+", exercise.signature)[1:] == expected
    with pytest.raises(ValueError, match="your answers may be in it"):
        start(number, tmp_path)


@pytest.mark.parametrize("number", SOLVED)
def test_an_answered_file_is_graded_in_a_process_of_its_own(number, tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(SOLVED[number])
    assert main(["check", str(number), str(path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line[:5] for line in said] == ["right"] * len(LESSONS[number])
    path.write_text(SOLVED[number].replace("(p - q, 0)", "(q - p, 0)").replace("K * c", "c"))
    assert main(["check", str(number), str(path)]) == 1
    wrong = [line for line in capsys.readouterr().err.splitlines() if line.startswith("wrong")]
    assert len(wrong) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:", "does not run: SyntaxError"),
        ("import nothing_of_this_name", "does not run: ModuleNotFoundError"),
        ("1 / 0", "does not run: ZeroDivisionError"),
    ],
)
def test_a_file_that_does_not_run_is_one_sentence(text, words, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=words) as raised:
        check(4, path)
    assert len(str(raised.value).splitlines()) == 1


def test_an_endless_loop_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(grading, "SECONDS", 3.0)
    path = tmp_path / "mine.py"
    path.write_text("while True: pass")
    with pytest.raises(ValueError, match="is a loop endless"):
        check(4, path)


def test_lessons_and_files_that_are_not_there(tmp_path, capsys):
    assert main(["start", "1", "--folder", str(tmp_path)]) == 1
    assert "no exercises to 01: take one of 02, 03" in capsys.readouterr().err
    assert main(["check", "4", str(tmp_path / "none.py")]) == 1
    assert "python -m specjax.course start 04 makes it" in capsys.readouterr().err


def test_the_page_names_every_lesson():
    page = (Path(__file__).parents[2] / "docs" / "start" / "course.md").read_text(encoding="utf-8")
    for number, lesson in LESSONS.items():
        assert f"| {number:02} |" in page
        for exercise in lesson:
            assert f"`{exercise.name}`" in page

"""Every dataset's format, graded as its answers ask for."""

import gzip
import json
from pathlib import Path

import pytest

from specjax.ab.questions import Question, grade, read_dataset

SHARED = Path(__file__).parents[3] / "shared" / "data"
ROWS = {
    "turns": {"question_id": 81, "category": "writing", "turns": ["one", "two"]},
    "humaneval": {"task_id": "HumanEval/0", "prompt": "def f():", "canonical_solution": "pass"},
    "gsm8k": {"question": "How many?", "answer": "4 + 8 = 12\n#### 1,200"},
    "arc": {
        "id": "M1",
        "question": {
            "stem": "Why?",
            "choices": [{"text": "so", "label": "A"}, {"text": "no", "label": "B"}],
        },
        "answerKey": "B",
    },
    "arc of Hugging Face": {
        "id": "M1",
        "question": "Why?",
        "choices": {"text": ["so", "no"], "label": ["A", "B"]},
        "answerKey": "B",
    },
    "boolq": {"question": "is it", "passage": "It is.", "answer": True},
    "superglue boolq": {"question": "is it", "passage": "It is.", "idx": 0, "label": 0},
    "agieval": {
        "passage": None,
        "question": "Which?",
        "options": ["(A) this", "(B) that"],
        "label": "A",
    },
    "sharegpt": {"id": "x", "conversations": [{"from": "system", "value": "s"},
                                              {"from": "human", "value": "hello"}]},
}  # fmt: skip
ASKED = {
    "turns": ("one", "two"),
    "humaneval": ("def f():",),
    "gsm8k": ("How many?",),
    "sharegpt": ("hello",),
}
RIGHT = {
    "gsm8k": ("so it is 1200.", "1,200.00 in all"),
    "arc": ("The answer is B.", "(B)", "Not A but B"),
    "boolq": ("Yes, it is", "true"),
    "superglue boolq": ("No.",),
    "agieval": ("The answer is (A), not B",),
}
WRONG = {
    "gsm8k": ("1200 of 7", "", "twelve"),
    "arc": ("The answer is A, as B is wrong", "so"),
    "boolq": ("no", "", "yesterday"),
    "agieval": ("B", "none"),
}


def write(folder: Path, name: str, rows) -> str:
    path = folder / name
    text = "\n".join(json.dumps(row) for row in rows) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    return str(path)


@pytest.mark.parametrize("kind", ROWS)
def test_a_row_of_every_dataset_is_read_and_graded(tmp_path, kind):
    name = "some.jsonl.gz" if kind == "humaneval" else "some.jsonl"
    found = read_dataset(write(tmp_path, name, [ROWS[kind]]))
    assert found.name == "some"
    (question,) = found.questions
    if kind in ASKED:
        assert question.turns == ASKED[kind]
    else:
        assert all(word in question.turns[0] for word in ("?", "nswer"))
    for text in RIGHT.get(kind, ()):
        assert grade(question, text) is True, text
    for text in WRONG.get(kind, ()):
        assert grade(question, text) is False, text
    if kind not in RIGHT and kind not in WRONG and not kind.startswith("arc"):
        assert grade(question, "anything") is None


def test_plain_lines_json_lists_and_the_shipped_prompts(tmp_path):
    (tmp_path / "lines.txt").write_text("one\n\ntwo\n")
    assert [q.turns for q in read_dataset(str(tmp_path / "lines.txt")).questions] == [
        ("one",),
        ("two",),
    ]
    (tmp_path / "sharegpt.json").write_text(json.dumps([ROWS["sharegpt"]] * 2))
    ids = [q.id for q in read_dataset(str(tmp_path / "sharegpt.json")).questions]
    assert len(set(ids)) == 2  # ids of a file may repeat; pairs need unlike ones
    assert len(read_dataset("bundled").questions) == 24


def test_the_hash_is_of_the_prompts(tmp_path):
    one = read_dataset(write(tmp_path, "a.jsonl", [ROWS["turns"]]))
    two = read_dataset(write(tmp_path, "b.jsonl", [ROWS["turns"] | {"category": "other"}]))
    three = read_dataset(write(tmp_path, "c.jsonl", [ROWS["turns"] | {"turns": ["one"]}]))
    assert one.sha256 == two.sha256 != three.sha256


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"turns": []}', r"bad.jsonl entry 1 is of no dataset.*turns must be a list of texts"),
        ('{"turns": ["a"]}\n{"what": 1}', r"entry 2 is of no dataset .*'prompt'.*known: turns"),
        ("{", r"bad.jsonl line 1 is not valid JSON"),
        ("\n", "has no prompts"),
    ],
)
def test_what_is_no_dataset_is_refused_by_its_line(tmp_path, text, said):
    (tmp_path / "bad.jsonl").write_text(text)
    with pytest.raises(ValueError, match=said):
        read_dataset(str(tmp_path / "bad.jsonl"))


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data; twins above run always")
@pytest.mark.parametrize(
    ("name", "num", "turns", "kind"),
    [
        ("spec_bench.jsonl", 480, 1, "turns"),
        ("mt_bench.jsonl", 80, 2, "turns"),
        ("HumanEval.jsonl.gz", 164, 1, "turns"),
        ("gsm8k_test_300.jsonl", 300, 1, "number"),
    ],
)
def test_real_datasets_are_read(name, num, turns, kind):
    found = read_dataset(str(SHARED / name))
    assert len(found.questions) == num
    assert len({one.id for one in found.questions}) == num
    assert {one.kind for one in found.questions} == {kind}
    assert max(len(one.turns) for one in found.questions) >= turns
    if kind == "number":
        assert all(grade(one, f"It is {one.answer}.") for one in found.questions)


def test_an_answer_is_read_as_its_kind():
    assert grade(Question("1", ("?",), "3.50", "number"), "$3.5") is True

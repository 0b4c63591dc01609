"""The demo prints a readable table, writes its section of a README and saves its picture."""

import io

import pytest
from rich.console import Console

from specjax.bench.demo import ARMS, Result, pick
from specjax.bench.plan import LEARNED
from specjax.cli.demo import last_lines, run_demo, table_of
from specjax.viz.methods import Method

SOME = [arm for arm in ARMS if arm.name not in LEARNED]  # as test_bundled compares the heads


def test_the_end_of_a_prompt_leads_to_its_completion():
    assert last_lines("a\nb\n    c") == "b\n    c"


def test_the_demo_measures_the_bundled_pair_and_writes_its_section(tmp_path):
    said, readme = io.StringIO(), tmp_path / "README.md"
    readme.write_text("# Title\n\n<!-- demo: begin -->\nold\n<!-- demo: end -->\n\nrest\n")
    out = tmp_path / "demo.png"
    console = Console(file=said, width=200)
    assert run_demo(out, arms=SOME, num_tokens=12, reps=1, readme=readme, console=console)
    assert out.stat().st_size > 10_000
    text = readme.read_text()
    assert "old" not in text
    assert "](demo.png)" in text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    same = {row[0].strip("| "): row[-1].strip("| ") for row in rows[2:]}
    assert same == {arm.name: "-" if arm.name == arm.plain else "yes" for arm in SOME}
    lines = said.getvalue().splitlines()
    assert lines[0] == "ngram, live:"  # before anything is measured
    measured = [line for line in lines if line.startswith("run 1 of 1: ")]
    assert len(measured) == len(SOME)


def test_the_table_of_every_method_keeps_its_words_whole_in_80_columns():
    said = io.StringIO()
    names = [arm.name for arm in ARMS]
    methods = [Method(name, 1234.0, 1.0, 5.5, 1.0, (1.17, 1.49)) for name in names]
    Console(file=said, width=80).print(table_of([Result([], [one, one], True) for one in methods]))
    shown = said.getvalue().split()
    for word in ("1,234", "1.17-1.49", "acceptance", "prompts:", "same", *" ".join(names).split()):
        assert word in shown, said.getvalue()


def test_methods_are_chosen_by_name_with_what_they_are_compared_with():
    assert [arm.name for arm in pick(["suffix"])] == ["plain", "suffix"]
    assert [arm.name for arm in pick(["coupled"])] == ["plain, T=0.8", "coupled, T=0.8"]
    assert pick([]) == ARMS
    with pytest.raises(ValueError, match="unknown method 'eagel': choose from ngram, suffix"):
        pick(["eagel"])

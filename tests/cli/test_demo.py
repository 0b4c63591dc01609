"""The demo's numbers agree with each other."""

import io

import pytest
from rich.console import Console

from specjax.bench.plan import LEARNED
from specjax.bundled import HEADS
from specjax.cli.demo import ARMS, Arm, Run, last_lines, run_demo, summarize
from specjax.metrics import SpecDecodeCounters

PLAIN = Run((tuple(range(100)),), 99, SpecDecodeCounters.zeros(4))
SOME = [arm for arm in ARMS if arm.name not in LEARNED]  # as test_bundled compares the heads
TIMES = [1.0, 2.0, 1.0]  # the machine was busy in the second turn


def test_tokens_per_second_and_speedup_are_one_estimate():
    run = PLAIN._replace(num_rounds=33)
    plain = summarize(Arm("plain", 0.0, None, "plain"), PLAIN, TIMES, PLAIN, TIMES)
    assert (plain.speedup, plain.tokens_per_second, plain.spread) == (1.0, 100.0, None)
    mine = summarize(Arm("ngram", 0.0, {}, "plain"), run, [0.5, 1.25, 0.8], PLAIN, TIMES)
    assert mine.speedup == pytest.approx(1.6)
    assert mine.spread == pytest.approx((1.25, 2.0))
    assert mine.tokens_per_second == pytest.approx(plain.tokens_per_second * mine.speedup)
    assert mine.tokens_per_round == 3.0


def test_every_method_that_ships_has_an_arm():
    assert {arm.name for arm in ARMS} >= {"plain", "ngram", "suffix", "draft model", *HEADS}


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
    assert "speedup" in said.getvalue()

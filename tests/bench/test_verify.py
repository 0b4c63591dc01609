"""``bench verify`` at a tiny shape: its rows and their goals."""

import io
import json

import pytest
from rich.console import Console

from specjax.audit.rules import RULES
from specjax.bench.verify import SHAPES, bench_verify

SHAPE = (2, 2, 64)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    file = tmp_path_factory.mktemp("bench") / "verify.json"
    console = Console(file=io.StringIO(), width=200)
    assert bench_verify(file, shapes=(SHAPE,), reps=1, console=console)
    return {row["name"]: row for row in json.loads(file.read_text())}


def test_every_rule_is_compared_with_one_sample_per_node(stored):
    for rule in RULES:
        row = stored[f"{rule} {SHAPE}"]
        assert row["against"] == f"argmax(logits + noise) {SHAPE}"
        assert row["goal"] == "<= 1.5"
        assert row["ratio"] == pytest.approx(row["value"] / row["peer"])


def test_top_p_is_compared_with_softmax_and_argmax(stored):
    for rule in ("walk", "rejection"):
        row = stored[f"{rule}, top-p {SHAPE}"]
        assert row["against"] == f"argmax(softmax(logits)) {SHAPE}"
        assert row["goal"] == "<= 5"


def test_the_shapes_are_those_of_real_vocabularies():
    assert SHAPES == ((1, 4, 32000), (8, 4, 151936))

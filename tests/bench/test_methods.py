"""Every method has its row, and a prediction uses one half of the prompts and measured costs."""

import json
import shutil
from dataclasses import asdict
from typing import Any

import jax.numpy as jnp
import pytest

from specjax.bench import methods
from specjax.bench.costs import Costs, accepting, always
from specjax.bench.methods import (
    METHODS,
    PLAIN,
    Half,
    Turn,
    bench_methods,
    predict,
)
from specjax.bundled import HEADS, resolve
from specjax.core.types import Draft, Sampling, Text
from specjax.drafters.ngram import ngram
from specjax.engine.plan import slots_of
from specjax.train.features import SourceConfig
from specjax.train.head_options import HeadTrainConfig
from specjax.verify.walk import walk


def test_a_prediction_is_prompt_rounds_and_what_the_host_adds():
    """Two prompts of 41 tokens: 0.1 s to read, 40 steps of 8 ms, and 0.08 s of the host."""
    text = [[0] * 41] * 2
    alone = Half(text, 1.0, 0.2, 0.64, [40, 40], [], [], 2)
    plain = Turn((alone, alone), {1: Costs(*[0.008] * 5)}, 0)
    costs = Costs(0.008, 0.009, 0.010, 0.010, 0.010)
    together = Half(text, 0.7, 0.22, 0.4, [20, 20], [3] * 20, [1] * 20, 2)
    drafted = Turn((together, together), {1: costs}, 3)
    assert predict(plain, plain, 40) == pytest.approx(1.0)
    assert predict(plain, drafted, 40) == pytest.approx(0.5 / (0.11 + 0.08 + 20 * 0.010))
    slower = drafted._replace(costs={1: Costs(*(2 * x for x in costs))})  # of a slower moment
    assert predict(plain, slower, 40) == pytest.approx(predict(plain, drafted, 40))
    assert together.decoding == pytest.approx(0.48)
    assert together.tokens_per_round == pytest.approx(2.0)
    assert drafted.whole == Half(text * 2, 1.4, 0.44, 0.8, [20] * 4, [3] * 40, [1] * 40, 4)


def test_a_round_costs_what_it_does_with_as_many_tokens_as_were_drafted_and_accepted():
    """Of three rounds one drafts 3 of 3 tokens and takes 10 ms; without a draft it is 7 ms.

    Accepting all 3 takes 3 ms more, and 1 ms more as one of three rounds accepts them.
    """
    text = [[0] * 41]
    alone = Half(text, 0.4, 0.0, 0.4, [40], [], [], 1)
    plain = Turn((alone, alone), {1: Costs(*[0.010] * 5)}, 0)
    found = Half(text, 9.9, 0.0, 9.9, [30], [3, 0, 0] * 10, [0] * 30, 1)
    drafted = Turn((found, found), {1: Costs(0.010, 0.010, 0.010, 0.007, 0.013)}, 3)
    assert predict(plain, drafted, 40) == pytest.approx(0.4 / (30 * 0.008))
    found = found._replace(accepted=[3, 0, 0] * 10)
    read = drafted._replace(halves=(found, found))
    assert predict(plain, read, 40) == pytest.approx(0.4 / (30 * 0.009), rel=0.01)


def test_the_largest_of_several_acceptances_is_counted():
    half = Half([[0] * 41], 1.0, 0.0, 1.0, [30], [4, 2], [4, 0], 1)
    alone, four = (half.shares(4, most) for most in (1, 4))
    assert alone == pytest.approx((0.75, 0.5), abs=0.02)
    assert four == pytest.approx((0.75, 1 - 0.5**4), abs=0.02)


@pytest.mark.parametrize(
    ("parents", "valid", "path"),
    [
        ([0, 0, 1, 2], 4, [0, 1, 2, 3]),
        ([0, 0, 1, 2], 2, [0, 1]),
        ([0, 0, 0, 1, 2, 3], 6, [0, 1, 3, 5]),
    ],
)
def test_costs_count_a_draft_accepted_whatever_the_target_says(parents, valid, path):
    nodes = jnp.arange(len(parents))
    draft = Draft(nodes[None] + 5, jnp.array([parents]), nodes[None] < valid, None)
    length = jnp.full(1, 3)
    text = Text(jnp.zeros((1, 24), int), length, length, length, jnp.zeros(1, jnp.int32))
    sampling = Sampling(jnp.zeros(1), length, jnp.full((1, 1), 99))
    logits = jnp.zeros((1, len(parents), 99)).at[:, :, 1].set(1.0)
    inputs = jnp.zeros_like(logits), draft, logits, text, sampling, 3
    verdict = accepting(walk, True).verify(*inputs)
    (number,) = verdict.num_accepted.tolist()
    assert verdict.path[0, : number + 1].tolist() == path
    assert verdict.tokens[0, : number + 1].tolist() == [*(5 + i for i in path[1:]), 1]
    assert accepting(walk, False).verify(*inputs).num_accepted.tolist() == [0]


def test_costs_count_a_full_draft_where_nothing_matches():
    length = jnp.full(1, 20)
    text = Text(jnp.arange(24)[None], length, length, length, jnp.zeros(1, jnp.int32))
    inputs: Any = ((), (), text, None, None, 24)
    lookup = ngram(3, 4, 1)
    for drafter, found in ((lookup, False), (always(lookup), True)):
        draft, _ = drafter.propose(*inputs)
        assert draft.valid.tolist() == [[True] + [found] * 3]


def test_each_half_is_predicted_from_the_other():
    """Three prompts of 40 steps like two of 20 rounds, and two like three of 10; 10 ms each."""
    three, two = ([[0] * 41] * number for number in (3, 2))
    costs = {1: Costs(*[0.010] * 5)}
    plain = Turn(
        (
            Half(three, 1.2, 0.0, 1.2, [40] * 3, [], [], 3),
            Half(two, 0.8, 0.0, 0.8, [40] * 2, [], [], 2),
        ),
        costs,
        0,
    )
    drafted = Turn(
        (
            Half(three, 9.9, 0.0, 9.9, [10] * 3, [], [], 3),
            Half(two, 9.9, 0.0, 9.9, [20] * 2, [], [], 2),
        ),
        costs,
        3,
    )
    assert predict(plain, drafted, 40) == pytest.approx(2.0 / (3 * 0.2 + 2 * 0.1))


def test_a_batch_ends_with_its_slowest_request():
    """Two of four, of 20 or 40 rounds: 20 together and 20 alone in 4 of 6 batches, else equal."""
    text = [[0] * 41] * 2
    one = Costs(*[0.006] * 5)
    alone = Half(text, 0.5, 0.1, 0.4, [40, 40], [], [], 2)
    plain = Turn((alone, alone), {1: one, 2: Costs(*[0.010] * 5)}, 0)
    half = Half(text, 0.4, 0.1, 0.3, [20, 40, 20, 40], [], [], 4)
    drafted = plain._replace(halves=(half, half))
    seconds = 0.1 + (5 * 20 + 40) / 6 * 0.010 + 4 * 20 / 6 * 0.006
    assert predict(plain, drafted, 40) == pytest.approx(0.5 / seconds, rel=0.02)
    filled = half._replace(num_prompts=2)  # the other two fill the batch again: none has twice 20
    drafted = plain._replace(halves=(filled, filled))
    assert predict(plain, drafted, 40) == pytest.approx(0.5 / (0.1 + 20 * 0.010 + 20 * 0.006))
    whole = plain._replace(costs={2: plain.costs[2]})  # plain requests end together
    assert predict(whole, whole, 40) == pytest.approx(1.0)
    assert [slots_of(batch) for batch in (1, 6, 8)] == [(1,), (1, 2, 4, 6), (1, 2, 4, 8)]


@pytest.fixture
def few_prompts(monkeypatch):
    monkeypatch.setattr(methods, "MOST_PROMPTS", 3)


@pytest.mark.usefixtures("few_prompts")
def test_a_run_writes_rows_and_its_section(tmp_path):
    file, readme = tmp_path / "methods.json", tmp_path / "README.md"
    readme.write_text("<!-- methods: begin -->\nold\n<!-- methods: end -->\n")
    bench_methods(file, names=["ngram"], num_tokens=12, reps=1, readme=readme)
    rows = json.loads(file.read_text())
    assert [row["prompts"] for row in rows] == ["shipped"] * 2 + ["random"] * 2
    plain, ngram = rows[:2]
    assert (plain["method"], ngram["method"], ngram["k"]) == (PLAIN, "ngram", 3)
    assert (plain["speedup"], plain["tpot_speedup"], plain["tokens_per_round"]) == (1.0, 1.0, 1.0)
    assert ngram["tpot_speedup"] > 0
    assert 1.0 < ngram["tokens_per_round"] < 4.0
    assert len(ngram["acceptance_per_pos"]) == 3
    assert ngram["distinct_bigrams"] >= 0.5
    text = readme.read_text()
    assert "old" not in text
    assert "random prompts: of 96 completions" in text
    assert f"| {ngram['tokens_per_round']:.2f} |" in text


@pytest.mark.usefixtures("few_prompts")
def test_heads_that_were_trained_alike_have_a_section_of_their_own(tmp_path):
    config = HeadTrainConfig(kind="eagle", out="", source=SourceConfig(), steps=400)
    shutil.copytree(resolve("bundled:eagle"), tmp_path / "eagle" / "model")
    run = {"config": asdict(config), "steps": 400, "data": "0123456789abcdef"}
    (tmp_path / "eagle" / "run.json").write_text(json.dumps(run))
    rows = [{"step": step, "acceptance": [step / 400, step / 800]} for step in (100, 200)]
    (tmp_path / "eagle" / "loss.jsonl").write_text("\n".join(map(json.dumps, rows)))
    page, image = tmp_path / "page.md", tmp_path / "heads.png"
    page.write_text("<!-- methods-alike: begin -->\nold\n<!-- methods-alike: end -->\n")
    options = {"names": ["eagle"], "num_tokens": 12, "reps": 1, "heads": tmp_path}
    bench_methods(None, readme=page, image=image, **options)
    text = page.read_text()
    assert "old" not in text
    assert "| shipped | eagle | 3 | 1 |" in text
    assert "400 steps of 8 x 256 tokens of Python's standard library" in text
    assert "loss 1 kl over 4 drafted tokens" in text
    assert "data 0123456789ab, target bundled." in text
    assert "(heads.png)" in text
    assert image.stat().st_size > 0


def test_learning_curves_need_heads(tmp_path):
    with pytest.raises(ValueError, match="learning curves of heads: name their folder"):
        bench_methods(None, image=tmp_path / "heads.png")


@pytest.mark.usefixtures("few_prompts")
def test_bfloat16_has_a_section_and_float32_as_a_peer(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- methods-bfloat16: begin -->\nold\n<!-- methods-bfloat16: end -->\n")
    rows = bench_methods(
        None, names=["suffix"], dtype="bfloat16", num_speculative_tokens=5, num_tokens=12,
        reps=1, readme=page,
    )  # fmt: skip
    names = [(row["method"], row["k"]) for row in rows if row["prompts"] == "shipped"]
    assert names == [("plain", 0), ("suffix", 5), ("plain float32", 0)]
    assert [row["predicted_speedup"] is None for row in rows[:3]] == [True, False, True]
    assert "12 new tokens each, bfloat16" in page.read_text()


def test_all_that_ships_is_measured_and_nothing_else(tmp_path):
    assert set(HEADS) < set(METHODS)
    with pytest.raises(ValueError, match="unknown method 'hydra'"):
        bench_methods(tmp_path / "m.json", names=["hydra"])

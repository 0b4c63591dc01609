"""The explorer's page computes what ``specjax.theory`` computes, offline, in both languages."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from py_mini_racer import MiniRacer
from typer.testing import CliRunner

from specjax import theory
from specjax.ab.measures import tpot
from specjax.ab.records import read_log
from specjax.cli.app import app
from specjax.theory.intervals import Interval
from specjax.theory.modelled import ModelledServer
from specjax.traces import to_events, write_trace
from specjax.viz.explorer import PAGE, Run, explorer_page
from tests.traces.synthetic import draw

AB_LOG = Path(__file__).parents[2] / "docs" / "ab.jsonl"
HTML = PAGE.read_text(encoding="utf-8")
ALPHAS = [0.0, 0.05, 0.3, 0.5, 0.8, 0.97, 1.0]


def block(name: str, html: str = HTML) -> str:
    """Return the text of one of the page's scripts."""
    return re.search(rf'<script[^>]*id="{name}"[^>]*>(.*?)</script>', html, re.DOTALL)[1]


@pytest.fixture(scope="module")
def page():
    """Return a function that evaluates an expression of the page's formulas in V8."""
    engine = MiniRacer()
    engine.eval(block("formulas"))

    def evaluate(expression: str):
        return json.loads(engine.eval(f"JSON.stringify({expression})"))

    return evaluate


@pytest.mark.parametrize("K", [0, 1, 4, 16])
def test_tokens_and_lengths_of_a_round(page, K):
    got = page(f"{ALPHAS}.map(a => tokensPerStep(a, {K}))")
    np.testing.assert_allclose(got, theory.tokens_per_step(ALPHAS, K), rtol=1e-12)
    got = page(f"{ALPHAS}.map(a => stepLengthPmf(a, {K}))")
    np.testing.assert_allclose(got, theory.step_length_pmf(ALPHAS, K), atol=1e-12)


@pytest.mark.parametrize("c", [0.0, 0.03, 0.1, 0.6])
@pytest.mark.parametrize("v", [0.9, 1.0, 1.3])
def test_speedup_best_k_and_break_even(page, c, v):
    ks = np.arange(17)
    got = page(f"{ks.tolist()}.map(K => {ALPHAS}.map(a => speedup(a, K, {c}, {v})))")
    np.testing.assert_allclose(got, theory.speedup(ALPHAS, ks[:, None], c, v), rtol=1e-12)
    got = page(f"{ALPHAS}.map(a => optimalK(a, {c}, () => {v}, 16))")
    assert got == theory.optimal_k(ALPHAS, c, v, 16).tolist()
    ks = ks[1:]  # without a draft nothing breaks even
    got = page(f"{ks.tolist()}.map(K => breakevenAlpha(K, {c}, {v}))")
    np.testing.assert_allclose(
        np.array(got, float), theory.breakeven_alpha(ks, c, v), atol=1e-6, equal_nan=True
    )


def test_the_sizes_and_peak_numbers_are_those_of_theory():
    data = json.loads(block("data"))
    assert data["hardware"].keys() == theory.HARDWARE.keys()
    for key, one in data["hardware"].items():
        expected = theory.HARDWARE[key]._asdict()
        assert one == {name: expected[name] for name in one}
        assert set(one) == {"name", "bandwidth", "flops", "memory"}
    for role, model in (("target", theory.QWEN3_32B), ("draft", theory.QWEN3_0_6B)):
        expected = model._asdict()
        assert data[role] == {name: expected[name] for name in data[role]}
        assert not model.expert_params
        assert set(data[role]) == {
            "name", "num_params", "bytes_per_param", "kv_bytes", "context_flops"
        }  # fmt: skip


@pytest.mark.parametrize("hardware", ["H200", "TPU-v5e", "910B"])
def test_rooflines_and_speedup_by_batch(page, hardware):
    data = json.loads(block("data"))
    batches, K, context = [1, 8, 64, 700], 3, 8192
    hw = theory.HARDWARE[hardware]
    models = f"{json.dumps(data['target'])}, {json.dumps(data['hardware'][hardware])}"
    for m in (1, 5):
        got = page(f"{batches}.map(B => decodeTime(B, {m}, {context}, {models}))")
        expected = theory.decode_time_roofline(batches, m, context, theory.QWEN3_32B, hw)
        np.testing.assert_allclose(got, expected, rtol=1e-12)
    for small, draft in ((None, None), (data["draft"], theory.QWEN3_0_6B)):
        call = f"speedupVsBatch(B, a, {K}, {context}, {models}, {json.dumps(small)})"
        got = page(f"{batches}.map(B => {ALPHAS}.map(a => {call}))")
        expected = theory.speedup_vs_batch(
            np.array(batches)[:, None], ALPHAS, K, context, theory.QWEN3_32B, hw, draft
        )
        np.testing.assert_allclose(got, expected, rtol=1e-12)
    own = ModelledServer(hw, theory.QWEN3_32B, num_devices=4).slowed(1.0, 1.0)
    got = page(f"together({json.dumps(data['hardware'][hardware])}, 4)")
    assert (got["bandwidth"], got["flops"], got["memory"]) == (own.bandwidth, own.flops, own.memory)


def test_memory_is_that_of_weights_and_caches(page):
    data = json.loads(block("data"))
    models = json.dumps([data["target"], data["draft"]])
    room = 65.6e9 + 1.2e9 + 10 * 4096 * (theory.QWEN3_32B.kv_bytes + theory.QWEN3_0_6B.kv_bytes)
    assert page(f"bytesNeeded(10, 4096, {models})") == room
    impact = theory.draft_memory_impact(room, 65.6e9, 262144, 1.2e9, 114688)
    assert impact.spec_tokens == pytest.approx(10 * 4096)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_rounds_pair_agrees_on_exactly_alpha(page, alpha):
    for turn in range(5):
        pair = page(f"pairOf({alpha}, {turn})")
        p, q = pair["p"], pair["q"]
        assert theory.acceptance_prob(p, q) == pytest.approx(alpha, abs=1e-12)
        assert page(f"acceptanceProb({p}, {q})") == pytest.approx(alpha, abs=1e-12)
        np.testing.assert_allclose(page(f"residual({p}, {q})"), theory.residual(p, q), atol=1e-12)


def test_the_rounds_first_token_has_the_targets_distribution(page):
    """Over all draws of the draft and a grid of the two other uniform numbers."""
    cells = 200
    pair = page("pairOf(0.6, 1)")
    found = page(
        f"""(() => {{
          const {{p, q}} = {json.dumps(pair)}, n = {cells}, mass = [0, 0, 0, 0, 0];
          let below = 0;
          q.forEach(chance => {{
            if (chance) for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) {{
              const noise = {{draft: [below + chance / 2], accept: [(i + 0.5) / n],
                             recover: (j + 0.5) / n}};
              mass[rejectionRound([p, p], [q], noise).tokens[0]] += chance / n / n;
            }}
            below += chance;
          }});
          return mass;
        }})()"""
    )
    np.testing.assert_allclose(found, pair["p"], atol=2 / cells)
    assert not np.allclose(found, pair["q"], atol=0.05)


@pytest.mark.parametrize("alpha", [0.5, 0.6, 0.8, 0.95])
def test_the_tree_is_the_best_one(page, alpha):
    chances = page(f"rankChances({alpha}, 8)")
    for n in (1, 2, 5, 12, 32):
        grown = page(f"treeOptimal({chances}, {n})")
        assert grown["tokens"] == pytest.approx(theory.tree_optimal(chances, n).tokens, abs=1e-12)
        ranks = [grown["parents"][1:i].count(p) for i, p in enumerate(grown["parents"])]
        node_prob = [chances[rank] for rank in ranks]
        assert theory.tree_tokens(grown["parents"], node_prob) == pytest.approx(grown["tokens"])
        chain = page(f"treeOptimal({chances[:1]}, {n})")
        assert chain["tokens"] == pytest.approx(theory.tokens_per_step(alpha, n - 1))
        assert chain["depth"] == n - 1


def test_it_says_the_same_in_both_languages_and_loads_nothing():
    texts = json.loads(block("texts"))
    assert texts["en"].keys() == texts["zh"].keys()
    for key, said in texts["en"].items():
        assert set(re.findall(r"\{\d\}", said)) == set(re.findall(r"\{\d\}", texts["zh"][key])), key
    code = HTML.replace(block("texts"), "")
    used = set(re.findall(r'data-text="(\w+)"', code)) | set(re.findall(r'text\("(\w+)"', code))
    assert used <= texts["en"].keys()
    for loading in (r"\ssrc=", r"<link", r"@import", r"url\(https?", r"\bfetch\(", "XMLHttp"):
        assert not re.search(loading, HTML), loading


def test_a_runs_name_cannot_end_its_script():
    run = Run("</script><b>", 0.5, 3, 1.875, Interval(1.5, 1.2, 1.8))
    (read,) = json.loads(block("runs", explorer_page([run])))
    assert read == {**run._asdict(), "gain": [1.5, 1.2, 1.8]}
    assert json.loads(block("runs", explorer_page())) == []


def explore(folder, *args):
    out = folder / "page.html"
    done = CliRunner().invoke(
        app, ["explore", "--no-open", "--out", str(out), *map(str, args)], env={"COLUMNS": "200"}
    )
    return done, json.loads(block("runs", out.read_text())) if out.exists() else None


def test_the_command_hands_over_a_trace(tmp_path):
    log = draw([0.6] * 8, 50)
    write_trace(tmp_path / "spec.jsonl", to_events(log))
    done, (run,) = explore(tmp_path, "--trace", tmp_path / "spec.jsonl")
    assert done.exit_code == 0, done.output
    assert run["k"] == log.depth
    assert run["alpha"] == pytest.approx(0.6, abs=0.1)
    assert run["tokens"] == pytest.approx(theory.tokens_per_step(run["alpha"], log.depth), rel=0.05)
    assert run["gain"] is None


def test_the_command_refuses_a_trace_without_drafts(tmp_path):
    write_trace(tmp_path / "plain.jsonl", to_events(draw([0.0] * 2, 5, depth=0)))
    done, page = explore(tmp_path, "--trace", tmp_path / "plain.jsonl")
    assert done.exit_code == 2
    assert "nothing was drafted" in done.output
    assert page is None


def test_the_command_hands_over_an_ab_log_each_arm_beside_its_own_engine(tmp_path):
    done, runs = explore(tmp_path, "--ab", AB_LOG)
    assert done.exit_code == 0, done.output
    log = read_log(AB_LOG)
    loads = {unit.concurrency for unit in log.units}

    def mean(label, load):
        units = [one for one in log.units if (one.arm, one.concurrency) == (label, load)]
        times = [tpot(one) for unit in units for one in unit.requests]
        return np.mean([one for one in times if one is not None])

    kinds = {one["label"]: one["kind"] for one in log.manifest["arms"]}
    plain = {one["kind"]: one["label"] for one in log.manifest["arms"] if one["config"] is None}
    drafted = {one["label"] for one in log.manifest["arms"] if one["config"] is not None}
    assert {run["name"].split(",")[0] for run in runs} == drafted
    assert len(runs) == len(drafted) * len(loads) > len(drafted)
    for run in runs:
        label, load = run["name"].split(",")[0], int(run["name"].split(", ")[2].split()[0])
        estimate, low, high = run["gain"]
        assert estimate == pytest.approx(
            mean(plain[kinds[label]], load) / mean(label, load), rel=0.01
        )
        assert low < estimate < high
        assert theory.tokens_per_step(run["alpha"], run["k"]) == pytest.approx(run["tokens"])

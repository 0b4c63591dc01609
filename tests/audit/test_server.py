"""The audit of a server, over HTTP: a sound law passes and a broken one does not."""

import json
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from specjax.audit.client import Server
from specjax.audit.server import Plan, collect, judge, judge_prompts
from specjax.cli.app import app
from tests.audit.tiny_server import FAVOURITES, LAWS, Faults, serving

PROMPTS = ("one", "other")
QUICK = ("--prompt", "one", "--prompt", "other", "--tv", "0.2", "--batch", "64", "--cells", "12")


def audit(*arguments):
    """Run the command."""
    return CliRunner().invoke(app, ["audit", "server", *map(str, arguments)])


def run(base: Faults, reference: Faults | None, **options):
    """Audit one tiny server, against another or alone."""
    plan = Plan(prompts=PROMPTS, tv=0.2, cells=12, batch=64, **options)
    with serving(base, seed=1) as (url, _), serving(reference, seed=2) as (other, _):
        return judge(collect(Server(url), Server(other) if reference else None, plan))


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_a_sound_server_passes_against_another(temperature):
    report = run(Faults(), Faults(num_drafts=None), temperature=temperature)
    assert report.passed
    assert report.warnings == ()
    assert all(one.verdict == "equal" for one in report.greedy)
    for found in report.findings:
        assert found.draws == Plan(prompts=PROMPTS, tv=0.2, cells=12).num_draws(2)
        assert found.tv < 3 * found.expected_tv


def test_a_server_that_ignores_temperature_is_flagged():
    report = run(Faults(ignores_temperature=True), Faults(num_drafts=None), temperature=0.3)
    assert not report.passed
    assert all(found.differs for found in report.findings)
    assert all(one.passed for one in report.greedy)


def test_alone_a_server_is_held_to_its_own_logprobs():
    assert run(Faults(), None, temperature=1.0).passed
    wrong = run(Faults(ignores_law=True), None, temperature=1.0)
    assert not wrong.passed
    assert all(found.differs for found in wrong.findings)


def tied(by: float):
    """Make laws whose two likeliest tokens after any are ``by`` nats apart."""
    laws = LAWS.copy()
    for law in laws:
        second = law.argsort()[-2]
        law[second] = law.max() * 2.718281828 ** (-by)
        law /= law.sum()
    return laws


@pytest.mark.parametrize(("by", "words"), [(0.01, "near tie"), (0.5, "bug: the server said")])
def test_the_first_greedy_difference_is_explained(by, words):
    laws = tied(by)
    slips = Faults(laws=laws, greedy_slip=5)
    report = run(slips, Faults(laws=laws, num_drafts=None), greedy_tokens=20)
    assert [one.equal for one in report.greedy] == [5, 5]
    assert all(one.verdict.startswith(words) for one in report.greedy)
    assert report.passed == (words == "near tie")
    alone = run(slips, None, greedy_tokens=20, temperature=1.0)
    assert alone.passed == (words == "near tie")


def test_two_models_are_told_from_a_bug():
    report = run(Faults(), Faults(laws=LAWS[:, ::-1].copy(), num_drafts=None))
    assert not report.passed
    assert any("the models differ" in one.verdict for one in report.greedy)


def test_the_command_prints_writes_and_fails(tmp_path):
    file = tmp_path / "new" / "audit.json"
    wrong, sound = Faults(ignores_temperature=True), Faults(num_drafts=None)
    with serving(wrong, 1) as (url, application), serving(sound, 2) as (reference, _):
        extra = json.dumps({"top_k": 50})
        given = (*QUICK, "--json", file, "--extra", extra, "--temperature", "0.3")
        result = audit("--base-url", f"{url}/v1/", "--reference-url", reference, *given)
        assert result.exit_code == 1, result.output
        assert "NOT EXACT" in result.output
        assert all(body["top_k"] == 50 for body in application.bodies)
        kept = json.loads(file.read_text())
        assert not kept["passed"]
        assert judge(kept["collected"]).findings[0].p == kept["findings"][0]["p"]
        result = audit("--base-url", reference, *QUICK)
        assert result.exit_code == 0, result.output
        assert "no difference found" in result.output
        assert "drafted nothing" in result.output


def test_a_reference_that_speculates_is_named():
    report = run(Faults(hides=("metrics",)), Faults())
    assert len(report.warnings) == 2
    assert "does not say whether it drafts" in report.warnings[0]
    assert "speculates too" in report.warnings[1]


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        (Faults(hides=("token_ids",)), "does not tell token ids"),
        (Faults(hides=("prompt_token_ids",)), "does not tell the prompt's token ids"),
        (Faults(hides=("logprobs",)), "does not score prompts"),
        (Faults(refuses_n=True), "pass --batch 1"),
    ],
)
def test_what_a_server_cannot_do_is_said(faults, words):
    with serving(faults) as (url, _):
        result = audit("--base-url", url, *QUICK)
    assert result.exit_code == 2
    assert words in result.output
    assert url in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--base-url", "http://127.0.0.1:9"), "cannot reach http://127.0.0.1:9"),
        (("--base-url", "localhost:8000"), "starts with http"),
        (("--base-url", "http://127.0.0.1:9", "--extra", "top_k"), "--extra is not valid JSON"),
        (("--base-url", "http://127.0.0.1:9", "--extra", "[1]"), "must be a JSON object"),
        (("--base-url", "http://127.0.0.1:9", "--tv", "2"), "tv must lie between 0 and 1, got 2"),
        (("--base-url", "http://127.0.0.1:9", "--cells", "1"), "cells must be at least 2"),
        (("--base-url", "http://127.0.0.1:9", "--temperature", "0"), "must be > 0, got 0"),
    ],
)
def test_bad_arguments_are_one_clear_error(arguments, words):
    result = audit(*arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "huge"), "does not serve 'huge', only ['tiny']"),
        (("--temperature", "0.7"), "without a reference server the temperature must be 1"),
        (("--extra", '{"top_p": 0.9}'), "top_p cannot be audited"),
    ],
)
def test_what_cannot_be_audited_is_refused_before_anything_is_drawn(arguments, words):
    with serving() as (url, application):
        result = audit("--base-url", url, *QUICK, *arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert not application.bodies


def test_what_is_no_such_server_is_said():
    with serving(Faults(hides=("models",))) as (url, _):
        result = audit("--base-url", url)
    assert result.exit_code == 2
    assert "does not speak OpenAI's protocol: there is no 'data' in 'hello'" in result.output


def test_without_httpx_the_remedy_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "specjax.audit.client")
    monkeypatch.setitem(sys.modules, "httpx", None)
    result = audit("--base-url", "http://127.0.0.1:9")
    assert result.exit_code == 2
    assert "specjax[ab]" in result.output


def test_the_tiny_server_is_no_trivial_one():
    assert len(set(FAVOURITES)) > 1
    assert LAWS.max(axis=1).min() < 0.9


def test_looks_end_early_where_it_differs_and_keep_the_level():
    plan = Plan(prompts=PROMPTS, tv=0.1, cells=12, batch=64, temperature=0.3, looks=4)
    with serving(Faults(ignores_temperature=True), seed=1) as (url, _), serving(seed=2) as (two, _):
        found = collect(Server(url), Server(two), plan)
    report = judge(found)
    assert not report.passed
    assert found["looks"] == 1
    num = plan.num_draws(2)
    assert report.findings[0].draws == num // 4
    assert num > Plan(prompts=PROMPTS, tv=0.1, cells=12).num_draws(2)  # looks have their price
    with serving(seed=3) as (url, _), serving(seed=4) as (two, _):
        found = collect(Server(url), Server(two), plan)
    assert judge(found).passed
    assert found["looks"] == 4
    assert judge(found).findings[0].draws == num


def test_false_alarms_stay_below_their_rate_over_all_looks():
    """Of 400 audits of equal laws, at alpha = 5% and five looks each; Bonferroni makes it less."""
    rng, law = np.random.default_rng(0), LAWS[0]
    plan = Plan(prompts=PROMPTS, alpha=0.05, looks=5)
    alarms = 0
    for _ in range(400):
        asked = [{"prompt": name, "law": None} for name in PROMPTS]
        counts = np.zeros((len(PROMPTS), 2, len(law)), int)
        for _ in range(plan.looks):
            counts += rng.multinomial(300, law, counts.shape[:2])
            for one, (base, other) in zip(asked, counts, strict=True):
                one["base"] = [[[token], int(count)] for token, count in enumerate(base)]
                one["reference"] = [[[token], int(count)] for token, count in enumerate(other)]
            if any(found.differs for found in judge_prompts(plan, asked, 2)):
                alarms += 1
                break
    assert alarms <= 0.05 * 400 + 3 * (0.05 * 0.95 * 400) ** 0.5
    assert alarms > 0  # it is a test that can alarm


def test_every_text_has_a_seed_of_its_own():
    plan = Plan(prompts=PROMPTS, tv=0.3, cells=8, batch=64, looks=2, seed=7)
    with serving(seed=1) as (url, one), serving(seed=2) as (other, two):
        collect(Server(url), Server(other), plan)
    used = [
        range(body["seed"], body["seed"] + body["n"])
        for body in (*one.bodies, *two.bodies)
        if "seed" in body
    ]
    every = [seed for some in used for seed in some]
    assert len(every) == len(set(every)) == 2 * 2 * plan.num_draws(2)
    assert min(every) == 7


def test_the_page_says_what_was_found_and_hides_keys(tmp_path, monkeypatch):
    page = tmp_path / "audit.html"
    broken = Faults(ignores_temperature=True)
    with serving(broken, seed=1) as (url, _), serving(seed=2) as (other, _):
        words = ["--base-url", url, "--reference-url", other, *QUICK, "--temperature", "0.3"]
        words += ["--api-key", "sesame", "--html", str(page), "--seed", "3", "--looks", "2"]
        monkeypatch.setattr(sys, "argv", ["specjax", "audit", "server", *words])
        result = audit(*words)
    assert result.exit_code == 1, result.output
    assert "seen at look 1 of 2" in result.output
    text = page.read_text(encoding="utf-8")
    assert "it differs" in text
    assert "sesame" not in text
    assert "--api-key ..." in text
    assert "data:image/png;base64," in text
    assert "Texts have seeds, from 3 on" in text
    assert text.count("Where it differs") == 2

"""Greedy texts of real models compared: bitwise, at a near tie, or a bug."""

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest

from specjax import LLM
from specjax.ab.arms import Ask, parse_arm
from specjax.ab.divergence import AGAIN, explain_differences
from specjax.ab.local_arm import LocalArm
from specjax.ab.questions import Dataset, Question
from specjax.ab.records import Log, Record, Unit
from specjax.audit.client import Server
from specjax.audit.greedy import NEAR, compare_greedy, judge_greedy
from specjax.bundled import prompts
from specjax.engine.service import Service
from specjax.server.app import create_app
from specjax.server.deployment import Deployment
from tests.server.running import running

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
CLOSE = "edit-flatten-generator", "completion-json-encoder"  # two tokens are nearly as likely
PROMPTS = (
    "def add(a, b):\n",
    *(one["turns"][0] for one in prompts() if one["id"] in CLOSE),
)
TOKENS = 24
ASK = Ask(TOKENS, 0.0, False, False, 0, 60.0, {})


@contextlib.contextmanager
def serving(**options) -> Iterator[tuple[Service, str]]:
    """Serve the bundled model on a socket."""
    llm = LLM("bundled", max_model_len=256, max_num_seqs=4, **options)
    service = Service(llm.core, max_waiting=16)
    try:
        deployment = Deployment(service=service, names=("it",), max_queued=16)
        with running(create_app(deployment), lifespan="off") as url:
            yield service, url
    finally:
        service.close(drain=False)


@pytest.fixture(scope="module")
def plain():
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def drafted():
    with serving(speculative_config=NGRAM) as found:
        yield found


@pytest.fixture(scope="module")
def rounded():
    with serving(dtype="bfloat16") as found:
        yield found


def verdicts(one: str, other: str):
    """Compare two servers' greedy texts."""
    base, reference = Server(one), Server(other)
    for prompt in PROMPTS:
        found = compare_greedy(base, reference, prompt, base.encode(prompt), TOKENS)
        yield found, judge_greedy(prompt, found, NEAR)


def test_a_server_prints_logprobs_whole(plain):
    """They come back as the float32 numbers that they are."""
    _, logprobs = Server(plain[1]).greedy(PROMPTS[0], TOKENS)
    assert logprobs is not None
    assert len(logprobs) == TOKENS
    arm = LocalArm(parse_arm("plain=specjax"), ASK, plain[0])
    assert list(logprobs) == arm.greedy(PROMPTS[0], TOKENS)[1]
    assert all(float(np.float32(one)) == one for one in logprobs)


def test_plain_and_drafted_servers_are_bitwise_the_same(plain, drafted):
    for _, found in verdicts(drafted[1], plain[1]):
        assert found.verdict == "bitwise: tokens and logprobs are equal"
        assert found.passed


def test_servers_that_round_otherwise_part_at_near_ties(plain, rounded):
    said = [found for _, found in verdicts(rounded[1], plain[1])]
    assert all(one.passed for one in said)
    assert not any(one.verdict.startswith("bitwise") for one in said)
    assert any(one.verdict.startswith("near tie") for one in said)


def test_digits_that_are_missing_are_no_bits(plain, drafted):
    """A server that prints six digits: its text is equal, and more cannot be said."""
    found, _ = next(verdicts(drafted[1], plain[1]))
    cut = [[round(one, 6) for one in side] for side in found["logprobs"]]
    assert judge_greedy("", {**found, "logprobs": cut}, NEAR).verdict == "equal"
    assert judge_greedy("", {**found, "logprobs": [None, cut[0]]}, NEAR).verdict == "equal"
    off = [list(found["logprobs"][0]), list(found["logprobs"][1])]
    off[0][3] = float(np.nextafter(np.float32(off[0][3]), np.float32(0)))
    verdict = judge_greedy("", {**found, "logprobs": off}, NEAR).verdict
    assert verdict.startswith("equal, logprobs up to ")


def record(prompt: str, tokens) -> Record:
    nothing = (), (), 1.0, 1, len(tokens), "length", tuple(tokens), "", None, None, None, None, None
    return Record(prompt, 0.0, *nothing, error=None)


def test_a_comparison_tells_bitwise_from_near_ties(plain, drafted, rounded, tmp_path):
    arms = [
        LocalArm(parse_arm(f"{label}=specjax"), ASK, service)
        for label, (service, _) in (("plain", plain), ("ngram", drafted), ("half", rounded))
    ]
    questions = tuple(Question(f"q{i}", (prompt,)) for i, prompt in enumerate(PROMPTS))
    units = tuple(
        Unit(
            arm=arm.spec.label,
            dataset="some",
            concurrency=1,
            block=0,
            seconds=1.0,
            requests=tuple(record(q.id, arm.greedy(q.turns[0], TOKENS)[0]) for q in questions),
            counters=None,
        )
        for arm in arms
    )
    path = tmp_path / "log.jsonl"
    path.touch()
    log = explain_differences(path, Log({}, units, ()), arms, [Dataset("some", questions, "")])
    assert all(one.passed for one in log.divergences)
    ngram = [one for one in log.divergences if one.arm == "ngram"]
    assert len(ngram) == min(AGAIN, len(PROMPTS))
    assert {one.verdict for one in ngram} == {"bitwise: tokens and logprobs are equal"}
    half = [one.verdict for one in log.divergences if one.arm == "half"]
    assert not any(one.startswith("bitwise") for one in half)
    assert any(one.startswith("near tie") for one in half)
    again = explain_differences(path, log, arms, [Dataset("some", questions, "")])
    assert again == log

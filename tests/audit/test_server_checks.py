"""Further checks of a server: our own passes them, and each finds a server that breaks it."""

import pytest
from typer.testing import CliRunner

from specjax.audit.client import Score, Server
from specjax.audit.server import PROMPTS
from specjax.audit.server_checks import CHECKS, CHOICES, FUNCTION, check_server, fits_schema
from specjax.audit.zoo_reported import one_coin_for_both
from specjax.cli.app import app
from specjax.host.compile_cache import enable_compile_cache
from tests.audit import tiny_server
from tests.audit.power import shipped
from tests.audit.served import serving

ARGUMENTS = '{"amount": 3, "unit": "minutes"}'


class Pretending(Server):
    """A server in process, right but for what ``breaks`` names."""

    def __init__(self, breaks: str = ""):
        self.url, self.breaks, self.asked = "here", breaks, 0

    def encode(self, prompt):
        return (1, 2)

    def score(self, prompt, tokens):
        wrong = self.breaks == "logprobs"
        return [Score(-1.0 - wrong, -1.0) for _ in tokens]

    def complete(self, asked):
        self.asked += 1
        form, text = asked.get("structured_outputs"), "text"
        if form is not None:
            text = (
                "mauve" if self.breaks == "grammar" else "123-ab" if "regex" in form else CHOICES[0]
            )
        extra = self.asked if self.breaks == "company" else 0
        ids = [asked["seed"], extra]
        return [{"text": text, "token_ids": ids, "logprobs": {"token_logprobs": [-1.0, -1.0]}}]

    def chat(self, asked):
        said = {"name": FUNCTION["name"], "arguments": ARGUMENTS}
        message = {"tool_calls": [{"function": said}]}
        return [{"message": message, "finish_reason": "stop"}]

    def stream(self, asked, path="/v1/completions"):
        if "chat" in path:
            said = ARGUMENTS[:-1] if self.breaks == "tools" else ARGUMENTS
            calls = [[{"function": {"arguments": part}}] for part in (said[:5], said[5:])]
            return [{"choices": [{"delta": {"tool_calls": call}}]} for call in calls]
        (whole,) = self.complete(asked)
        ids = whole["token_ids"][: 1 if self.breaks == "streaming" else 2]
        return [{"choices": [{"text": "te", "token_ids": ids}]}, {"choices": [{"text": "xt"}]}]


@pytest.mark.parametrize("breaks", ["", *CHECKS])
def test_each_check_finds_its_fault_and_no_other(breaks):
    found = check_server(Pretending(breaks), ["one"], ["all"])
    assert [one.name for one in found] == list(CHECKS)
    failed = {one.name for one in found if not one.passed}
    # whoever answers otherwise each time does so streamed, too
    assert failed == ({breaks, "streaming"} if breaks == "company" else {breaks} - {""})


@pytest.mark.parametrize(
    "arguments", ["", "[1]", '{"amount": 1}', '{"amount": true, "unit": "minutes"}', ARGUMENTS[:-1]]
)
def test_a_call_outside_its_schema_does_not_fit(arguments):
    assert fits_schema({"name": FUNCTION["name"], "arguments": ARGUMENTS})
    assert not fits_schema({"name": "other", "arguments": ARGUMENTS})
    assert not fits_schema({"name": FUNCTION["name"], "arguments": arguments})


def test_what_a_server_does_not_offer_is_no_fault_and_an_unknown_check_is_one_error(tmp_path):
    with tiny_server.serving() as (url, _):
        words = ["--prompt", "one", "--tv", "0.3", "--batch", "64", "--cells", "6"]
        page = tmp_path / "audit.html"
        told = CliRunner().invoke(
            app,
            ["audit", "server", "--base-url", url, *words, "--check", "tools", "--html", str(page)],
        )
    assert told.exit_code == 0, told.output
    assert "not offered" in told.output
    assert "Further checks" in page.read_text()
    with pytest.raises(ValueError, match="there is no check 'stream': choose from streaming"):
        check_server(Pretending(), ["one"], ["stream"])


@pytest.mark.parametrize("specimen", [shipped, one_coin_for_both])
def test_our_own_server_passes_them_with_a_sound_rule_and_a_broken_one(specimen):
    """None of them looks at a distribution: that is what the chi-square test is for."""
    enable_compile_cache()
    with serving(specimen(), 2) as url:
        found = check_server(Server(url), PROMPTS[:1], ["all"])
    assert all(one.passed for one in found), found
    assert not any(one.verdict.startswith("not offered") for one in found), found

"""The status page: one file that loads nothing else, in a real browser."""

import re

import httpx
import pytest

from specjax.server.metrics import Meters
from tests.browser import open_page
from tests.server.conftest import CONFIG

ASKED = {"prompt": [7, 8, 9, 7, 8, 9], "max_tokens": 60, "temperature": 0, "ignore_eos": True}
ALL = "[...document.querySelectorAll('{}')].map({})"
TEXTS = f"Object.fromEntries({ALL.format('[id]', 'e => [e.id, e.textContent]')})"
ROWS = ALL.format("#positions tr", "row => [...row.cells].map(cell => cell.textContent)")
CURVES = ALL.format("#rates path", "path => path.getAttribute('d')")


def test_the_page_loads_nothing_from_elsewhere(url):
    answer = httpx.get(url)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|src=|@import|url\(", answer.text)
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def complete(url: str) -> None:
    httpx.post(f"{url}/v1/completions", json=ASKED, timeout=60).raise_for_status()


def drafts(url: str) -> list[float]:
    """Return the numbers of drafts, and of drafts accepted at each position, so far."""
    found = re.findall(
        r"^vllm:spec_decode_num_(?:drafts|accepted_tokens_per_pos)_total\{.*\} (.+)$",
        httpx.get(f"{url}/metrics").text,
        re.MULTILINE,
    )
    return [float(one) for one in found]


def test_a_browser_shows_throughput_queue_and_acceptance_over_time(url, tmp_path):
    complete(url)
    before, depth = drafts(url), CONFIG["num_speculative_tokens"]
    with open_page(f"{url}/", tmp_path) as page:
        page.wait("get('state').textContent === 'idle' && counts.length > 1")
        complete(url)
        complete(url)
        after = drafts(url)
        assert len(after) == depth + 1
        page.wait(f"counts.at(-1).drafts === {after[0]} && speeds.length > 2")
        shown, rows, curves = page.show(TEXTS), page.show(ROWS), page.show(CURVES)
        page.wait("get('state').textContent === 'idle' && speeds.at(-1) === 0")
    assert shown["model"] == "tiny"
    assert shown["method"] == f"ngram, K = {depth}"
    assert shown["running"] == shown["waiting"] == "0"
    assert float(shown["ttft"]) > 0
    assert 1 < float(shown["length"]) <= depth + 1

    # the last ten seconds have both completions, and nothing else
    new = [late - early for late, early in zip(after, before, strict=True)]
    recent, ever = ([one / counted[0] for one in counted[1:]] for counted in (new, after))
    assert [row[0] for row in rows] == ["", *(f"token {i + 1}" for i in range(depth))]
    for row, some, every in zip(rows[1:], recent, ever, strict=True):
        assert [float(cell.removesuffix("%")) for cell in row[2:]] == pytest.approx(
            [100 * some, 100 * every], abs=0.51
        )
    heights = [float(re.findall(r"[ML]\S+ (\S+?)(?=[ML]|$)", curve)[-1]) for curve in curves]
    assert heights == pytest.approx([98 - 94 * one for one in recent])
    assert heights == sorted(heights)  # a later token is accepted no more often


def test_plain_decoding_has_no_method(deployment, call):
    text = Meters(deployment.service.stats, "tiny", 0).text().decode()
    assert "speculative_config_info" not in text
    assert "speculative_config_info" in call("GET", "/metrics").body.decode()

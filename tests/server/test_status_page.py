"""The status page: one file that loads nothing else, in a real browser where there is one."""

import re
import shutil
import subprocess

import httpx
import pytest

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def test_the_page_loads_nothing_from_elsewhere(url):
    answer = httpx.get(url)
    assert not re.search(r"https?://|src=|@import|url\(", answer.text)
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
def test_a_browser_shows_throughput_queue_and_acceptance(url, tmp_path):
    asked = {"prompt": [7, 8, 9, 7, 8, 9], "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    httpx.post(f"{url}/v1/completions", json=asked, timeout=60).raise_for_status()
    flags = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}")
    command = [BROWSER, *flags, "--virtual-time-budget=3000", "--dump-dom", f"{url}/"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    shown = dict(re.findall(r'id="(\w+)"[^>]*>([^<]*)<', done.stdout))
    assert shown["model"] == "tiny"
    assert shown["state"] == "idle"
    assert shown["running"] == shown["waiting"] == "0"
    assert float(shown["speed"]) == 0
    assert float(shown["ttft"]) > 0
    assert 1 < float(shown["length"]) <= 4
    rates = re.findall(r"token (\d)</th><td><meter[^>]*></meter></td><td>(\d+)%", done.stdout)
    assert [position for position, _ in rates] == ["1", "2", "3"]
    assert 100 >= int(rates[0][1]) >= int(rates[1][1]) >= int(rates[2][1]) >= 0
    assert int(rates[0][1]) > 0

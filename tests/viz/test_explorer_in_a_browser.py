"""The explorer in a real Chromium: two screens, two languages, by keyboard, without a network."""

import json
import shutil
from typing import NamedTuple

import numpy as np
import pytest

from specjax import theory
from specjax.theory.intervals import Interval
from specjax.viz.explorer import PAGE, Run, explorer_page

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="there is no Chromium here")


class Screen(NamedTuple):
    """What the browser pretends to be."""

    width: int
    height: int
    mobile: bool


SCREENS = {"desktop": Screen(1280, 900, False), "phone": Screen(360, 740, True)}
LANGUAGES = ("en", "zh")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """Start Chromium, which is told to log every request."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    profile = tmp_path_factory.mktemp("profile")
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "lang=en-US"):
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.execute_cdp_cmd("Network.enable", {})
    nothing = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0, "offline": True}
    driver.execute_cdp_cmd("Network.emulateNetworkConditions", nothing)
    yield driver
    driver.quit()


@pytest.fixture
def show(chromium):
    """Return a function that opens the page anew, at a state, on a screen."""
    chromium.get_log("performance"), chromium.get_log("browser")

    def opened(screen="desktop", page=PAGE, **state):
        size = SCREENS[screen]._asdict() | {"deviceScaleFactor": 1}
        chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        chromium.get("about:blank")
        hash_ = "&".join(f"{name}={value}" for name, value in state.items())
        chromium.get(f"{page.as_uri()}#{hash_}")
        return chromium

    yield opened
    assert not [one for one in chromium.get_log("browser") if one["level"] == "SEVERE"]


def press(browser, *keys):
    """Send keys to whatever has the focus."""
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


def answer(browser) -> dict[str, str]:
    """Return the numbers under the page's heading, by their order in the texts."""
    shown = browser.execute_script(
        "return [...document.querySelectorAll('#answer dd')].map(one => one.textContent)"
    )
    return dict(zip(("tokens", "cost", "speedup", "best_k", "breakeven"), shown, strict=True))


CUT = """
const out = [], wide = document.documentElement.clientWidth;
for (const one of document.querySelectorAll('body *')) {
  const box = one.getBoundingClientRect();
  if (!box.width || ['SCRIPT', 'OPTION'].includes(one.tagName)) continue;
  const svg = one.ownerSVGElement?.getBoundingClientRect();
  const left = svg ? svg.left : 0, right = svg ? svg.right : wide;
  if (box.left < left - 1 || box.right > right + 1)
    out.push(one.tagName + ' ' + (one.textContent || one.id).trim().slice(0, 60));
}
return out;
"""
MEETING = """
const out = [];
for (const svg of document.querySelectorAll('svg')) {
  const boxes = [...svg.querySelectorAll('text')].map(one => [one, one.getBoundingClientRect()]);
  boxes.forEach(([one, a], i) => boxes.slice(i + 1).forEach(([other, b]) => {
    const across = a.left < b.right - 1 && b.left < a.right - 1;
    if (across && a.top < b.bottom - 3 && b.top < a.bottom - 3)
      out.push(one.textContent + ' | ' + other.textContent);
  }));
}
return out;
"""


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("costs", ["own", "roofline"])
def test_nothing_is_cut_off_and_no_words_meet(show, screen, language, costs):
    browser = show(screen, language=language, costs=costs, alpha=0.6, k=16, nodes=32)
    press(browser, *"sssssssssssssssssssssss")  # a round half played, with its residual
    assert browser.execute_script("return document.documentElement.scrollWidth") <= (
        SCREENS[screen].width
    )
    assert browser.execute_script(CUT) == []
    assert browser.execute_script(MEETING) == []
    expected = {"en": "en", "zh": "zh-Hans"}[language]
    assert browser.execute_script("return document.documentElement.lang") == expected
    left = browser.execute_script(
        "return [...document.querySelectorAll('[data-text]')].filter(x => !x.textContent).length"
    )
    assert left == 0


@pytest.mark.parametrize("costs", ["own", "roofline"])
def test_what_is_shown_is_what_theory_says(show, costs):
    for alpha, k, c, v in [(0.8, 5, 0.1, 1.0), (0.35, 3, 0.12, 1.3), (0.95, 16, 0.02, 2.0)]:
        own = {"alpha": alpha, "k": k, "c": c, "v": v, "hardware": "H100", "batch": 4, "context": 6}
        browser = show(costs=costs, **own, devices=1)
        batch, context = 16, 8192
        if costs == "roofline":
            hw = theory.HARDWARE["H100"]
            time = {m: theory.decode_time_roofline(batch, m, context, theory.QWEN3_32B, hw)
                    for m in range(1, 18)}  # fmt: skip
            draft = theory.decode_time_roofline(batch, 1, context, theory.QWEN3_0_6B, hw)
            c, cost_of = draft / time[1], lambda K, time=time: time[K + 1] / time[1]
        else:
            cost_of = lambda K, v=v: v  # noqa: E731
        gains = [1.0] + [float(theory.speedup(alpha, K, c, cost_of(K))) for K in range(1, 17)]
        even = float(theory.breakeven_alpha(k, c, cost_of(k)))
        assert answer(browser) == {
            "tokens": f"{theory.tokens_per_step(alpha, k):.2f}",
            "cost": f"{k * c + cost_of(k):.2f}",
            "speedup": f"{gains[k]:.2f}x",
            "best_k": str(int(np.argmax(gains))),
            "breakeven": "never" if np.isnan(even) else f"{even:.2f}",
        }


def test_formulas_of_this_browser_are_theorys_on_a_grid(show):
    alphas, ks, costs = np.linspace(0, 1, 21), np.arange(17), [0.0, 0.03, 0.1, 0.6]
    script = f"""return {alphas.tolist()}.map(a => {ks.tolist()}.map(K =>
      {costs}.map(c => speedup(a, K, c, 1.3))))"""
    got = show().execute_script(script)
    expected = theory.speedup(alphas[:, None, None], ks[None, :, None], np.array(costs), 1.3)
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_every_control_is_reached_and_moved_by_keys_alone(show):
    from selenium.webdriver.common.keys import Keys

    browser = show(costs="roofline")
    wanted = browser.execute_script(
        """return [...document.querySelectorAll('button, input, select')]
        .filter(one => one.offsetParent).map(one => one.id)"""
    )
    reached = []
    for _ in wanted:
        press(browser, Keys.TAB)
        reached.append(browser.execute_script("return document.activeElement.id"))
        outline = browser.execute_script(
            "return getComputedStyle(document.activeElement).outlineStyle"
        )
        assert outline == "solid", "where the focus is must be seen"
    assert reached == wanted  # in the order of the page
    browser = show(alpha=0.8, k=5, c=0.1, v=1)
    before = answer(browser)
    press(browser, Keys.TAB, Keys.TAB, Keys.ARROW_RIGHT)
    assert browser.execute_script("return state.alpha") == 0.81
    assert answer(browser)["tokens"] == f"{theory.tokens_per_step(0.81, 5):.2f}" != before["tokens"]
    press(browser, "l")
    assert browser.execute_script("return state.language") == "zh"
    press(browser, "l")


def test_a_round_is_played_token_by_token(show):
    browser = show(alpha=0.6, k=4)
    kinds = "return [...document.querySelectorAll('.chip small')].map(one => one.textContent)"
    ends = set()
    for _ in range(12):
        seen = []
        while True:
            press(browser, "s")
            seen.append(tuple(browser.execute_script(kinds)))
            if browser.execute_script("return Boolean(frames[frame].done)"):
                break
        assert seen[:5] == [("drafted",) * n for n in (1, 2, 3, 4)] + [("drafted",) * 4]
        last = seen[-1]
        accepted = last.count("accepted")
        own = ("bonus",) if accepted == 4 else ("rejected", "recovered")
        assert last == ("accepted",) * accepted + own + ("dropped",) * max(3 - accepted, 0)
        assert browser.execute_script("return counted.at(-1)") == accepted + 1
        ends.add(own[-1])
        press(browser, "n")
    assert ends == {"bonus", "recovered"}
    browser.execute_script("document.getElementById('many').click()")
    counted = np.array(browser.execute_script("return counted"), float)
    mean, error = counted.mean(), np.sqrt(theory.step_length_var(0.6, 4) / counted.size)
    assert abs(mean - theory.tokens_per_step(0.6, 4)) < 4.5 * error


@pytest.mark.parametrize("screen", SCREENS)
def test_a_click_or_tap_on_the_map_moves_the_point(show, screen):
    browser = show(screen, alpha=0.8, k=4)
    box = browser.execute_script(
        """const svg = document.querySelector('#surface svg');
        svg.scrollIntoView({block: 'center'});
        const box = svg.getBoundingClientRect();
        return [box.left + 34 + (box.width - 92) * 0.5, box.top + 8 + (box.height - 44) * 0.25]"""
    )
    where = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
    for kind in ("mousePressed", "mouseReleased"):
        browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": kind, **where})
    assert abs(browser.execute_script("return state.alpha") - 0.5) < 0.02
    assert browser.execute_script("return state.k") in (12, 13)


def test_measured_runs_set_the_sliders(show, tmp_path):
    run = Run("eagle, 1 at a time", 0.7, 3, 2.533, Interval(1.5, 1.2, 1.8))
    page = tmp_path / "page.html"
    page.write_text(explorer_page([run]), encoding="utf-8")
    browser = show(page=page)
    assert browser.execute_script("return [state.alpha, state.k]") == [0.7, 3]
    assert answer(browser)["speedup"] == "1.50x"
    assert "1.50 [1.20, 1.80]" in browser.find_element("id", "run-said").text


def test_no_request_leaves_the_page(show):
    browser = show("phone", language="zh")
    press(browser, *"sspn")
    browser.execute_script("document.getElementById('many').click()")
    seen = [json.loads(one["message"])["message"] for one in browser.get_log("performance")]
    asked = [
        one["params"]["request"]["url"]
        for one in seen
        if one["method"] == "Network.requestWillBeSent"
    ]
    assert asked  # the page itself: the log works
    assert {url.split("#")[0] for url in asked} <= {PAGE.as_uri(), "about:blank"}

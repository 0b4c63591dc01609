"""``bench adaptive`` compares adaptive K with the better of on and off in every phase."""

import numpy as np
import pytest

from specjax.bench import adaptive
from specjax.bench.adaptive import ARMS, bench_adaptive, compared, requests_of
from specjax.bench.prompts import Prompt

NGRAM = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}
ADAPTIVE = {**NGRAM, "adaptive": "throughput_aware"}


def test_a_phase_is_judged_by_the_better_of_on_and_off():
    slow, fast, near, far = [8.0] * 3, [4.0] * 3, [4.1] * 3, [4.2] * 3
    for arms, better, met in (((slow, fast, near), "on", True), ((fast, slow, far), "off", False)):
        *fixed, last = compared("all", 8, np.array(arms))
        assert [row.value for row in fixed] == [8 / one[0] for one in arms[:2]]
        assert (last.peer, last.against, last.met) == (2.0, better, met)
        assert last.ratio == pytest.approx(4.0 / arms[2][0])


def test_the_ratio_is_taken_turn_by_turn():
    *_, last = compared("all", 8, np.array([[9.0, 9.0, 9.0], [4.0, 8.0, 4.4], [4.4, 8.2, 4.1]]))
    assert last.ratio == pytest.approx(8.0 / 8.2)  # of the medians: 1
    assert last.interval == pytest.approx((4.0 / 4.4, 4.4 / 4.1))  # three turns tell little


def test_all_services_get_the_same_requests_of_different_lengths():
    prompts = [Prompt("one", "", [5, 6]), Prompt("two", "", [9])]
    requests = requests_of(prompts, 20)
    assert [prompt for prompt, _ in requests] == [[5, 6], [9]] * 10
    lengths = [params.max_tokens for _, params in requests]
    assert set(lengths) <= set(range(32, 65))
    assert len(set(lengths)) > 5
    assert requests_of(prompts, 20) == requests


def test_every_phase_has_its_rows_and_they_are_written_and_drawn(tmp_path, pair, monkeypatch):
    prompts = [Prompt("one", "", [5, 6, 7, 5, 6]), Prompt("two", "", [9, 9, 9])]
    monkeypatch.setattr(adaptive, "fitting", lambda llm, num_tokens: prompts)
    monkeypatch.setattr(adaptive, "NUM_TOKENS", (4, 8))
    page, image = tmp_path / "page.md", tmp_path / "adaptive.png"
    page.write_text("<!-- adaptive: begin -->\n<!-- adaptive: end -->\n")
    small = {"phases": (1, 1), "requests": 2, "reps": 1, "max_model_len": 20}
    rows = bench_adaptive(pair.target, ADAPTIVE, None, readme=page, image=image, **small)
    places = ("phase 1, 1 clients", "phase 2, 1 clients", "all phases")
    names = [f"{phase}: {arm}" for phase in places for arm in ARMS]
    assert [row.name for row in rows[1:]] == names
    assert all(row.value > 0 for row in rows)
    assert "2 requests in each phase" in page.read_text()
    assert "of 4 to 8 new tokens" in page.read_text()
    assert "(adaptive.png)" in page.read_text()
    assert image.stat().st_size > 0


def test_what_cannot_be_compared_is_refused_before_any_work(tmp_path):
    with pytest.raises(ValueError, match='add "adaptive"'):
        bench_adaptive("bundled", NGRAM, None)
    with pytest.raises(ValueError, match="4 requests do not occupy 8 clients"):
        bench_adaptive("bundled", ADAPTIVE, None, phases=(1, 8), requests=4)
    (tmp_path / "page.md").write_text("nothing")
    with pytest.raises(ValueError, match="has no <!-- adaptive: begin -->"):
        bench_adaptive("bundled", ADAPTIVE, None, readme=tmp_path / "page.md")

"""The benchmark's client and its rows, on the tiny server."""

import pytest

from specjax.bench.client import Load, TimedCompletion, load
from specjax.bench.goodput import arrival_loads, capacity, goodput_rows, tail_rows
from specjax.bench.serve import (
    latency_rows,
    long_load,
    print_time_split,
    throughput_rows,
    time_servers,
)

PROMPTS = [[7, 8, 9], [20, 30], [5] * 12]
FIXED = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}


def test_the_client_hears_the_offline_texts_and_the_servers_times(url, offline):
    expected = [one.text for one in offline(PROMPTS, max_tokens=12, ignore_eos=True)]
    done = load(url, [{"prompt": prompt, **FIXED} for prompt in PROMPTS], 2)
    assert [one.text for one in done.completions] == expected
    assert [one.num_tokens for one in done.completions] == [12] * 3
    assert done.speed == 36 / done.seconds
    for one in done.completions:
        assert 0 < one.first <= one.seconds <= done.seconds
    lines = []
    print_time_split("these", [done], lines.append)
    assert all(part in lines[0] for part in ("queue", "prompt", "decoding", "HTTP and client"))


def test_servers_take_turns_and_the_first_round_does_not_count(url):
    said, bodies = [], [{"prompt": [7, 8], **FIXED, "max_tokens": 2}] * 3
    servers = {"specjax": url, "again": url}
    loads = time_servers(servers, bodies, 2, 1, said.append, num_requests=3)
    assert [len(found) for found in loads.values()] == [1, 1]
    assert len(loads["specjax"][0].completions) == 8  # four times the concurrency
    names = [line.split(", ")[1].split(":")[0] for line in said]
    assert names == ["specjax", "again", "specjax", "again"]
    assert len(long_load("specjax", url, bodies, said.append, num_requests=5).completions) == 5


def test_what_does_not_stream_is_an_error(url):
    with pytest.raises(ConnectionError, match="top_p must be in"):
        load(url, [{"prompt": [1], "top_p": 7}], 1)


def test_rows_compare_medians_and_tails():
    def loads(speeds, firsts, text="a"):
        done = [TimedCompletion(text, 10, first, 1.0, {}) for first in firsts]
        return [Load(done, 10 * len(done) / speed) for speed in speeds]

    found = {
        "specjax": loads([30, 50, 40], [0.1] * 99 + [0.2]),
        "vLLM": loads([20.0], [0.4] * 100),
    }
    speed, same = throughput_rows(1, found)
    assert (speed.value, speed.peer, speed.met) == (pytest.approx(40), pytest.approx(20), True)
    assert (same.value, same.peer) == (100, 100)
    median, tail, theirs = latency_rows({name: each[-1] for name, each in found.items()})
    assert median.ratio == pytest.approx(0.25)
    assert tail.met
    assert (theirs.ratio, theirs.goal) == (1.0, None)
    more = {"vLLM float32": found["vLLM"], "specjax bfloat16": loads([10.0], [0.1] * 100)}
    rows = throughput_rows(1, found | more)
    pairs = {(row.name.rpartition(", ")[2], row.against): row.goal for row in rows[:3]}
    assert pairs == {
        ("specjax", "vLLM"): ">= 1.3",
        ("specjax", "vLLM float32"): None,
        ("specjax bfloat16", "vLLM"): None,
    }
    (alone,) = throughput_rows(1, {"specjax": found["specjax"]})
    assert alone.peer is None
    assert not latency_rows({"specjax": loads([1], [0.1] * 9 + [1.0])[0]})[0].met


def test_requests_that_arrive_at_random_get_the_same_texts(url):
    said, bodies = [], [{"prompt": prompt, **FIXED} for prompt in PROMPTS]
    closed = load(url, bodies, 1)
    servers = {"specjax": url, "vLLM": url}
    loads = arrival_loads(servers, bodies, 50.0, 2, said.append, num_requests=6)
    texts = [one.text for one in closed.completions]
    for found in loads.values():
        assert [[one.text for one in done.completions] for done in found] == [2 * texts] * 2
    starts = [line.partition(": ")[0] for line in said]
    assert starts == [f"50.0 requests/s arrive, {name}" for name in servers] * 2


def test_goodput_counts_the_requests_that_met_every_objective():
    def loads(firsts, seconds, later=0.5):
        done = [TimedCompletion("a", 11, first, first + later, {}) for first in firsts]
        return [Load(done, seconds)]

    slo = {"ttft": 0.2, "tpot": 0.06}
    found = {"specjax": loads([0.1, 0.1, 0.3, 0.1], 2.0), "vLLM": loads([0.1, 0.3, 0.3, 0.3], 1.0)}
    rate, share = goodput_rows("x", found, slo)
    assert (rate.value, rate.peer, rate.ratio) == (1.5, 1.0, 1.5)
    assert (share.value, share.peer) == (0.75, 0.25)
    assert rate.name == "goodput, x (ttft <= 200 ms, tpot <= 60 ms)"
    slow = found | {"vLLM": loads([0.1], 1.0, later=0.61)}
    rate, _ = goodput_rows("x", slow, slo)
    assert (rate.peer, rate.ratio, rate.against) == (0, None, "vLLM")
    (rate, _), tails = goodput_rows("x", {"specjax": slow["specjax"]}, slo), tail_rows("x", found)
    assert (rate.value, rate.peer) == (1.5, None)
    assert [row.value for row in tails] == [pytest.approx(0.294), pytest.approx(0.05)]


def test_capacity_is_the_most_that_the_peer_completed():
    done = [TimedCompletion("a", 10, 0.1, 1.0, {})] * 4
    loads = {
        1: {"specjax": [Load(done, 1.0)], "vLLM": [Load(done, s) for s in (4.0, 2.0, 1.0)]},
        8: {"specjax": [Load(done, 0.5)], "vLLM": [Load(done, 4.0)]},
    }
    assert capacity(loads) == 2.0
    assert capacity({c: {"specjax": found["specjax"]} for c, found in loads.items()}) == 8.0

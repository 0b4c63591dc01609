"""The instrument, held against servers whose rates are known."""

import httpx
import numpy as np
import pytest

from specjax.ab.compare import by_load, compare, tpot_gain
from specjax.ab.measures import measure, tpot
from specjax.ab.records import Record, Unit
from tests.ab.helpers import compare_urls

RATES = {"ttft": 0.3, "tpot": 0.03, "tokens": 21}
LIES = {
    "honest": {},
    "several tokens per chunk": {"per_chunk": 4},
    "late usage": {"usage": "own chunk"},
    "no metrics, no ids": {"metrics": False, "ids": False},
    "a strict server": {"refuse": ["return_token_ids", "cache_salt"]},
}


def really_sent(url: str, rounds: int, num: int) -> np.ndarray:
    """Return when the stub sent its chunks, [rounds, requests in order of number, chunks].

    It keeps its time table as far as this machine lets it; that is not the harness's error.
    """
    told = httpx.get(f"{url}/sent", trust_env=False).json()[-rounds * num :]
    by_round = [sorted(told[i : i + num]) for i in range(0, len(told), num)]
    return np.array([[times for _, times in one] for one in by_round])


@pytest.mark.parametrize("lie", LIES)
def test_the_harness_recovers_known_rates_within_two_percent(stub, tmp_path, lie):
    """TTFT, TPOT and TPS, whatever the server leaves out or lumps together.

    One undisturbed round is enough: other processes of this machine can only disturb.
    """
    url, errors = stub(**RATES, **LIES[lie]), []
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        log = compare_urls(folder, {"a": url}, 4, concurrency=(4,), rounds=3)
        for unit, truth in zip(log.units, really_sent(url, 3, 4), strict=True):
            found, first, last = measure([unit]), truth[:, 0], truth[:, -1]
            assert found.failures == {}
            wanted = {
                found.ttft.mean: first.mean(),
                found.tpot.mean: ((last - first) / 20).mean(),
                found.tps: 4 * 21 / (last.max() + 0.03 * (lie == "late usage")),
            }
            errors.append(max(abs(got / true - 1) for got, true in wanted.items()))
        if min(errors) < 0.02:
            return
    pytest.fail(f"relative errors {errors}")


def test_the_harness_adds_less_than_a_millisecond_at_concurrency_32(stub, tmp_path):
    """Some 32 streams at a time; added to every chunk, from the stub's socket to the record."""
    url, added = stub(ttft=0.3, tpot=0.05, tokens=5), []
    for attempt in range(4):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        log = compare_urls(folder, {"a": url}, 40, rate=64.0, rounds=5)
        for unit, truth in zip(log.units, really_sent(url, 5, 40), strict=True):
            heard = [one.times for one in sorted(unit.requests, key=number)]
            if all(len(times) == 5 for times in heard):  # a machine that stalls merges chunks
                added.append(float(np.median(np.array(heard) - truth)))  # its pauses aside
        if added and min(added) < 1e-3:
            return
    pytest.fail(f"seconds added to a chunk: {added}")


def number(record: Record) -> int:
    return int(record.prompt.removeprefix("q"))


def simulated_unit(arm: str, rng, prompts, factor: float, num: int) -> Unit:
    """One arm's block: each prompt has a speed of its own, each request some noise."""
    requests = []
    for i in range(num):
        own = prompts[i] * factor * rng.lognormal(0, 0.05)
        tokens = 40
        times = tuple((0.05 + own * np.arange(tokens)).tolist())
        told = (1,) * tokens
        requests.append(
            Record(f"{i}", 0.0, times, told, times[-1], 9, tokens, "length", None, "", 1.0,
                   None, None, None, None, None)
        )  # fmt: skip
    return Unit(arm, "d", 1, 0, sum(one.end for one in requests), tuple(requests), None)


@pytest.mark.parametrize("num", [4, 8, 24])
def test_intervals_cover_the_truth_in_at_least_93_of_100_runs(num):
    """Acceptance differs by prompt, so the gain does: the truth is the gain over all prompts."""
    rng, runs, covered = np.random.default_rng(0), 400, {"tpot": 0, "tps": 0}
    spread = 0.3  # lognormal sigma of a prompt's gain
    for seed in range(runs):
        slow = rng.lognormal(-4, 0.2, num)
        gain = rng.lognormal(0, spread, num)
        base = simulated_unit("base", rng, slow, 1.0, num)
        fast = simulated_unit("arm", rng, slow / gain, 1 / 1.5, num)
        found = compare(
            (measure([base]), [base]), (measure([fast]), [fast]), greedy=False, seed=seed
        )
        truth = 1.5 / np.exp(spread**2 / 2)  # E[slow] / E[slow / gain] * 1.5
        covered["tpot"] += found.tpot_gain.low <= truth <= found.tpot_gain.high
        mean = np.exp(-4 + 0.2**2 / 2) * 39
        whole = (0.05 + mean) / (0.05 + mean / truth)
        covered["tps"] += found.tps_gain.low <= whole <= found.tps_gain.high
    assert min(covered.values()) >= 0.93 * runs, covered


def test_pairing_by_prompt_narrows_the_interval():
    """Prompts differ ten times more than arms do: only pairs can tell."""
    rng = np.random.default_rng(1)
    slow = rng.lognormal(-4, 0.5, 20)
    base = simulated_unit("base", rng, slow, 1.0, 20)
    fast = simulated_unit("arm", rng, slow, 1 / 1.1, 20)
    pairs = [([a], [b]) for a, b in zip(base.requests, fast.requests, strict=True)]
    shuffled = [([a], [b]) for a, b in zip(base.requests, fast.requests[::-1], strict=True)]
    paired, unpaired = (tpot_gain(p, 0.95, 0) for p in (pairs, shuffled))
    assert paired.estimate == pytest.approx(unpaired.estimate)
    assert paired.high - paired.low < (unpaired.high - unpaired.low) / 3
    assert paired.low > 1.0


def test_a_faster_arm_has_the_gain_it_has(stub, tmp_path):
    """End to end over HTTP, prompts of different speeds: 2 times faster is +100%."""
    urls = {
        "plain": stub(ttft=0.05, tpot=0.02, tokens=11, vary=0.2),
        "fast": stub(ttft=0.05, tpot=0.01, tokens=11, vary=0.2),
    }
    log = compare_urls(tmp_path, urls, 10, concurrency=(5,))
    (arms,) = by_load(log.units).values()
    found = [(measure(units), units) for units in arms.values()]
    base, arm = sorted(found, key=lambda one: one[0].arm != "plain")
    gain = compare(base, arm, greedy=True)
    assert gain.tpot_gain.estimate == pytest.approx(2.0, rel=0.05)
    assert gain.equality.equal == gain.equality.compared == 10
    slowest = [tpot(one) for unit in base[1] for one in unit.requests if one.prompt == "q4"]
    assert slowest[0] == pytest.approx(0.02 * 1.8, rel=0.05)

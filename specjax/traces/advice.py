"""What to change on a server: K by batch size, only as far as measurements or a roofline know."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from specjax.readers.observation import Observation
from specjax.theory.intervals import Interval
from specjax.theory.modelled import ModelledServer, advise
from specjax.traces.causes import depth
from specjax.traces.gain import Gain

FIXED = np.array([[0.0], [0.25], [0.5]])  # shares of a round's extra time that K does not change
WORTH = 1.02  # a gain that K is changed for
PLAIN = Interval(1.0, 1.0, 1.0)  # plain decoding's speedup over itself


class ServerAdvice(NamedTuple):
    """K at the load that was measured and a schedule, None where not known, and sentences."""

    num_speculative_tokens: int | None
    schedule: list[list[int]] | None  # num_speculative_tokens_per_batch_size
    says: tuple[str, ...]
    method: str | None = None  # another that was measured to be faster at this load


def best_at_this_load(
    tokens: np.ndarray, speedups: Mapping[int, Interval], used: int
) -> tuple[int, Interval]:
    """Return the best K, up to the largest measured, at one load, and its gain over ``used``.

    What a round takes beyond a plain step is known at 0 and at each measured K. Between two of them
    it is linear in K, but for a share within ``FIXED`` that comes with the first token beyond. A K
    that was not measured is chosen only if at all of these shares it is worth a change from the
    best of the measured ones, as that one is chosen only if it is worth a change from the K in use.

    Args:
        tokens: [K + 1], those of a round with 0 .. K drafted, K the largest measured.
        speedups: over plain decoding, by measured K.
        used: the K in use, one of them.
    """
    depths = np.arange(len(tokens))
    costs, before, paid = np.ones((len(FIXED), len(tokens))), 0, 1.0
    for k in sorted(speedups):
        whole = max(tokens[k] / float(speedups[k].estimate), 1.0)
        within = (depths > before) & (depths <= k)
        part = FIXED + (1.0 - FIXED) * (depths[within] - before) / (k - before)
        costs[:, within] = paid + (whole - paid) * part
        before, paid = k, whole
    gains = tokens / costs / float(speedups[used].estimate)
    for k, own in {0: PLAIN, **speedups}.items():
        gains[:, k] = float(own.estimate / speedups[used].estimate)
    least, known = gains.min(axis=0), np.isin(depths, (0, *speedups))
    best = used
    for group in known, ~known:
        rival = int(np.where(group, least, 0.0).argmax())
        best = rival if group[rival] and least[rival] > WORTH * least[best] else best
    if best == used:
        return used, PLAIN
    if best in (0, *speedups):
        return best, ratio(speedups.get(best, PLAIN), speedups[used])
    return best, Interval(float(gains[1, best]), *(float(f(gains[:, best])) for f in (min, max)))


def ratio(one: Interval, other: Interval) -> Interval:
    """Return the ratio of two measured speedups, with bounds unless one has none."""
    middle = float(one.estimate / other.estimate)
    spread = math.hypot(*(math.log(each.high / each.estimate) for each in (one, other)))
    return Interval(middle, middle * math.exp(-spread), middle * math.exp(spread))


def advise_server(
    seen: Observation,
    gain: Gain,
    server: ModelledServer | None,
    others: Sequence[tuple[Observation, Gain]] = (),
    methods: Mapping[str, tuple[Observation, Gain]] = MappingProxyType({}),
) -> ServerAdvice:
    """Return what is known about K at this load and others, and about other methods at this load.

    At this load measured speedups decide; elsewhere the roofline, where K changes only if the
    change pays at every bound of its assumptions. ``others`` are the same load at other K,
    ``methods`` with other methods, by name.
    """
    says, here, more = [], None, PLAIN
    k, rates = depth(seen), seen.acceptance_per_position
    known = max([rates or (), *(one.acceptance_per_position or () for one, _ in others)], key=len)
    share = 1.0  # of the rounds that had a draft
    if gain.tokens_per_round is not None and seen.mean_acceptance_length:
        accepted = float(seen.mean_acceptance_length) - 1.0
        share = (gain.tokens_per_round - 1.0) / accepted if accepted > 0 else 1.0

    def tokens(n: int) -> float:
        return 1.0 + share * float(sum(known[:n]))

    if gain.speedup is not None and k is not None and rates is not None:
        speedups = by_depth(others) | {k: gain.speedup}
        curve = np.array([tokens(n) for n in range(len(known) + 1)])
        here, more = best_at_this_load(curve, speedups, k)
        says.append(at_this_load(here, k, more, measured=here in speedups))
    elif gain.speedup is not None and gain.speedup.high < 1:
        more = ratio(PLAIN, gain.speedup)
        says.append(at_this_load(0, k, more))
    method = None
    if methods and gain.speedup is not None:
        method, than = fastest(
            {name: known_speedup(*one) for name, one in methods.items()}, gain.speedup
        )
        if than.estimate > WORTH * more.estimate:
            says.append(
                f"At this load {method} is measured {than.estimate:.2f}x ({than.low:.2f}x to "
                f"{than.high:.2f}x) of this method{not_sure(than)}: use it."
            )
        else:
            method = None
    if server is None or k is None or rates is None:
        missing = (
            "no --hardware and --model"
            if server is None
            else f"acceptance by position is unknown ({seen.why('acceptance_per_position')})"
        )
        says.append(
            f"No schedule: {missing}. Measure K and plain decoding at batch sizes up to your "
            "largest load: specjax ab run --concurrency 1,8,32,128 --arm plain=url:... --arm ..."
        )
        return ServerAdvice(here, None, tuple(says), method)
    found = advise(server, tokens, k)
    for (first, last, best), one in zip(found.schedule, found.gains, strict=True):
        which = f"batch {first} to {last}: K = {best}"
        if best == k:
            says.append(f"{which}, as now: no other K is better at every bound.")
        else:
            says.append(f"{which}, {one.low:.2f}x to {one.high:.2f}x of K = {k} at batch {last}.")
    says.append(
        f"Modelled up to batch {found.schedule[-1][1]}, which fits into memory; nothing is said "
        f"of K > {k}, whose acceptance was not seen."
    )
    return ServerAdvice(here, found.schedule, tuple(says), method)


def by_depth(others: Sequence[tuple[Observation, Gain]]) -> dict[int, Interval]:
    """Return the speedups of the same load by K.

    Raises ValueError if one has no acceptance by position or no speedup, or its K is there twice.
    """
    found: dict[int, Interval] = {}
    for seen, gain in others:
        if seen.acceptance_per_position is None:
            raise ValueError(
                f"{seen.source} is to be another K, but its acceptance by position is unknown: "
                f"{seen.why('acceptance_per_position')}."
            )
        speedup, k = known_speedup(seen, gain), len(seen.acceptance_per_position)
        if k in found:
            raise ValueError(f"{seen.source} has K = {k}, and so has another of --also.")
        found[k] = speedup
    return found


def known_speedup(seen: Observation, gain: Gain) -> Interval:
    """Return the speedup. Raises ValueError if it is not known."""
    if gain.speedup is None:
        raise ValueError(f"{seen.source}: its speedup is unknown, {gain.reasons['speedup']}.")
    return gain.speedup


def fastest(speedups: Mapping[str, Interval], used: Interval) -> tuple[str, Interval]:
    """Return the fastest of some methods, and its speedup over the one in use."""
    name = max(speedups, key=lambda one: speedups[one].estimate)
    return name, ratio(speedups[name], used)


def not_sure(more: Interval) -> str:
    """Return the end of a sentence about a gain that may be none."""
    return ", not told apart from it by so few requests" if more.low < 1.0 else ""


def at_this_load(best: int, k: int | None, more: Interval, *, measured: bool = False) -> str:
    """Return the advice at the measured load in a sentence; ``more`` is its gain over K."""
    if best == k:
        return f"At this load: K = {k}, as now; no other K up to the largest measured is better."
    gain = f"{more.low:.2f}x to {more.high:.2f}x"
    sure = not_sure(more)
    if best == 0:
        how = gain if more.low == more.low else f"{more.estimate:.2f}x"
        return (
            f"At this load plain decoding (K = 0) is measured to be faster, {how} of this K{sure}: "
            "switch speculation off here, or draft less."
        )
    if measured:
        return f"At this load: K = {best}, measured {more.estimate:.2f}x ({gain}) of K = {k}{sure}."
    return (
        f"At this load: K = {best}, {gain} of K = {k}, if up to {FIXED.max():.0%} of a round's "
        "extra time does not depend on K. Measure it."
    )

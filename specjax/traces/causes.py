"""Why a server is as fast as it is: each cause with a number, its bounds, and how it is known.

Costs are in plain steps, as in ``explain``: a round costs 1 + drafting + verifying beyond one token
+ overhead, and pays if it brings more tokens than that.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from specjax.readers.observation import Observation
from specjax.theory.intervals import Interval
from specjax.theory.modelled import ASSUMED, ModelledServer, spread
from specjax.theory.usual import METHODS, usual_length, usual_rate
from specjax.traces.gain import Gain

MEASURED, MODELLED, UNKNOWN = "measured", "modelled", "unknown"
NO_ROOFLINE = "pass --hardware, --model CONFIG.json and --draft CONFIG.json for a roofline"
NO_CONTEXT = "no context (pass --context)."
NO_BASELINE = "pass --baseline, the same load without speculation"


class Cause(NamedTuple):
    """One possible cause."""

    name: str
    value: Interval | None
    unit: str
    known: str  # MEASURED, MODELLED or UNKNOWN
    says: str


def find_causes(
    seen: Observation,
    gain: Gain,
    baseline: Observation | None = None,
    server: ModelledServer | None = None,
    method: str | None = None,
) -> tuple[Cause, ...]:
    """Return acceptance, drafting, verifying, overhead, batch, memory and queueing.

    ``method``, one of ``usual.METHODS``: acceptance is held against what it usually has. Raises
    ValueError for another.
    """
    if method is not None and method not in METHODS:
        raise ValueError(
            f"nothing is published here of method {method!r}, only of {', '.join(METHODS)}"
        )
    k = depth(seen)
    costs = None
    if server is not None and k and seen.running:
        costs = server.costs(max(seen.running, 1.0), k)
    whole, known = round_cost(seen, gain, baseline, server)
    return (
        acceptance_cause(seen, gain, whole, method),
        cost_cause("drafting", None if costs is None else costs["draft"], whole, seen),
        cost_cause("verifying", None if costs is None else costs["verify"], whole, seen),
        overhead_cause(whole, known, None if costs is None else costs["both"]),
        batch_cause(seen, server, k),
        memory_cause(seen, server),
        queue_cause(seen),
    )


def depth(seen: Observation) -> int | None:
    """Return K, as far as it shows; None if the source does not say."""
    if seen.acceptance_per_position is not None:
        return len(seen.acceptance_per_position)
    if seen.num_drafts and seen.num_draft_tokens:
        return max(round(seen.num_draft_tokens / seen.num_drafts), 1)
    return None


def round_cost(
    seen: Observation, gain: Gain, baseline: Observation | None, server: ModelledServer | None
) -> tuple[Interval | None, str]:
    """Return what a round costs in plain steps, and how that is known."""
    tokens = gain.tokens_per_round
    if gain.speedup is not None and tokens is not None:
        middle, low, high = (float(one) for one in gain.speedup)
        return Interval(tokens / middle, tokens / high, tokens / low), MEASURED
    if server is None or gain.round_s is None or not seen.running:
        return None, UNKNOWN
    plain = server.plain_s(max(seen.running, 1.0))
    bounds = [gain.round_s / float(one) for one in (plain.low, plain.high)]
    return spread(bounds), MODELLED


def acceptance_cause(
    seen: Observation, gain: Gain, whole: Interval | None, method: str | None = None
) -> Cause:
    """Return what share of the drafted tokens was accepted, by position and beside the usual."""
    if gain.rate is None:
        length = seen.mean_acceptance_length
        if length is None:
            return Cause("acceptance", None, "ratio", UNKNOWN, f"{seen.why('acceptance_rate')}.")
        says = f"{length:.2f} tokens per round; the rate is unknown: {seen.why('acceptance_rate')}."
        return Cause("acceptance", Interval(length, length, length), "tok", MEASURED, says)
    rate = float(gain.rate.estimate)
    says = f"{1 - rate:.0%} of the drafted tokens are rejected."
    rates = seen.acceptance_per_position
    if rates is not None and rates[0] > 0:
        given = [rates[0], *(b / a for a, b in itertools.pairwise(rates) if a > 0)]
        chances = ", ".join(f"{one:.2f}" for one in given)
        says += f" Chance by position, those before it accepted: {chances}"
        if len(given) > 2 and given[-1] < 0.8 * given[0]:
            says += ": later ones are much worse, so a smaller K loses little."
        else:
            says += "."
    if gain.tokens_per_round is not None:
        says += f" A round brings {gain.tokens_per_round:.2f} tokens"
        says += f" and costs {shown(whole)} plain steps." if whole is not None else "."
    if method is not None:
        says += against_usual(seen, method, rate)
    if rate < 0.15:
        says += " That is chance level: look at the draft's tokenizer, chat template and weights."
    return Cause("acceptance", gain.rate, "ratio", MEASURED, says)


def against_usual(seen: Observation, method: str, rate: float) -> str:
    """Return acceptance beside what was published of a method, in a sentence."""
    rates = seen.acceptance_per_position
    found = None if rates is None else usual_length(method, len(rates))
    if found is not None and rates is not None:
        k, usual = found
        own, what = 1.0 + float(sum(rates[:k])), f"tokens per round at K = {k}"
        low, high, here = f"{usual.least:.2f}", f"{usual.most:.2f}", f"{own:.2f}"
    else:
        usual, own, what = usual_rate(method), rate, "of the drafted tokens accepted"
        if usual is None:
            return f" What {method} usually has at this K is not known here."
        low, high, here = f"{usual.least:.0%}", f"{usual.most:.0%}", f"{own:.0%}"
    between = f"{low} ({usual.least_text})"
    between += f" to {high} ({usual.most_text})" if usual.least < usual.most else ""
    word = "less than" if own < usual.least else "more than" if own > usual.most else "as"
    return (
        f" Elsewhere {method} had {between} {what}: here {here}, {word} usual "
        f"[{'; '.join(usual.sources)}]."
    )


def cost_cause(
    name: str, cost: Interval | None, whole: Interval | None, seen: Observation
) -> Cause:
    """Return the cost of drafting or of verifying, which no engine reports."""
    if cost is None:
        missing = NO_ROOFLINE
        if depth(seen) is None or not seen.running:
            missing = "K or the number of running requests is unknown"
        says = f"{seen.engine} does not report it; {missing}."
        return Cause(name, None, "plain steps", UNKNOWN, says)
    says = f"{shown(cost)} plain steps of a round"
    if whole is not None and whole.estimate > 1:
        share = float(cost.estimate / (whole.estimate - 1.0))
        says += f", {words(share)} what it costs beyond one"
    if name == "verifying" and cost.high < 0.05:
        says += ": the target is bound by memory here, K + 1 tokens take as long as one"
    return Cause(name, cost, "plain steps", MODELLED, f"{says}.")


def words(share: float) -> str:
    """Return how large a share of a whole is."""
    if share > 0.5:
        return "most of"
    return "a good part of" if share > 0.25 else "little of"


def overhead_cause(whole: Interval | None, known: str, both: Interval | None) -> Cause:
    """Return what a round costs beyond its models."""
    if whole is None or both is None:
        missing = NO_BASELINE if whole is None else NO_ROOFLINE
        says = f"what a round costs beyond its models is unknown; {missing}."
        return Cause("overhead", None, "plain steps", UNKNOWN, says)
    low, high = whole.low - 1.0 - both.high, whole.high - 1.0 - both.low
    found = Interval((low + high) / 2, low, high)
    if low > 0.1:
        says = (
            f"{shown(found)} plain steps are neither model's: host, sampling, scheduling or "
            "prefills between rounds; check that graphs are on."
        )
    else:
        says = f"{shown(found)} plain steps: not told apart from nothing."
    return Cause("overhead", found, "plain steps", MODELLED, says + f" ({known} round)")


def batch_cause(seen: Observation, server: ModelledServer | None, k: int | None) -> Cause:
    """Return how many requests are verified together, and whether that is many."""
    if seen.running is None:
        return Cause("batch", None, "requests", UNKNOWN, f"{seen.why('running')}.")
    rows = Interval(float(seen.running), float("nan"), float("nan"))
    says = f"{seen.running:.3g} requests side by side."
    if server is None or k is None:
        return Cause("batch", rows, "requests", MEASURED, says)
    bound = server.bound_by_compute(k)
    if bound is None:
        says += f" Verifying {k + 1} tokens per row stays bound by memory at any batch (roofline)."
    else:
        where = "above" if seen.running >= bound else "below"
        says += (
            f" Verifying {k + 1} tokens per row is bound by compute from {bound} rows on (roofline "
            f"at peak): this server is {where} it."
        )
    return Cause("batch", rows, "requests", MEASURED, says)


def memory_cause(seen: Observation, server: ModelledServer | None) -> Cause:
    """Return how full the KV cache is, and whether requests were thrown out of it."""
    parts = []
    if seen.preemptions:
        parts.append(
            f"{seen.preemptions:g} requests were preempted and computed again: lower the load or "
            "the draft's memory."
        )
    elif seen.preemptions is not None:
        parts.append("No request was preempted.")
    if server is not None and server.context > 0:
        rows = server.most_rows()
        parts.append(f"Beside the weights {rows} rows of {server.context:.0f} tokens fit.")
    if seen.kv_cache_usage is None:
        says = " ".join(parts) or f"{seen.why('kv_cache_usage')}."
        return Cause("memory", None, "ratio", MEASURED if parts else UNKNOWN, says)
    usage = float(seen.kv_cache_usage)
    says = " ".join([f"{usage:.0%} of the KV cache in use.", *parts])
    return Cause("memory", Interval(usage, usage, usage), "ratio", MEASURED, says)


def queue_cause(seen: Observation) -> Cause:
    """Return how long requests wait before they are read."""
    if seen.queue is None:
        if seen.waiting is None:
            return Cause("queueing", None, "s", UNKNOWN, f"{seen.why('queue')}.")
        says = f"{seen.waiting:.3g} requests wait; for how long is unknown."
        return Cause("queueing", None, "s", UNKNOWN, says)
    wait = float(seen.queue.mean)
    says = f"A request waits {1e3 * wait:.3g} ms before it is read"
    if seen.e2e is not None and seen.e2e.mean:
        share = wait / float(seen.e2e.mean)
        says += f", {share:.0%} of its time"
        if share > 0.25:
            says += ": the server is saturated, and a higher throughput counts more than TPOT"
    return Cause("queueing", Interval(wait, wait, wait), "s", MEASURED, f"{says}.")


def shown(cost: Interval) -> str:
    """Return a cost with its bounds."""
    middle, low, high = (float(one) for one in cost)
    if low != low or high - low < 0.005:
        return f"{middle:.2f}"
    return f"{low:.2f} to {high:.2f}"


def assumptions(server: ModelledServer) -> Sequence[str]:
    """Return what the modelled numbers rest on, as sentences."""
    draft = "free" if server.draft is None else server.draft.name
    return (
        f"Modelled: {ASSUMED}; {server.num_devices} x {server.hardware.name} "
        f"({server.hardware.assumption}), target {server.target.name} of "
        f"{server.target.num_params / 1e9:.3g}B parameters, draft {draft}, "
        + (f"{server.context:.0f} tokens of context." if server.context else NO_CONTEXT),
    )

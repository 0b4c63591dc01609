"""The part of ``specjax explain`` about a running server: what was read, as a table and as JSON."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from specjax.cli.modelled import read_modelled

if TYPE_CHECKING:
    from specjax.readers.observation import Latency, Observation
    from specjax.theory.intervals import Interval
    from specjax.theory.modelled import ModelledServer
    from specjax.traces.causes import Cause
    from specjax.traces.gain import Gain

COUNTS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
LATENCIES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "gap between chunks (ITL)",
    "e2e": "end to end",
    "queue": "in the queue",
}


def read_server(
    metrics: str | None,
    metrics_before: Path | None,
    log: str | None,
    result: Path | None,
    run: int | None,
    seconds: float | None,
    served_model: str | None,
) -> "Observation":
    """Return what the one source given says. Raises ValueError unless it is one."""
    from specjax.readers.anything import read_log_file
    from specjax.readers.metrics import read_metrics
    from specjax.readers.results import read_result

    if sum(one is not None for one in (metrics, log, result)) != 1:
        raise ValueError("a server is explained from one of --metrics, --log and --result.")
    if metrics_before is not None and metrics is None:
        raise ValueError("--metrics-before is the earlier scrape of --metrics: pass that too.")
    if run is not None and result is None:
        raise ValueError("--run chooses among the runs of --result: pass that too.")
    if metrics is not None:
        return read_metrics(metrics, metrics_before, seconds, served_model)
    if log is not None:
        return read_log_file(log)
    assert result is not None
    return read_result(result, run)


def model_server(
    seen: "Observation",
    hardware: str | None,
    model: Path | None,
    draft: Path | None,
    context: float | None,
) -> "ModelledServer | None":
    """Return the roofline that the options describe; None without them.

    Raises ValueError if one of --hardware and --model is missing, or for unknown values.
    """
    if hardware is None or model is None:
        if hardware is not None or model is not None or draft is not None:
            raise ValueError("a roofline needs both --hardware and --model CONFIG.json.")
        return None
    context = context_of(seen) if context is None else context
    return read_modelled(model, hardware, draft, context)


def context_of(seen: "Observation") -> float:
    """Return the mean tokens of context while a request decodes; 0 if the source does not say."""
    if seen.num_requests and seen.prompt_tokens is not None and seen.generation_tokens is not None:
        return float((seen.prompt_tokens + seen.generation_tokens / 2) / seen.num_requests)
    return 0.0


def explain_server(
    seen: "Observation",
    baseline: str | None,
    also: Sequence[str],
    seconds: float | None,
    json_file: Path | None,
    server: "ModelledServer | None",
    method: str | None = None,
    other_methods: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Print what was read and what follows from it; write all of it as JSON.

    ``also`` are sources of the same load at other K, ``other_methods`` with other methods, by name;
    ``method`` is this one's. Raises ValueError if there is no baseline for them, one of them has no
    speedup over it, or nothing is published of ``method``.
    """
    from specjax.host.files import write_json
    from specjax.readers.anything import read_anything
    from specjax.traces.advice import advise_server
    from specjax.traces.causes import assumptions, find_causes
    from specjax.traces.gain import find_gain

    if (also or other_methods) and baseline is None:
        raise ValueError("--also and --other-method are compared with --baseline: pass that too.")
    without = None if baseline is None else read_anything(baseline, seconds)
    gain = find_gain(seen, without)
    read = [read_anything(one, seconds) for one in also]
    others = [(one, find_gain(one, without)) for one in read]
    methods = {name: read_anything(one, seconds) for name, one in other_methods.items()}
    causes = find_causes(seen, gain, without, server, method)
    advice = advise_server(
        seen,
        gain,
        server,
        others,
        {name: (one, find_gain(one, without)) for name, one in methods.items()},
    )
    console = Console(highlight=False)
    lines = [headline(seen), *([] if without is None else [f"Baseline: {headline(without)}"])]
    lines += [f"Another K: {headline(one)}" for one in read]
    lines += [f"With {name}: {headline(one)}" for name, one in methods.items()]
    lines += [*unread_lines(seen), verdict(gain)]
    lines += [] if server is None else assumptions(server)
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
    console.print(server_table(seen, gain))
    console.print(cause_table(causes))
    for line in advice.says:
        console.print(line, soft_wrap=True, markup=False)
    if json_file is not None:
        found = to_json(seen, gain)
        found["causes"] = [
            {**one._asdict(), "value": None if one.value is None else clean(one.value)}
            for one in causes
        ]
        found["best_num_speculative_tokens"] = advice.num_speculative_tokens
        found["best_method"] = advice.method
        found["schedule"] = advice.schedule
        found["advice"] = list(advice.says)
        if advice.num_speculative_tokens is None:
            found["reasons"]["best_num_speculative_tokens"] = (
                "it needs the speedup and the acceptance by position"
            )
        if advice.method is None:
            found["reasons"]["best_method"] = "no --other-method is measured to be faster"
        if advice.schedule is None:
            found["reasons"]["schedule"] = advice.says[-1]
        write_json(json_file, found)
        console.print(f"wrote {json_file}", markup=False)


def clean(interval: "Interval") -> list[float | None]:
    """Return an interval as JSON values; NaN becomes null."""
    return [None if one != one else float(one) for one in interval]


def cause_table(causes: "Sequence[Cause]") -> Table:
    """Return a table of the causes."""
    table = Table("cause", "value", "known", "", title="Why")
    for one in causes:
        value = "unknown"
        if one.value is not None:
            middle, low, high = (float(x) for x in one.value)
            bounds = f" ({low:.3g} .. {high:.3g})" if low == low and high > low else ""
            value = f"{middle:.3g} {one.unit}{bounds}"
        table.add_row(one.name, value, one.known, one.says)
    return table


def verdict(gain: "Gain") -> str:
    """Return the speedup in a sentence, or why it is not known."""
    if gain.speedup is None:
        return f"Speedup: unknown; {gain.reasons['speedup']}."
    middle, low, high = (float(one) for one in gain.speedup)
    interval = f" ({low:.2f}x to {high:.2f}x)" if low == low else ""
    if low == low and low < 1 < high:
        return f"Not told apart from plain decoding: {middle:.2f}x{interval}."
    return f"{'Faster' if middle >= 1 else 'Slower'} than plain decoding: {middle:.2f}x{interval}."


def headline(seen: "Observation") -> str:
    """Return what was read, from when to when."""
    words = [f"Read {seen.source}"]
    if seen.model is not None:
        words.append(f"model {seen.model}")
    if seen.start is not None and seen.end is not None:
        words.append(f"{seen.start:%m-%d %H:%M:%S} to {seen.end:%m-%d %H:%M:%S}")
    elif seen.start is not None:
        words.append(f"since its start at {seen.start:%m-%d %H:%M:%S}")
    if seen.seconds is not None:
        words.append(f"{seen.seconds:.4g} s")
    if seen.generation_tokens is not None:
        words.append(f"{seen.generation_tokens:,.0f} tokens generated")
    return ", ".join(words) + "."


def unread_lines(seen: "Observation") -> list[str]:
    """Return a line per kind of lines that was not read."""
    return [f"Not read: {number:,} x {kind}" for kind, number in sorted(seen.unread.items())]


def server_table(seen: "Observation", gain: "Gain") -> Table:
    """Return a table of what the server did; "unknown" says why in the JSON file."""
    table = Table("", "value", "95% interval", "known from", title=f"{seen.engine}")

    def row(name: str, field: str, value: str | None, low_high: str = "") -> None:
        how = seen.derived.get(field, "measured") if value is not None else seen.why(field)
        table.add_row(name, "unknown" if value is None else value, low_high, how)

    for name in COUNTS:
        value = getattr(seen, name)
        row(name, name, None if value is None else f"{value:,.0f}")
    for name, found in (("acceptance rate", gain.rate), ("mean acceptance length", gain.length)):
        field = name.replace(" ", "_")
        shown = None if found is None else f"{found.estimate:.3f}"
        known = found is not None and found.low == found.low
        row(name, field, shown, f"{found.low:.3f} .. {found.high:.3f}" if known and found else "")
    rates = seen.acceptance_per_position
    shares = None if rates is None else ", ".join(f"{one:.3f}" for one in rates)
    row("acceptance by position", "acceptance_per_position", shares)
    for name, field in (("running requests", "running"), ("waiting requests", "waiting")):
        value = getattr(seen, field)
        row(name, field, None if value is None else f"{value:.3g}")
    for field, name in LATENCIES.items():
        row(name, field, latency(getattr(seen, field)))
    throughput = seen.generation_throughput
    row(
        "throughput",
        "generation_throughput",
        None if throughput is None else f"{throughput:.4g} tok/s",
    )
    usage = seen.kv_cache_usage
    row("KV cache in use", "kv_cache_usage", None if usage is None else f"{usage:.1%}")
    row("preemptions", "preemptions", None if seen.preemptions is None else f"{seen.preemptions:g}")
    return table


def latency(found: "Latency | None") -> str | None:
    """Return a latency's statistics in words."""
    if found is None:
        return None
    tails = zip(("p50", "p90", "p99"), found[1:4], strict=True)
    known = [f"{name} {shown(value)}" for name, value in tails if value is not None]
    return f"mean {shown(found.mean)}" + (f" ({', '.join(known)})" if known else "")


def shown(seconds: float) -> str:
    """Return a time with its unit."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def to_json(seen: "Observation", gain: "Gain") -> dict[str, Any]:
    """Return the fields for --json; null has its reason under ``reasons``."""
    names = (
        *COUNTS,
        *("acceptance_rate", "mean_acceptance_length", "acceptance_per_position", "running"),
        *("waiting", "num_requests", "prompt_tokens", "generation_tokens", "num_steps"),
        *("generation_throughput", "preemptions", "kv_cache_usage", "seconds"),
    )
    found: dict[str, Any] = {name: getattr(seen, name) for name in names}
    for name in LATENCIES:
        value = getattr(seen, name)
        found[f"{name}_s"] = None if value is None else value.mean
        found[name] = None if value is None else value._asdict()
    reasons = {name: seen.why(name) for name in (*names, *LATENCIES) if getattr(seen, name) is None}
    for name in LATENCIES:
        if name in reasons:
            reasons[f"{name}_s"] = reasons[name]
    return {
        "read": headline(seen),
        "engine": seen.engine,
        "model": seen.model,
        "start": None if seen.start is None else seen.start.isoformat(),
        "end": None if seen.end is None else seen.end.isoformat(),
        **found,
        **gain.to_json(),
        "reasons": {**reasons, **gain.reasons},
        "derived": dict(seen.derived),
        "unread": dict(seen.unread),
    }

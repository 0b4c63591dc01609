"""Reads a server's /metrics: which engine's they are, and the difference of two scrapes."""

import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from specjax.readers import sglang_metrics, tgi_metrics, vllm_metrics
from specjax.readers.observation import Count, Observation, Part
from specjax.readers.scrape import PROCESS_START, Change, Scrape, changes, check_order, parse_scrape

READERS: dict[str, Callable[[Change], Observation]] = {
    vllm_metrics.OWNED: vllm_metrics.read_vllm,
    sglang_metrics.OWNED: sglang_metrics.read_sglang,
    tgi_metrics.OWNED: tgi_metrics.read_tgi,
}
TIMEOUT = 10.0  # seconds
POLLS = 10  # scrapes of a window, so that acceptance has parts and gauges a mean
MOST_BYTES = 64 * 2**20


def is_url(source: str) -> bool:
    """Return whether a source is an address."""
    return source.startswith(("http://", "https://"))


def fetch(url: str) -> Scrape:
    """Return a scrape of a URL; ``/metrics`` is added to an address without a path.

    Raises:
        OSError: the server does not answer.
        ValueError: what it answers is not Prometheus's format.
    """
    whole = url if url.rstrip("/").count("/") > 2 else url.rstrip("/") + "/metrics"
    return parse_scrape(fetch_text(whole), whole, datetime.now().astimezone())


def fetch_text(url: str) -> str:
    """Return what a URL answers. Raises OSError if the server does not answer."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            return answer.read(MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        why = getattr(error, "reason", error)
        raise OSError(f"{url} does not answer: {why}. Is the server up?") from None


def read_scrape(path: Path) -> Scrape:
    """Return a scrape that was saved. Raises OSError or ValueError, naming the file."""
    try:
        return parse_scrape(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text: save what a server answers at /metrics.") from None


def read_metrics(
    source: str,
    before: Path | None = None,
    seconds: Count | None = None,
    served_model: str | None = None,
) -> Observation:
    """Return what a server did between two scrapes.

    Args:
        source: a URL, scraped now and ``seconds`` later (10), or the file of the later scrape.
        before: the file of an earlier scrape; none: all since the server's start.
        seconds: between two files; none: not known, so no throughput.
        served_model: which of several models at one endpoint.

    Raises:
        ValueError: no scrape, no known engine, several models, a wrong order, a restart between
            the two, or nothing generated.
        OSError: no such file, or no answer.
    """
    if is_url(source):
        earlier = [] if before is None else [read_scrape(before)]
        scrapes = [*earlier, *poll(source, 10.0 if seconds is None else seconds)]
        if earlier:
            seconds = None
    else:
        scrapes = [*([] if before is None else [read_scrape(before)]), read_scrape(Path(source))]
    return observe([of_one_model(one, served_model) for one in scrapes], seconds)


def poll(url: str, seconds: Count) -> list[Scrape]:
    """Return scrapes over some seconds, evenly spaced."""
    begin, found = time.monotonic(), [fetch(url)]
    for number in range(1, POLLS + 1):
        time.sleep(max(begin + seconds * number / POLLS - time.monotonic(), 0.0))
        found.append(fetch(url))
    return found


def of_one_model(scrape: Scrape, wanted: str | None) -> Scrape:
    """Return the scrape of one model. Raises ValueError if there are several, or not this one."""
    names = scrape.labelled("model_name")
    if wanted is None:
        if len(names) > 1:
            raise ValueError(
                f"{scrape.source} has {len(names)} models, {', '.join(sorted(names))}: choose one "
                "with --served-model."
            )
        return scrape
    if wanted not in names:
        raise ValueError(
            f"{scrape.source} has no model {wanted}, but {', '.join(sorted(names)) or 'no names'}"
        )
    return scrape.where(lambda labels: dict(labels).get("model_name", wanted) == wanted)


def observe(scrapes: Sequence[Scrape], seconds: Count | None = None) -> Observation:
    """Return what happened between the first and the last of some scrapes of one server."""
    first, last = (scrapes[0] if len(scrapes) > 1 else None), scrapes[-1]
    engine = next((name for name in READERS if owns(last, name)), None)
    if engine is None:
        some = ", ".join(sorted(last.samples)[:3])
        raise ValueError(
            f"{last.source} holds no metrics of vLLM, SGLang or TGI, but {some}, ...: is it "
            "another server's?"
        )
    for one in changes(list(scrapes)):
        if one.before is not None:
            check_order(one.before, one.after)
    found = READERS[engine](Change(first, last))
    if not found.generation_tokens:
        raise ValueError(
            f"nothing was generated between {first.source if first else 'the start'} and "
            f"{last.source}: scrape while the server works, or further apart."
        )
    return timed(found, READERS[engine], scrapes, seconds)


def timed(
    found: Observation,
    read: Callable[[Change], Observation],
    scrapes: Sequence[Scrape],
    seconds: Count | None,
) -> Observation:
    """Return an observation with its times, its parts and the mean of its gauges."""
    first, last = scrapes[0], scrapes[-1]
    start, end = (first.time if len(scrapes) > 1 else None), last.time
    if start is not None and end is not None:
        seconds = (end - start).total_seconds()
    began = last.total(PROCESS_START)
    if len(scrapes) == 1 and began is not None:
        start = datetime.fromtimestamp(began).astimezone()
    reasons = dict(found.reasons)
    if seconds is None:
        reasons |= dict.fromkeys(
            ("seconds", "generation_throughput"), "a file has no time: pass --seconds"
        )
    each = [read(one) for one in changes(list(scrapes))]
    parts = [
        Part(own.num_drafts, own.num_draft_tokens, own.num_accepted_tokens)
        for own in each
        if own.num_drafts and own.num_draft_tokens and own.num_accepted_tokens is not None
    ]
    seen = [one.running for one in each if one.running is not None]
    running = sum(seen) / len(seen) if seen and "running" not in found.derived else found.running
    throughput = found.generation_tokens / seconds if seconds and found.generation_tokens else None
    return replace(
        found,
        model=next(iter(last.labelled("model_name")), None),
        start=start,
        end=end,
        seconds=seconds,
        generation_throughput=throughput,
        parts=tuple(parts),
        running=running,
        reasons=reasons,
    )


def owns(scrape: Scrape, prefix: str) -> bool:
    """Return whether a scrape has an engine's metrics."""
    return any(name.startswith(prefix) for name in scrape.samples)

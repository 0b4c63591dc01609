"""A scrape of /metrics in Prometheus's text format, and what changed between two of them."""

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

from specjax.readers.observation import Count, Latency

MISSING = "reading /metrics needs prometheus-client: pip install 'specjax[serve]'"
PROCESS_START = "process_start_time_seconds"
Labels = frozenset[tuple[str, str]]


class Scrape(NamedTuple):
    """The samples of one scrape, by name and labels, and where they are from."""

    source: str
    samples: dict[str, dict[Labels, float]]
    time: datetime | None = None  # None: a file does not say

    def total(self, name: str) -> float | None:
        """Return the sum of a metric over its labels; None if it is not there."""
        values = self.samples.get(name)
        return None if not values else sum(values.values())

    def labelled(self, label: str) -> set[str]:
        """Return the values that a label has anywhere."""
        each = (labels for values in self.samples.values() for labels in values)
        return {value for labels in each for key, value in labels if key == label}

    def where(self, kept: Callable[[Labels], bool]) -> "Scrape":
        """Return the scrape with only the series whose labels are ``kept``."""
        left = {
            name: {labels: value for labels, value in values.items() if kept(labels)}
            for name, values in self.samples.items()
        }
        return self._replace(samples={name: values for name, values in left.items() if values})


def parse_scrape(text: str, source: str, time: datetime | None = None) -> Scrape:
    """Return the samples in a text.

    Raises:
        ValueError: it is not Prometheus's format, or holds no sample.
        ImportError: prometheus-client is not installed.
    """
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        raise ImportError(MISSING) from None
    samples: dict[str, dict[Labels, float]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                named = samples.setdefault(sample.name, {})
                named[frozenset(sample.labels.items())] = float(sample.value)
    except (ValueError, KeyError, IndexError) as error:
        begin = next((line for line in text.splitlines() if line.strip()), "")
        raise ValueError(
            f"{source} is not Prometheus's text format ({error}); it begins with {begin[:60]!r}. "
            "Save what a server answers at /metrics."
        ) from None
    if not samples:
        raise ValueError(f"{source} holds no metrics: save what a server answers at /metrics.")
    return Scrape(source, samples, time)


class Change(NamedTuple):
    """Two scrapes of one server, the earlier one None for all since its start."""

    before: Scrape | None
    after: Scrape

    def increase(self, *names: str) -> float | None:
        """Return by how much the first counter of ``names`` that is there has grown."""
        for name in names:
            if (now := self.after.total(name)) is not None:
                then = None if self.before is None else self.before.total(name)
                return now - (then or 0.0)
        return None

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Return the increase of a counter for each value of a label."""
        grown: dict[str, float] = {}
        for sign, scrape in ((1.0, self.after), (-1.0, self.before)):
            for labels, value in (scrape.samples.get(name, {}) if scrape else {}).items():
                key = dict(labels).get(label, "")
                grown[key] = grown.get(key, 0.0) + sign * value
        return grown

    def gauge(self, *names: str) -> float | None:
        """Return the mean of a gauge over the scrapes."""
        seen = [
            value
            for scrape in (self.before, self.after)
            if scrape is not None
            and (value := next((v for n in names if (v := scrape.total(n)) is not None), None))
            is not None
        ]
        return sum(seen) / len(seen) if seen else None

    def latency(self, *names: str) -> Latency | None:
        """Return the distribution in the first histogram of ``names`` that grew."""
        for name in names:
            count, total = self.increase(f"{name}_count"), self.increase(f"{name}_sum")
            if count and total is not None:
                return summarise(self.by_label(f"{name}_bucket", "le"), count, total)
        return None


def summarise(buckets: dict[str, float], count: Count, total: Count) -> Latency:
    """Return what a histogram says; quantiles as Prometheus's ``histogram_quantile``.

    In a wide bucket that interpolation can exceed what the mean allows, mean / (1 - q) (Markov's
    inequality), which is then the value. The standard deviation takes the observations of a
    bucket as even in it, those of the last at its lower bound. ``buckets``: cumulative counts by
    upper bound.
    """
    cumulated = sorted((float(bound), number) for bound, number in buckets.items())
    mean = total / count
    if not cumulated or cumulated[-1][1] <= 0:
        return Latency(mean, count=count)
    spread, low, below = 0.0, 0.0, 0.0
    for bound, number in cumulated:
        high = low if math.isinf(bound) else bound
        middle, width = (low + high) / 2, high - low
        spread += (number - below) * ((middle - mean) ** 2 + width**2 / 12)
        low, below = high, number
    quantiles = (min(quantile(cumulated, q), mean / (1.0 - q)) for q in (0.5, 0.9, 0.99))
    return Latency(mean, *quantiles, count=count, std=math.sqrt(spread / count))


def quantile(cumulated: list[tuple[float, float]], q: float) -> float:
    """Return a quantile of cumulative buckets, linear within one; at most the last finite bound."""
    wanted, low, below = q * cumulated[-1][1], 0.0, 0.0
    for bound, number in cumulated:
        if number >= wanted and number > below:
            return (
                low
                if math.isinf(bound)
                else low + (bound - low) * (wanted - below) / (number - below)
            )
        low, below = (low if math.isinf(bound) else bound), number
    return low


def check_order(before: Scrape, after: Scrape) -> None:
    """Raise ValueError unless one server was scraped twice, in this order, without a restart."""
    began, later = before.total(PROCESS_START), after.total(PROCESS_START)
    if began is not None and later is not None and began != later:
        raise ValueError(
            f"{before.source} is of a process started at {clock(began)}, {after.source} of one "
            f"started at {clock(later)}: "
            + (
                "the server was restarted between the scrapes, which reset its counters. Scrape "
                "twice without a restart."
                if later > began
                else "the scrapes are in the wrong order. Swap them."
            )
        )
    for name, then, now in shrunk(before, after):
        raise ValueError(
            f"{name} falls from {then:g} in {before.source} to {now:g} in {after.source}: the "
            "scrapes are in the wrong order (swap them), of different servers, or a restart reset "
            "the counters."
        )


def shrunk(before: Scrape, after: Scrape) -> Iterator[tuple[str, float, float]]:
    """Yield the counters that became smaller."""
    for name in sorted(before.samples):
        then, now = before.total(name), after.total(name)
        if name.endswith(("_total", "_count", "_bucket")) and then and (now or 0.0) < then:
            yield name, then, now or 0.0


def clock(seconds: float) -> str:
    """Return a Unix time for a sentence."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def changes(scrapes: list[Scrape]) -> list[Change]:
    """Return the changes between consecutive scrapes."""
    return [Change(one, other) for one, other in pairwise(scrapes)]

"""Reads a file or URL of a kind that is found out: a scrape, a result or a log."""

import re
import sys
from pathlib import Path

from specjax.readers.log import read_log
from specjax.readers.metrics import is_url, read_metrics
from specjax.readers.observation import Count, Observation
from specjax.readers.results import parse, read_result

SCRAPE = re.compile(r"^(?:# (?:HELP|TYPE) |vllm:|sglang:|tgi_)", re.MULTILINE)


def read_log_file(source: str) -> Observation:
    """Return what a log file says; ``-`` is the standard input. Raises OSError or ValueError."""
    if source == "-":
        return read_log(sys.stdin, "the standard input")
    try:
        with Path(source).open(encoding="utf-8", errors="strict") as lines:
            return read_log(lines, source)
    except UnicodeDecodeError:
        raise ValueError(f"{source} is not text: pass what a server logged.") from None


def read_anything(
    source: str, seconds: Count | None = None, served_model: str | None = None
) -> Observation:
    """Return what a source says: an address, a file, or two scrapes as BEFORE,AFTER.

    Raises as the reader of its kind does.
    """
    if is_url(source):
        return read_metrics(source, None, seconds, served_model)
    path = Path(source)
    before, found, after = source.partition(",")
    if found and not path.exists():
        return read_metrics(after, Path(before), seconds, served_model)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text: neither a scrape, a result nor a log.") from None
    if parse(text):
        return read_result(path)
    if SCRAPE.search(text) is not None:
        return read_metrics(source, None, seconds, served_model)
    return read_log_file(source)

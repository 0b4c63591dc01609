"""SGLang's ``Decode batch`` lines, one per 40 decoding steps (``--decode-log-interval``).

``accept len`` counts the target's own token. ``accept rate`` is not read: its meaning depends on
the version (see ``sglang_metrics``).
"""

import re
from datetime import datetime
from typing import NamedTuple

MARKS = ("Decode batch",)
STAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)?((?: (?:DP|TP|PP|EP)\d+)*)")
RUNNING = re.compile(r"#running-req: (\d+)")
WAITING = re.compile(r"#queue-req: (\d+)")
USAGE = re.compile(r"(?<!\w )token usage: ([\d.]+)")
LENGTH = re.compile(r"accept len: ([\d.]+)")
THROUGHPUT = re.compile(r"gen throughput \(token/s\): ([\d.]+)")
GRAPH = re.compile(r"(?:cuda|cpu|npu) graph: (True|False)")


class Decoding(NamedTuple):
    """One line."""

    time: datetime | None
    rank: str
    running: int
    waiting: int | None
    cache: float | None  # 0 to 1
    length: float | None  # tokens per round, the target's own included
    generation: float  # tok/s
    graph: bool | None  # whether a captured graph ran


def parse_sglang(line: str) -> Decoding | None:
    """Return what a line says; None for another line."""
    running, throughput = RUNNING.search(line), THROUGHPUT.search(line)
    if "Decode batch" not in line or running is None or throughput is None:
        return None
    stamp, length, graph = STAMP.search(line), LENGTH.search(line), GRAPH.search(line)
    waiting, usage = WAITING.search(line), USAGE.search(line)
    return Decoding(
        None if stamp is None else datetime.strptime(stamp[1], "%Y-%m-%d %H:%M:%S"),
        "" if stamp is None else stamp[2].strip(),
        int(running[1]),
        None if waiting is None else int(waiting[1]),
        None if usage is None else float(usage[1]),
        None if length is None else float(length[1]),
        float(throughput[1]),
        None if graph is None else graph[1] == "True",
    )

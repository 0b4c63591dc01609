"""The interactive explorer: one HTML file with formulas, pictures and a round, step by step.

``explorer.html`` lies beside this file and runs from there, offline, in any browser; its formulas
are those of ``specjax.theory``, written in JavaScript.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from specjax.theory.intervals import Interval

PAGE = Path(__file__).parent / "explorer.html"
NO_RUNS = '<script type="application/json" id="runs">[]</script>'


class Run(NamedTuple):
    """A measured run, which the page's sliders can be set to."""

    name: str
    alpha: float  # chance that a draft token is accepted
    k: int  # drafted tokens per round, at most
    tokens: float  # per round
    gain: Interval | None  # speedup over plain decoding, if measured


def explorer_page(runs: Sequence[Run] = ()) -> str:
    """Return the explorer's page with measured runs to choose from; the first one is chosen."""
    rows = [{**one._asdict(), "gain": one.gain and tuple(one.gain)} for one in runs]
    told = json.dumps(rows, allow_nan=False).replace("<", "\\u003c")  # no name ends the script
    return PAGE.read_text(encoding="utf-8").replace(NO_RUNS, NO_RUNS.replace("[]", told))

"""Service-level objectives: limits on a request's times, and which requests meet them.

ttft: from sending a request to its first token; e2el: to its last; tpot: (e2el - ttft) per token
after the first. Goodput counts the requests per second that meet all limits (arXiv 2401.09670).
"""

import re
from collections.abc import Mapping, Sequence

OBJECTIVES = ("ttft", "tpot", "e2el")
TIME = re.compile(r"^([\d.]+)(ms|s)$")


def check_objectives(slo: Mapping[str, float]) -> None:
    """Raise ValueError for an unknown name, or a limit [s] that is not positive."""
    for name, value in slo.items():
        if name not in OBJECTIVES or not value > 0:
            raise ValueError(
                f"an objective is one of {', '.join(OBJECTIVES)} and a positive time, got "
                f"{name}={value}"
            )


def parse_objectives(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Return limits [s] by name from (name, time) such as ("tpot", "50ms").

    Raises ValueError for another form, as ``check_objectives`` does.
    """
    found = {}
    for name, text in pairs:
        time = TIME.match(text)
        if time is None:
            raise ValueError(f"--slo {name}={text}: a time is written 50ms or 2s")
        found[name] = float(time[1]) * (1e-3 if time[2] == "ms" else 1.0)
    check_objectives(found)
    return found


def meets(times: Mapping[str, float], slo: Mapping[str, float]) -> bool:
    """Return whether a request's times [s], by objective, are all within the limits."""
    return all(times[name] <= most for name, most in slo.items())

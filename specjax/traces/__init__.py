"""The event log of speculative decoding: read it, measure it, replay it, explain it."""

from specjax.traces.alarm import Alarm, alarms
from specjax.traces.converters import (
    Number,
    convert,
    to_aisbench,
    to_eagle,
    to_sglang,
    to_vllm,
)
from specjax.traces.counterfactual import (
    Counterfactual,
    counterfactual,
    fixed,
    off_after,
    off_beyond,
)
from specjax.traces.events import Event, Trace, read_trace, to_events, to_trace, write_trace
from specjax.traces.fits import (
    Beta,
    Curves,
    Markov,
    Mixture,
    fit_beta,
    fit_markov,
    fit_mixture,
    tokens_by_k,
)
from specjax.traces.positions import Positions, alpha, by_position, counters

__all__ = [
    "Alarm",
    "Beta",
    "Counterfactual",
    "Curves",
    "Event",
    "Markov",
    "Mixture",
    "Number",
    "Positions",
    "Trace",
    "alarms",
    "alpha",
    "by_position",
    "convert",
    "counterfactual",
    "counters",
    "fit_beta",
    "fit_markov",
    "fit_mixture",
    "fixed",
    "off_after",
    "off_beyond",
    "read_trace",
    "to_aisbench",
    "to_eagle",
    "to_events",
    "to_sglang",
    "to_trace",
    "to_vllm",
    "tokens_by_k",
    "write_trace",
]

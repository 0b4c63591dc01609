"""Exact, checkable, explorable speculative decoding, in JAX.

``from specjax import LLM, SamplingParams`` is the offline interface; the functions behind it
(``specjax.core.decode``, ``specjax.drafters``, ``specjax.verify``) are pure and stand alone.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specjax.engine.llm import LLM
    from specjax.engine.options.sampling_params import SamplingParams
    from specjax.engine.options.speculative import SpeculativeConfig
    from specjax.engine.options.structured_outputs import StructuredOutputsParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "SpeculativeConfig", "StructuredOutputsParams", "__version__"]

_HOMES = {
    "LLM": "specjax.engine.llm",
    "SamplingParams": "specjax.engine.options.sampling_params",
    "SpeculativeConfig": "specjax.engine.options.speculative",
    "StructuredOutputsParams": "specjax.engine.options.structured_outputs",
}


def __getattr__(name: str):
    """Import the offline interface on first use: ``import specjax`` alone stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module 'specjax' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)

"""What the training loop of heads trains."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from specjax.core.types import PyTree
from specjax.train.features import Features
from specjax.train.head_init import Flat
from specjax.train.unrolled import Drafted


class Learner(NamedTuple):
    """A head, or a draft model that drafts in parallel, as functions of its own weights."""

    first: Callable[[], Flat]  # returns those that training starts from
    assemble: Callable[[Flat, PyTree], PyTree]  # (own, the target's): all weights
    draft: Callable[[PyTree, Features], list[Drafted]]  # one of each draft position
    save: Callable[[Path, Flat], None]  # writes a folder that vLLM loads

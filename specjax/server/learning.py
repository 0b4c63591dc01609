"""Let the head that drafts learn from what a server answers (``--train-drafter``)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specjax.bundled import resolve
from specjax.engine.options.legacy import translate_legacy
from specjax.engine.options.methods import direct
from specjax.engine.options.speculative import SpeculativeConfig
from specjax.engine.service import Service
from specjax.models.config import HEAD_METHODS
from specjax.train.online import OnlineTrainer


def trainer_of(model: str, options: Mapping[str, Any], folder: Path, every: int) -> OnlineTrainer:
    """Return the trainer of the head that ``LLM(model, **options)`` drafts with.

    Raises:
        ValueError: no head drafts, it is not trained here, or ``folder`` holds another one.
    """
    given = options.get("speculative_config")
    target, given = direct(model, translate_legacy(dict(options), given) or given)
    config = None if given is None else SpeculativeConfig.from_dict(given, resolve(str(target)))
    if config is None or config.fallback is not None or config.method not in HEAD_METHODS:
        raise ValueError(
            f"--train-drafter trains a drafting head: it needs a speculative_config of a method of "
            f"{', '.join(HEAD_METHODS)}; got {'none' if config is None else config.name}."
        )
    return OnlineTrainer(
        folder,
        target=target,
        head=config.model or target,
        kind=config.head_kind,
        depth=config.depth,
        every=every,
    )


def train_while_serving(service: Service, trainer: OnlineTrainer) -> None:
    """Train on every completed answer from now on, and exchange the head's weights.

    Raises:
        ValueError: the weights of this service's drafter cannot be exchanged.
    """
    service.update_drafter(trainer.head)  # with itself: now is the time to say that it cannot be
    trainer.start(service.update_drafter)
    service.on_answer = trainer.add

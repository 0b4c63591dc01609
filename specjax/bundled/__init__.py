"""The small trained checkpoints, drafting heads and prompts that ship with specjax."""

import json
from pathlib import Path

from specjax.config import HEAD_METHODS

HERE = Path(__file__).parent
HEADS = tuple(name for name in HEAD_METHODS if (HERE / name).is_dir())  # those that ship
BUNDLED = {
    "bundled": HERE / "target",
    "bundled:draft": HERE / "draft",
    **{f"bundled:{name}": HERE / name for name in HEADS},
}

PROMPTS = {  # written and chosen for this project; drawn from the standard library
    "shipped": HERE / "prompts.jsonl",
    "random": HERE / "prompts_random.jsonl",
}


def resolve(model: str | Path) -> Path:
    """Return the folder of a checkpoint: a path, or a name in ``BUNDLED``.

    Raises ValueError for a name that is no folder: specjax never downloads.
    """
    if str(model) in BUNDLED:
        return BUNDLED[str(model)]
    folder = Path(model).expanduser()
    if not folder.is_dir():
        raise ValueError(
            f"model {str(model)!r} is not a folder. specjax does not download: pass the path of "
            f"a Hugging Face checkpoint, or one of {', '.join(map(repr, BUNDLED))}."
        )
    return folder


def prompts(kind: str = "shipped") -> list[dict]:
    """Return prompts of a kind of ``PROMPTS``: ``{"id", "category", "turns": [...]}``."""
    lines = PROMPTS[kind].read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]

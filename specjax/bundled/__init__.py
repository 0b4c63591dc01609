"""The small trained checkpoints and prompts that ship with specjax."""

import json
from pathlib import Path

HERE = Path(__file__).parent
BUNDLED = {"bundled": HERE / "target", "bundled:draft": HERE / "draft"}


def prompts() -> list[dict]:
    """Return the shipped prompts: ``{"id", "category", "turns": [...]}``."""
    lines = (HERE / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]

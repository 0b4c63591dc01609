"""vLLM's answers, kept in files: what was asked, of which weights, by which command."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from specjax.host.files import write_atomically

FOLDER = Path(__file__).parent / "recordings"
COMMAND = "make oracle-record"
LONG = 400  # characters of JSON; longer parts of a job are kept as their hash


def digest(value: Any) -> str:
    """Return the sha256 of a file, or of a value's JSON."""
    data = value.read_bytes() if isinstance(value, Path) else json.dumps(value).encode()
    return hashlib.sha256(data).hexdigest()


def summary(job: dict[str, Any]) -> dict[str, Any]:
    """Shorten a job to what a person can read; equal summaries mean equal jobs.

    Long values are named by their hash. Left out are paths of the run and the arrays behind
    them, whose bytes are not the same on every processor; so is the content of our drafts,
    which the text that comes with them pins.
    """

    def shorten(key, value):
        if key == "drafts":
            return {"number": len(value)}
        text = json.dumps(value, default=lambda path: "(path)")
        value = json.loads(text)
        return value if len(text) <= LONG else {"sha256": digest(value)}

    return {key: shorten(key, value) for key, value in job.items()}


def record(name: str, job: dict, weights: dict[str, str], answer: dict) -> None:
    """Write what vLLM answered; deterministic bytes but for the seconds."""
    kept = {
        "command": COMMAND,
        "versions": answer["versions"],
        "repairs": answer["repairs"],
        "weights": weights,
        "job": summary(job),
        "answer": {k: v for k, v in answer.items() if k not in ("versions", "repairs")},
    }
    FOLDER.mkdir(exist_ok=True)
    with write_atomically(FOLDER / f"{name}.json") as file:
        file.write(json.dumps(kept, separators=(",", ":")).encode())


def replay(name: str, job: dict, weights: dict[str, str]) -> dict[str, Any]:
    """Return the recorded answer to this job about these weights; fail if there is none."""
    path = FOLDER / f"{name}.json"
    if not path.is_file():
        pytest.fail(f"no recorded answer {path.name}: run `{COMMAND}`")
    kept = json.loads(path.read_bytes())
    for what, asked in (("job", summary(job)), ("weights", weights)):
        if kept[what] != json.loads(json.dumps(asked)):
            pytest.fail(
                f"{path.name} answers another question; `{COMMAND}` asks again. "
                f"Recorded {what}: {kept[what]}, asked: {asked}"
            )
    return {**kept["answer"], "versions": kept["versions"], "repairs": kept["repairs"]}

"""The small trained checkpoints, drafting heads and prompts that ship with specjax."""

import json
from pathlib import Path

from specjax.models.config import HEAD_METHODS

HERE = Path(__file__).parent
HEADS = tuple(name for name in HEAD_METHODS if (HERE / name).is_dir())  # those included
BUNDLED = {
    "bundled": HERE / "target",
    "bundled:draft": HERE / "draft",
    **{f"bundled:{name}": HERE / name for name in HEADS},
}

PROMPTS = {  # written for this project and selected; sampled from the standard library
    "shipped": HERE / "prompts.jsonl",
    "random": HERE / "prompts_random.jsonl",
}

RECORDINGS = HERE / "recordings"  # links to tests/ and docs/; in the wheel, files
SERVER_LOG = HERE / "vllm_server.log"  # of vLLM 0.32.0 with the bundled models, recorded here


def resolve(model: str | Path) -> Path:
    """Return the folder of a checkpoint.

    Args:
        model: a path, or a name such as "bundled" or "bundled:eagle3".

    Raises:
        ValueError: it is no folder. specjax never downloads.

    >>> resolve("bundled:draft").name
    'draft'
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
    """Return the bundled prompts of a kind, "shipped" or "random".

    Each is a dictionary with "id", "category" and "turns", a list of strings.

    >>> prompts()[0].keys()
    dict_keys(['id', 'category', 'turns'])
    """
    lines = PROMPTS[kind].read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def recording(name: str) -> Path:
    """Return a file that was recorded beforehand, which the notebooks read.

    Args:
        name: an answer of vLLM 0.32.0 ("text_ngram.json"), the prompts it was given
            ("prompts.json"), or the log of an A/B test ("ab.jsonl").

    Raises:
        ValueError: there is none of that name.

    >>> recording("text_ngram.json").suffix
    '.json'
    """
    if not (RECORDINGS / name).is_file():
        found = ", ".join(sorted(one.name for one in RECORDINGS.iterdir()))
        raise ValueError(f"there is no recording {name!r}, only {found}.")
    return RECORDINGS / name

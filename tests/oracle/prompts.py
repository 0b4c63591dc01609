"""One hundred prompts: the beginnings of passages cut from the standard library.

``python -m tests.oracle.prompts`` cuts them anew; the file is kept, since the library
changes with Python. They are under the PSF licence (specjax/bundled/LICENSE-PSF.txt).
"""

import hashlib
import json
import sysconfig
from pathlib import Path

FILE = Path(__file__).with_name("prompts.json")
NUM_PROMPTS, NUM_LINES, MAX_CHARS = 100, 8, 400


def cut() -> list[str]:
    """Cut a few lines out of the modules whose names hash lowest, from a hashed place on."""
    library = Path(sysconfig.get_paths()["stdlib"])

    def number(text: str) -> int:
        return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)

    found = []
    for path in sorted(library.glob("*.py"), key=lambda path: number(path.name)):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        if len(lines) > 4 * NUM_LINES:
            start = number(path.name + "place") % (len(lines) - NUM_LINES)
            found.append("".join(lines[start : start + NUM_LINES])[:MAX_CHARS])
    return [text for text in found if len(text) > 60][:NUM_PROMPTS]


def read() -> list[str]:
    """Return the kept prompts."""
    return json.loads(FILE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    FILE.write_text(json.dumps(cut(), indent=0) + "\n", encoding="utf-8")

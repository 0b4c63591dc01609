"""A computation in numbered parts, a file each, which any number of processes may share."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from specjax import __version__
from specjax.host.files import read_json_object, write_atomically, write_json
from specjax.jobs.folder import MANIFEST, key_of, parse_share


class Parts(NamedTuple):
    """A folder of parts, and what every process that works on it must agree on."""

    folder: Path
    num_parts: int
    facts: Mapping[str, Any]  # JSON values: all that can change a result
    suffix: str = ".json"  # of a part's file

    @property
    def manifest(self) -> dict[str, Any]:
        """The content of the folder's manifest."""
        given = {"version": __version__, "num_parts": self.num_parts, **self.facts}
        return json.loads(json.dumps(given))

    @property
    def key(self) -> str:
        """A hash of the manifest, which is in the name of every part."""
        return key_of(self.manifest)

    def file(self, part: int) -> Path:
        """Return the file of a part."""
        return self.folder / f"part-{part:05d}-{self.key}{self.suffix}"

    def missing(self) -> list[int]:
        """Return the parts that have no file yet."""
        return [part for part in range(self.num_parts) if not self.file(part).is_file()]


def do_parts(
    parts: Parts, write: Callable[[int, IO[bytes]], None], share: str | None = None
) -> list[int]:
    """Do a share's missing parts; return those that are missing still, in other shares.

    A part's file appears whole or not at all. Killed at any moment, the same call goes on.

    Args:
        write: computes a part and writes it to a file.
        share: I/N: every N-th part from I on; None: all.

    Raises:
        ValueError: the folder is another computation's; nothing has been computed then.
    """
    first, step = parse_share(share or "0/1")
    open_parts(parts)
    for part in range(first, parts.num_parts, step):
        if not parts.file(part).is_file():
            with write_atomically(parts.file(part)) as file:
                write(part, file)
    return parts.missing()


def open_parts(parts: Parts) -> None:
    """Write the folder's manifest, or check it.

    Raises ValueError if the folder, or a part in it, is another computation's.
    """
    path, wanted = parts.folder / MANIFEST, parts.manifest
    strange = [
        file.name for file in parts.folder.glob("part-*") if f"-{parts.key}." not in file.name
    ]
    if path.is_file():
        there = read_json_object(path)
        differ = [
            f"{name} is {there.get(name)} there, {wanted.get(name)} here"
            for name in there.keys() | wanted.keys()
            if there.get(name) != wanted.get(name)
        ]
        if differ:
            raise ValueError(
                f"{parts.folder} is another computation's: {'; '.join(sorted(differ))}. Choose "
                "another folder."
            )
    if strange:
        raise ValueError(
            f"{parts.folder} holds {min(strange)}, a part of another computation: remove it, or "
            "choose another folder."
        )
    if not path.is_file():
        write_json(path, wanted)

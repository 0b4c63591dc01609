"""A job's folder: its manifest, a file per shard, and the one file they are merged into."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specjax.host.files import read_json_object, write_atomically, write_json

MANIFEST = "manifest.json"
MERGED = "merged.jsonl"


class Job(NamedTuple):
    """What every process that works on a folder must agree on."""

    version: str  # of specjax
    model: str  # ``weights.fingerprint``
    prompts: str  # the prompt file's SHA-256
    num_prompts: int
    shard_size: int
    samples: int  # completions per prompt
    options: dict[str, Any]  # of the engine and of sampling, the seed among them

    @property
    def num_shards(self) -> int:
        """How many shards there are."""
        return -(-self.num_prompts // self.shard_size)

    @property
    def key(self) -> str:
        """A hash of all but the shard size: every line of the job's shards has it."""
        return key_of(self._replace(shard_size=0)._asdict())

    def span(self, shard: int) -> range:
        """Return the numbers of a shard's prompts in the whole file."""
        first = shard * self.shard_size
        return range(first, min(first + self.shard_size, self.num_prompts))


class Merged(NamedTuple):
    """The file that a merge wrote."""

    path: Path
    num_prompts: int
    num_completions: int
    sha256: str


def key_of(facts: Mapping[str, Any]) -> str:
    """Return a short hash of JSON values, which tells the files of different jobs apart."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def open_folder(folder: Path, job: Job) -> None:
    """Make the folder, with the job's manifest, or check that it is this job's.

    Raises ValueError if the folder, or a file in it, is of another job; the message has what
    differs.
    """
    path = folder / MANIFEST
    wanted = json.loads(json.dumps(job._asdict()))
    shards = sorted(folder.glob("part-*.jsonl"))  # before the manifest: another process writes it
    if not path.is_file():
        if shards:
            raise ValueError(f"{folder} has shards and no {MANIFEST}: choose another --out.")
        write_json(path, wanted)
        return
    there = read_json_object(path)
    differ = [
        f"{name} is {there.get(name)} there, {value} here"
        for name, value in flat(wanted).items()
        if flat(there).get(name) != value
    ]
    if differ or flat(there).keys() != flat(wanted).keys():
        raise ValueError(
            f"{folder} holds the shards of another job: "
            f"{'; '.join(differ) or 'other options'}. Choose another --out."
        )
    for shard in shards:
        check_owner(shard, job)


def check_owner(path: Path, job: Job) -> None:
    """Raise ValueError for a shard's file whose first line is not one of the job's."""
    with open(path, "rb") as file:
        first = file.readline()
    try:
        owner = json.loads(first)["job"]
    except (ValueError, KeyError, TypeError):
        owner = None
    if owner != job.key:
        raise ValueError(
            f"{path} is no shard of this job, which is {job.key}, but of {owner}: remove it, or "
            "choose another --out."
        )


def flat(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest with its options beside its other fields."""
    return {**value, **{f"options.{k}": v for k, v in value.get("options", {}).items()}} | {
        "options": None
    }


def read_job(folder: Path) -> Job:
    """Return the job of a folder. Raises ValueError if it has no manifest of this version."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"{folder} is no job's folder: there is no {MANIFEST} in it.")
    try:
        return Job(**read_json_object(path))
    except TypeError:
        raise ValueError(f"{path} is not a manifest of specjax generate --out.") from None


def shard_file(folder: Path, shard: int) -> Path:
    """Return the file of a shard."""
    return folder / f"part-{shard:05d}.jsonl"


def parse_share(text: str) -> tuple[int, int]:
    """Return (I, N) of a text I/N: this process does shards I, I + N, I + 2 N, ...

    Raises ValueError for another form, or an I that is not one of 0 .. N - 1.

    >>> parse_share("3/64")
    (3, 64)
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not int(found[1]) < int(found[2]):
        raise ValueError(f"--shard must be I/N with I from 0 to N - 1, such as 0/4, got {text!r}.")
    return int(found[1]), int(found[2])


def missing(folder: Path, job: Job, share: tuple[int, int] = (0, 1)) -> list[int]:
    """Return the shards of a process's share that have no file yet."""
    mine = range(share[0], job.num_shards, share[1])
    return [shard for shard in mine if not shard_file(folder, shard).is_file()]


def write_shard(folder: Path, shard: int, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a shard's file: it appears whole or not at all."""
    with write_atomically(shard_file(folder, shard)) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


def merge(folder: Path, out: Path | None = None) -> Merged:
    """Join all shards into one file, in the order of the prompts, and check it.

    Memory does not grow with the number of prompts.

    Raises:
        ValueError: a shard is missing, or its completions are not exactly those of its prompts.
    """
    job = read_job(folder)
    absent = missing(folder, job)
    if absent:
        names = ", ".join(map(str, absent[:8])) + (", ..." if len(absent) > 8 else "")
        raise ValueError(
            f"{folder} has {job.num_shards - len(absent)} of {job.num_shards} shards; missing: "
            f"{names}. Run the same specjax generate again."
        )
    out, sha256, count = out or folder / MERGED, hashlib.sha256(), 0
    with write_atomically(out) as file:
        for shard in range(job.num_shards):
            for raw in checked_lines(shard_file(folder, shard), job, shard):
                sha256.update(raw)
                file.write(raw)
                count += 1
    for hidden in folder.glob(".part-*.tmp"):  # of processes that were killed while they wrote
        hidden.unlink(missing_ok=True)
    return Merged(out, job.num_prompts, count, sha256.hexdigest())


def checked_lines(path: Path, job: Job, shard: int) -> Iterator[bytes]:
    """Yield the lines of a shard's file.

    Raises ValueError unless they are each of its prompts' samples once, in order.
    """
    wanted = ((number, i) for number in job.span(shard) for i in range(job.samples))
    with open(path, "rb") as file:
        for line, raw in enumerate(file, start=1):
            try:
                row = json.loads(raw)
                found, owner = (row["number"], row["index"]), row["job"]
            except (ValueError, KeyError, TypeError):
                raise ValueError(f"{path} line {line} is no completion: {raw[:80]!r}") from None
            if owner != job.key:
                raise ValueError(
                    f"{path} line {line} is of job {owner}, not of {job.key}: remove the file and "
                    "run the same specjax generate again."
                )
            if found != next(wanted, None):
                raise ValueError(
                    f"{path} line {line} is sample {found[1]} of prompt {found[0]}, which does not "
                    "belong there: remove the file and run the same specjax generate again."
                )
            yield raw
    left = next(wanted, None)
    if left is not None:
        raise ValueError(
            f"{path} ends before sample {left[1]} of prompt {left[0]}: remove the file and run "
            "the same specjax generate again."
        )

"""Merge the logs of several load generators, each of which measured all arms on its own prompts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specjax.ab.records import Log, read_log

OWN = ("seed",)  # what the plans of load generators may differ in
ABOUT = ("host", "date", "command")  # of a manifest, kept for each load generator


def merge_logs(paths: Sequence[Path]) -> Log:
    """Return the logs of several load generators as one.

    Gains are of pairs, an arm and its base on the same prompt, so every load generator must have
    measured every arm: a comparison of arms across hosts would be one of hosts. A merged log's
    loads and tokens per second are those of one load generator, on average.

    Raises:
        ValueError: there is one log only, they are of different comparisons, one lacks an arm in
            a block, or two have the same prompt.
        OSError: a file cannot be read.
    """
    if len(paths) < 2:
        raise ValueError("merging takes the logs of two load generators or more.")
    logs = [read_log(path) for path in paths]
    first = identity(logs[0].manifest)
    for path, log in zip(paths, logs, strict=True):
        own = identity(log.manifest)
        differ = [name for name in first if own[name] != first[name]]
        if differ:
            raise ValueError(
                f"{path} is of another comparison than {paths[0]}: {', '.join(differ)} differ."
            )
        check_arms(path, log)
    check_prompts(paths, logs)
    units, divergences, offset = [], [], 0
    for log in logs:
        units += [unit._replace(block=unit.block + offset) for unit in log.units]
        divergences += log.divergences
        offset = 1 + max((unit.block for unit in units), default=-1)
    about = [{name: log.manifest.get(name) for name in ABOUT} for log in logs]
    return Log({**logs[0].manifest, "generators": about}, tuple(units), tuple(divergences))


def identity(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the load generators of one comparison have in common."""
    wanted = manifest["wanted"]
    plan = {name: value for name, value in wanted["plan"].items() if name not in OWN}
    datasets = [(one["name"], one["sha256"]) for one in wanted["datasets"]]
    return {
        "arms": wanted["arms"],
        "requests": {name: value for name, value in wanted["ask"].items() if name not in OWN},
        "plan": plan,
        "datasets": datasets,
        "specjax": manifest["specjax"],
    }


def check_arms(path: Path, log: Log) -> None:
    """Raise ValueError if some block was not measured with every arm."""
    labels = [arm["label"] for arm in log.manifest["arms"]]
    found: dict[tuple[str, int, int], set[str]] = {}
    for unit in log.units:
        found.setdefault((unit.dataset, unit.concurrency, unit.block), set()).add(unit.arm)
    if not found:
        raise ValueError(f"{path} has no measured block yet.")
    for (dataset, load, block), arms in found.items():
        absent = [label for label in labels if label not in arms]
        if absent:
            raise ValueError(
                f"{path} lacks {', '.join(absent)} in block {block} of {dataset} at load {load}: "
                "give its command again to go on. Every load generator measures every arm."
            )


def check_prompts(paths: Sequence[Path], logs: Sequence[Log]) -> None:
    """Raise ValueError if two logs have the same prompt."""
    owner: dict[tuple[str, int, str], Path] = {}
    for path, log in zip(paths, logs, strict=True):
        asked = {
            (unit.dataset, unit.concurrency, one.prompt)
            for unit in log.units
            for one in unit.requests
        }
        for dataset, load, prompt in sorted(asked & owner.keys()):
            raise ValueError(
                f"prompt {prompt} of {dataset} at load {load} is in {owner[dataset, load, prompt]} "
                f"and in {path}: give each load generator its own --shard I/N."
            )
        owner |= dict.fromkeys(asked, path)

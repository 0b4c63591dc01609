"""The arm that each arm is compared with: plain decoding of the same engine, and the first base."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from specjax.ab.arms import KINDS

ManifestArm = Mapping[str, Any]  # its label, kind and config


class Bases(NamedTuple):
    """The bases of a comparison."""

    first: str  # the label of the arm that every arm is compared with
    own: Mapping[str, str]  # by label: the base of the arm's engine; of a base itself, ``first``

    @property
    def labels(self) -> frozenset[str]:
        """The labels of the bases that arms are compared with."""
        return frozenset(self.own.values())

    @property
    def several(self) -> bool:
        """Whether some arm is compared with two others."""
        return len(self.labels) > 1


def choose_bases(arms: Sequence[ManifestArm], chosen: Sequence[str] = ()) -> Bases:
    """Return the base of every arm of a manifest.

    An arm's own base is the last base of its kind before it in the order of the run, or the first
    base where there is none.

    Args:
        arms: the manifest's.
        chosen: labels of the bases. () for the first arm and the first plain arm of every other
            kind of engine that was started for the comparison.

    Raises:
        ValueError: no arm has a chosen label, or one is chosen twice.
    """
    labels = [arm["label"] for arm in arms]
    for label in chosen:
        if label not in labels:
            raise ValueError(f"--base {label}: no such arm; there are {', '.join(labels)}")
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"--base: each base is given once, got {', '.join(chosen)}")
    bases = list(chosen) or by_kind(arms)
    own, last = {}, {}
    for arm in arms:
        label, kind = arm["label"], arm["kind"]
        if label in bases:
            last[kind] = label
            own[label] = bases[0]
        else:
            own[label] = last.get(kind, bases[0])
    return Bases(bases[0], own)


def by_kind(arms: Sequence[ManifestArm]) -> list[str]:
    """Return the labels of the first arm and of the first plain arm of each other kind."""
    found = {arms[0]["kind"]: arms[0]["label"]}
    for arm in arms:
        if is_plain(arm):
            found.setdefault(arm["kind"], arm["label"])
    return list(found.values())


def is_plain(arm: ManifestArm) -> bool:
    """Return whether an arm is known not to speculate."""
    return arm["kind"] in KINDS and arm["config"] is None

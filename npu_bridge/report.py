"""What a lowering did: kernels, decompositions and why, primitives, bytes."""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx

from npu_bridge.rules import to_dtype


class Seam(NamedTuple):
    """One use of a seam: a kernel, or no kernel and why."""

    name: str
    kernel: str | None
    why: str | None


@dataclass
class Report:
    """The lowering report of one program."""

    name: str
    device: str
    plan: str
    seams: Counter = field(default_factory=Counter)  # Seam -> how often
    primitives: Counter = field(default_factory=Counter)  # those that followed a rule
    calls: Counter = field(default_factory=Counter)  # of the graph, by target
    in_place: int = 0  # leaves of the cache that are written in place
    bytes: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, seam: Seam) -> None:
        """Count one use of a seam."""
        self.seams[seam] += 1

    def describe(self, module: fx.GraphModule, arguments, wanted) -> None:
        """Count what the finished graph has."""
        for node in module.graph.nodes:
            if node.op == "call_function":
                self.calls[target_name(node.target)] += 1
        read = [arguments[i].aval for i in wanted]
        self.bytes["arguments"] = sum(a.size * to_dtype(a.dtype).itemsize for a in read)
        self.bytes["constants"] = sum(b.untyped_storage().nbytes() for b in module.buffers())

    @property
    def fused(self) -> dict[str, int]:
        """Return how often each seam became a kernel."""
        return self._count(lambda seam: seam.kernel is not None)

    @property
    def decomposed(self) -> dict[str, int]:
        """Return how often each seam was decomposed."""
        return self._count(lambda seam: seam.kernel is None)

    def _count(self, wanted) -> dict[str, int]:
        counts: Counter = Counter()
        for seam, number in self.seams.items():
            if wanted(seam):
                counts[seam.name] += number
        return dict(counts)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        facts = asdict(self)
        facts["seams"] = [
            {**seam._asdict(), "count": number} for seam, number in sorted_seams(self.seams)
        ]
        return facts | {"calls": dict(self.calls.most_common())}

    def to_json(self) -> str:
        """Return everything as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    def __str__(self) -> str:
        """Return a page for people."""
        rows = [
            f"{self.name} for {self.device}, plan {self.plan}: {sum(self.calls.values())} calls"
        ]
        for seam, number in sorted_seams(self.seams):
            what = seam.kernel or f"decomposed: {seam.why}"
            rows.append(f"  {number:5} x {seam.name:<16} {what}")
        sizes = ", ".join(f"{name} {size / 1e6:.2f} MB" for name, size in self.bytes.items())
        rows.append(f"  bytes: {sizes}")
        rows.append(f"  cache leaves written in place: {self.in_place}")
        primitives = ", ".join(f"{name} {n}" for name, n in sorted(self.primitives.items()))
        rows.append(f"  primitives by rule: {primitives}")
        rows.append(f"  lowered in {self.seconds:.2f} s; not executed on hardware")
        return "\n".join(rows)


def sorted_seams(seams: Counter) -> list[tuple[Seam, int]]:
    """List seams by name, kernels first."""
    return sorted(seams.items(), key=lambda item: tuple(str(word) for word in item[0]))


def target_name(target: Any) -> str:
    """Return the name of what a node calls."""
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name
    return getattr(target, "__name__", str(target))

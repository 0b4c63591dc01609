"""The report of a lowering: fused kernels, decomposed ops and the reasons, primitives, bytes."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx

from npu_bridge.rules import to_dtype


class FusibleOp(NamedTuple):
    """A use of a fusible op: its kernel, or None and the reason."""

    name: str
    kernel: str | None
    why: str | None


@dataclass
class Report:
    """The lowering report of one program."""

    name: str
    device: str
    plan: str
    fusible_ops: Counter[FusibleOp] = field(default_factory=Counter)
    primitives: Counter[str] = field(default_factory=Counter)  # lowered by a rule
    calls: Counter[str] = field(default_factory=Counter)  # of the graph, by target
    in_place: int = 0  # how many leaves of the cache are written in place
    bytes: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, op: FusibleOp) -> None:
        """Count a use of a fusible op."""
        self.fusible_ops[op] += 1

    def describe(
        self, module: fx.GraphModule, arguments: Sequence[Any], wanted: Iterable[int]
    ) -> None:
        """Count the calls and bytes of the finished graph."""
        for node in module.graph.nodes:
            if node.op == "call_function":
                self.calls[target_name(node.target)] += 1
        read = [arguments[i].aval for i in wanted]
        self.bytes["arguments"] = sum(a.size * to_dtype(a.dtype).itemsize for a in read)
        self.bytes["constants"] = sum(b.untyped_storage().nbytes() for b in module.buffers())

    @property
    def fused(self) -> dict[str, int]:
        """How often each op became a kernel."""
        return self._count(lambda op: op.kernel is not None)

    @property
    def decomposed(self) -> dict[str, int]:
        """How often each op was decomposed."""
        return self._count(lambda op: op.kernel is None)

    def _count(self, wanted: Callable[[FusibleOp], bool]) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for op, number in self.fusible_ops.items():
            if wanted(op):
                counts[op.name] += number
        return dict(counts)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary for JSON."""
        facts = asdict(self)
        facts["fusible_ops"] = [
            {**op._asdict(), "count": number} for op, number in sorted_ops(self.fusible_ops)
        ]
        return facts | {"calls": dict(self.calls.most_common())}

    def to_json(self) -> str:
        """Return the report as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    def __str__(self) -> str:
        """Return the report as readable text."""
        rows = [
            f"{self.name} for {self.device}, plan {self.plan}: {sum(self.calls.values())} calls"
        ]
        for op, number in sorted_ops(self.fusible_ops):
            what = op.kernel or f"decomposed: {op.why}"
            rows.append(f"  {number:5} x {op.name:<16} {what}")
        sizes = ", ".join(f"{name} {size / 1e6:.2f} MB" for name, size in self.bytes.items())
        rows.append(f"  bytes: {sizes}")
        rows.append(f"  cache leaves written in place: {self.in_place}")
        primitives = ", ".join(f"{name} {n}" for name, n in sorted(self.primitives.items()))
        rows.append(f"  primitives by rule: {primitives}")
        rows.append(f"  lowered in {self.seconds:.2f} s; not executed on hardware")
        return "\n".join(rows)


def sorted_ops(ops: Counter[FusibleOp]) -> list[tuple[FusibleOp, int]]:
    """Return ops and counts, sorted by name and kernel."""
    return sorted(ops.items(), key=lambda item: tuple(str(word) for word in item[0]))


def target_name(target: Any) -> str:
    """Return the name of the function that a node calls."""
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name
    return getattr(target, "__name__", str(target))

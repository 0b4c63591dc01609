"""The schemas of torch_npu's operators that the bridge uses.

``schemas.json`` is a snapshot of the real wheel; ``make bridge-npu`` compares. Where torch_npu
is not imported, the operators are defined by the snapshot, so that a program can be built, checked
and exported on any machine. Their CPU kernels are those of ``contracts``.
"""

import functools
import json
from pathlib import Path

import torch

FILE = Path(__file__).with_name("schemas.json")


@functools.cache
def snapshot() -> dict:
    """Return the committed ``schemas.json``: {"torch_npu": version, "schemas": {name: schema}}."""
    return json.loads(FILE.read_text(encoding="utf-8"))


@functools.cache
def define() -> torch.library.Library:
    """Define the operators that torch_npu does not, and register reference kernels for all.

    The returned library must live as long as its operators are used.
    """
    from npu_bridge.contracts import KERNELS

    library = torch.library.Library("npu", "FRAGMENT")
    for name, schema in snapshot()["schemas"].items():
        real = hasattr(torch.ops.npu, name)
        if not real:
            library.define(schema.removeprefix("npu::"))
        library.impl(name, KERNELS[name].compute, "CPU")
        if not real:
            library.impl(name, KERNELS[name].describe, "Meta")
    return library

"""The operators of torch_npu that the bridge uses, by their registered schemas.

``schemas.json`` is a snapshot of the real wheel; ``make bridge-npu`` compares. Where torch_npu
is not imported, the snapshot is what defines the operators, so that a program can be written,
checked and exported on any machine. Their CPU kernels are those of ``contracts``.
"""

import functools
import json
from pathlib import Path

import torch

FILE = Path(__file__).with_name("schemas.json")


@functools.cache
def snapshot() -> dict:
    """Return {"torch_npu": version, "schemas": {name: schema}}."""
    return json.loads(FILE.read_text(encoding="utf-8"))


@functools.cache
def define() -> torch.library.Library:
    """Define what torch_npu has not, and give every operator its reference kernels.

    The library must live as long as its operators.
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

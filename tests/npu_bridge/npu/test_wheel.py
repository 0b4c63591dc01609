"""Tier 1: the real torch_npu wheel, without a device. Schemas, Meta kernels, FakeTensors.

Run by ``make bridge-npu``. Nothing is executed on hardware, and a call that would be raises.
"""

import jax
import pytest
import torch
from torch._subclasses import FakeTensorMode

from npu_bridge.lowering_targets import RULES, Sizes, lowering_target, on_device
from npu_bridge.schemas import define, snapshot
from npu_bridge.tensors import to_torch
from specjax import LLM
from specjax.bundled import resolve
from specjax.weights.hf_config import read_config
from tests.npu_bridge.test_contracts import RIGHT, WRONG

pytestmark = pytest.mark.npu_wheel
NAMES = sorted(snapshot()["schemas"])


@pytest.fixture(autouse=True)
def real(torch_npu):
    return torch_npu


@pytest.mark.parametrize("name", NAMES)
def test_the_snapshot_is_what_is_registered(name, real):
    assert real.__version__.split("+")[0] == snapshot()["torch_npu"]
    registered = getattr(torch.ops.npu, name).default._schema
    assert str(registered) == snapshot()["schemas"][name]


@pytest.mark.parametrize("name", NAMES)
def test_every_operator_has_a_kernel_for_the_device(name):
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    assert has(f"npu::{name}", "PrivateUse1")
    assert has(f"npu::{name}", "Meta") or has(f"npu::{name}", "CompositeImplicitAutograd"), name


@pytest.mark.parametrize("plan", ["npu", "npu-paged"])
@pytest.mark.parametrize("rule", RULES)
def test_the_whole_graph_passes_on_fake_tensors_of_the_device(plan, rule):
    config, _ = read_config(resolve("bundled"), dtype="bfloat16")
    one = lowering_target("judge", config, Sizes(2, 4, 256, 256), rule)
    program = one.lower(plan=plan)
    assert not program.report.decomposed
    leaves = jax.tree.leaves(one.args)
    host = {extra.argument: leaves[extra.argument] for extra in program.lengths}
    shapes = jax.tree.leaves(jax.eval_shape(one.function, *one.args))
    with FakeTensorMode(allow_non_fake_inputs=False):
        for name, buffer in list(program.module.named_buffers()):
            setattr(program.module, name, fake(buffer.shape, buffer.dtype))
        operands = []
        for i in program.wanted:
            leaf = leaves[i]
            dtype = getattr(torch, str(leaf.dtype))
            if len(leaf.shape) == 4:  # a cache lies as [B, T, KH, d]
                b, h, t, d = leaf.shape
                operands.append(fake((b, t, h, d), dtype).transpose(1, 2))
            else:
                operands.append(fake(leaf.shape, dtype))
        lists = [[int(x) + e.offset for x in host[e.argument]] for e in program.lengths]
        made = program.module(*operands, *lists)
    for got, wanted in zip(made, shapes, strict=True):
        assert (tuple(got.shape), str(got.dtype)) == (wanted.shape, f"torch.{wanted.dtype}")
        assert got.device == torch.device("npu:0")


def fake(shape, dtype):
    return torch.empty(tuple(shape), dtype=dtype, device="npu:0")


def test_the_reference_kernels_serve_the_real_schemas():
    define()
    config, _ = read_config(resolve("bundled"), dtype="bfloat16")
    from specjax.weights.load import load_params

    weights = load_params(resolve("bundled"), config)
    one = lowering_target("forward", config, Sizes(2), weights=weights)
    wanted = to_torch(jax.jit(one.function)(*one.args)[0])
    for plan in ("npu", "npu-paged"):
        got = one.lower(plan=plan)(*on_device(one.args, plan))[0]
        assert float((got - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()) < 0.02


# the real Meta kernel looks at no mask: a device would
@pytest.mark.parametrize("name", sorted(WRONG.keys() - {"a mask on another device"}))
def test_a_wrong_call_is_rejected_by_the_real_schema_and_the_contracts(name):
    define()
    with pytest.raises((ValueError, RuntimeError, TypeError)):
        WRONG[name]()


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_call_is_not(name):
    define()
    RIGHT[name]()


def test_without_a_device_every_execution_raises():
    assert not torch.npu.is_available()
    with pytest.raises(RuntimeError):
        torch.zeros(1, device="npu:0")
    with pytest.raises(ValueError, match="no device was found"):
        LLM("bundled", device="npu")

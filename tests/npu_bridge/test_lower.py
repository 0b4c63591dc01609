"""Law 7: lowered equals jitted. Integers exactly, float32 within 1e-5, bfloat16 against truth."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from npu_bridge.certificate import compare, half_precision
from npu_bridge.lower import lower
from npu_bridge.lowering_targets import RULES, Sizes, lowering_target, on_device, save
from npu_bridge.plans import PLANS
from npu_bridge.rules import Refused
from npu_bridge.tensors import to_torch
from specjax.bundled import resolve
from specjax.core.types import Ring, Slots
from specjax.models.build import build_target
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params
from tests.npu_bridge.models import CONFIGS, weights

SIZES = Sizes(batch_size=2, nodes=4, capacity=128, window=64)


@pytest.fixture(scope="module")
def bundled():
    return {
        dtype: read_config(resolve("bundled"), dtype=dtype)[0] for dtype in ("float32", "bfloat16")
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_the_lowered_forward_is_the_jitted_one(name):
    config = CONFIGS[name]
    for plan in PLANS if name == "qwen3" else ("torch", "npu"):
        row = compare("forward", "walk", plan, config, weights(config), SIZES)
        assert row["passes"], row


@pytest.mark.parametrize("plan", ["torch", "npu"])
def test_the_lowered_forward_over_a_ring_is_the_jitted_one(plan):
    """A window of 9 is one at this capacity, and this text goes around its end."""
    config, sizes = CONFIGS["moe"], Sizes(2, 4, capacity=2048, window=2048, length=1500)
    cache = build_target(config).init_cache(2, sizes.capacity)
    assert [type(layer) for layer in cache.layers] == [Ring, Slots]
    row = compare("forward", "walk", plan, config, weights(config), sizes)
    assert row["passes"], row


@pytest.mark.parametrize("rule", RULES)
def test_the_lowered_judge_says_the_same(rule):
    config = CONFIGS["qwen3"]
    row = compare("judge", rule, "torch", config, weights(config), SIZES)
    assert row["passes"], row


def test_the_lowered_rules_say_the_same_on_many_rounds():
    """Integers are equal, whatever is accepted: the kernel alone, on laws that often agree."""
    for rule in RULES:
        one = lowering_target("verify", CONFIGS["qwen3"], Sizes(64, 4, 128, 64), rule)
        wanted, program = jax.jit(one.function)(*one.args), one.lower()
        made = jax.tree.leaves(program(*one.args))
        for ours, theirs in zip(jax.tree.leaves(wanted), made, strict=True):
            np.testing.assert_array_equal(ours, theirs.numpy())
    assert 0 < int(wanted.num_accepted.sum()) < 64 * 3


def test_every_fusible_op_of_the_bundled_target_is_fused(bundled):
    for plan in ("npu", "npu-paged"):
        report = lowering_target("judge", bundled["bfloat16"], Sizes(2)).lower(plan=plan).report
        assert not report.decomposed, str(report)
        assert report.fused["attention"] == 8
        assert report.fused["add"] == 16  # two norms per layer read a sum; the first does not
        assert report.fused["rms_norm"] == 17
        assert report.fused["rotate"] == 16
        assert report.fused["swiglu"] == 8
        assert report.in_place == 16
        assert "not executed on hardware" in str(report)


def test_bfloat16_is_as_near_to_the_truth_as_jax_is(bundled):
    config = bundled["float32"]
    errors, _ = half_precision(
        bundled["bfloat16"], config, load_params(resolve("bundled"), config), Sizes(2)
    )
    for plan in PLANS:
        assert 1e-4 < errors[plan] < 1.5 * errors["jax"], errors


def test_what_does_not_fit_is_decomposed_and_says_why(bundled):
    tree = lower(*tree_forward(bundled["bfloat16"]), donate=(2,), plan="npu").report
    (why,) = {op.why for op in tree.fusible_ops if op.name == "attention"}
    assert "tree" in why
    wide = lowering_target("judge", bundled["float32"], Sizes(2)).lower(plan="npu").report
    (why,) = {op.why for op in wide.fusible_ops if op.name == "attention"}
    assert "float16" in why
    odd = (
        lowering_target("judge", bundled["bfloat16"], Sizes(2, 4, 200, 200))
        .lower(plan="npu-paged")
        .report
    )
    assert {op.why for op in odd.fusible_ops if op.name == "write_kv"} == {
        "capacity 200 is not a multiple of 128"
    }


def tree_forward(config):
    one = lowering_target("forward", config, SIZES)
    from specjax.models.build import build_target

    target = build_target(config)

    def forward(params, tokens, cache, visible):
        positions = jnp.zeros_like(tokens)
        return target.forward(params, tokens, positions, visible, cache, SIZES.window)[0].hidden

    visible = jnp.ones((2, 4, 4), bool)
    return forward, (*one.args, visible)


def test_the_cache_is_written_in_place_only_where_it_is_donated():
    config = CONFIGS["qwen3"]
    one = lowering_target("forward", config, SIZES, weights=weights(config))
    given = on_device(one.args, "torch")
    before = given[2].layers[0].keys.clone()
    made = one.lower()(*given)[2].layers[0].keys
    assert made.data_ptr() == given[2].layers[0].keys.data_ptr()
    assert not torch.equal(made, before)
    kept = on_device(one.args, "torch")
    copied = lower(one.function, one.args)
    assert copied(*kept)[2].layers[0].keys.data_ptr() != kept[2].layers[0].keys.data_ptr()
    assert torch.equal(kept[2].layers[0].keys, before)
    assert copied.report.in_place == 0
    assert copied.report.decomposed == {"write_kv": 4}


def test_a_donated_array_that_is_read_again_is_not_overwritten():
    from specjax.core import ops

    def twice(leaf, new, slots):
        return ops.write_kv(leaf, new, slots), leaf.sum()

    def again(leaf, new, slots):
        return ops.write_kv(ops.write_kv(leaf, new, slots), new + 1, slots)

    args = (jnp.ones((1, 1, 8, 2)), jnp.zeros((1, 1, 1, 2)), jnp.asarray([[3]]))
    for function, in_place in ((twice, 0), (again, 2)):
        program = lower(function, args, donate=(0,))
        assert program.report.in_place == in_place
        got = program(*(to_torch(x).clone() for x in args))
        for ours, theirs in zip(
            jax.tree.leaves(function(*args)), jax.tree.leaves(got), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs.numpy())


def test_random_keys_stay_on_the_host():
    def draw(key, x):
        noise = jax.lax.scan(
            lambda c, i: (c, jax.random.gumbel(jax.random.fold_in(key, i), (3,))), 0, jnp.arange(4)
        )[1]
        return (noise * x.sum()).argmax(-1), noise[1] + 1

    args = (jax.random.key(3), jnp.asarray([1.0, -3.0]))
    program = lower(draw, args, host=(0,))
    for ours, theirs in zip(draw(*args), program(*args), strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())
    with pytest.raises(Refused, match="host="):
        lower(draw, args)
    with pytest.raises(Refused, match="keys"):
        lower(lambda key, i: jax.random.fold_in(key, i), (args[0], jnp.int32(1)), host=(0,))


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: jax.lax.while_loop(lambda c: c < 3, lambda c: c + 1, x.astype(int)), "while"),
        (lambda x: jax.lax.cond(x > 0, jnp.sin, jnp.cos, x), "cond"),
        (lambda x: jax.lax.lgamma(x), "lgamma"),
        (lambda x: jax.random.wrap_key_data(jnp.full(2, x).astype(jnp.uint32)), "random_"),
    ],
)  # fmt: skip
def test_what_cannot_be_lowered_is_refused_by_name_and_shape(function, name):
    with pytest.raises(Refused, match=name) as error:
        lower(function, (jnp.float32(1),))
    assert "32[" in str(error.value)  # the operands' shapes


def arrays(*shapes):
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.standard_normal(shape, np.float32)) for shape in shapes)


X, Y = arrays((3, 5, 4), (3, 5, 4))
I = jnp.asarray([[0, 7], [-2, 3], [4, 1]])  # noqa: E741
CASES = {
    "take": lambda x, y, i: x[0][i % 5],
    "take, filled": lambda x, y, i: x.at[0, i].get(mode="fill"),
    "take integers, filled": lambda x, y, i: (x * 9).astype(int).at[0, i].get(mode="fill"),
    "take, clipped": lambda x, y, i: jnp.take(x, i, axis=1, mode="clip"),
    "take along": lambda x, y, i: jnp.take_along_axis(x, i[:, :, None] % 5, axis=1),
    "rows and columns": lambda x, y, i: x[jnp.arange(3)[:, None], :, i % 4],
    "set, dropped": lambda x, y, i: x.at[0, i].set(2.0, mode="drop"),
    "add, dropped": lambda x, y, i: x.at[jnp.arange(3)[:, None], i].add(1.5, mode="drop"),
    "set, clipped": lambda x, y, i: x.at[0, i[0, 1]].set(y[0, 0], mode="clip"),
    "set a column": lambda x, y, i: x.at[:, 2].set(y[:, 1]),
    "set a window": lambda x, y, i: x.at[:, :, 1:3].set(y[:, :, :2]),
    "dynamic slice": lambda x, y, i: jax.lax.dynamic_slice(x, (0, i[0, 1], 1), (3, 2, 3)),
    "dynamic index": lambda x, y, i: jax.lax.dynamic_index_in_dim(x, i[2, 1], 1),
    "sort": lambda x, y, i: jax.lax.sort((x, y), num_keys=1),
    "top k": lambda x, y, i: jax.lax.top_k(jnp.round(x) + 0.0, 3),  # no -0.0: 0.0 is before it
    "argmax of ties": lambda x, y, i: jnp.argmax(jnp.round(x), axis=1),
    "argmax of booleans": lambda x, y, i: jnp.argmax(x > 0, axis=-1),
    "cumulative": lambda x, y, i: (jnp.cumprod(x, 1), jnp.cumsum(i[::-1], 0)),
    "reverse scan": lambda x, y, i: jax.lax.scan(lambda c, r: (c + r, c), x[0], y, reverse=True),
    "integers": lambda x, y, i: (i // 3, i % 3, -i, jnp.sign(i), jnp.clip(i, -1, 3)),
    "products": lambda x, y, i: jnp.einsum("abc,adc->dba", x, y),
    "padding": lambda x, y, i: jnp.pad(x, ((0, 0), (1, 2), (0, 1)))[:, ::2],
    "softmax": lambda x, y, i: jax.nn.log_softmax(x * 50),
    "bits": lambda x, y, i: jax.lax.bitcast_convert_type(x, jnp.int32) + 1,
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_rule_computes_what_its_primitive_does(name):
    wanted = CASES[name](X, Y, I)
    got = lower(CASES[name], (X, Y, I))(X, Y, I)
    for ours, theirs in zip(jax.tree.leaves(wanted), jax.tree.leaves(got), strict=True):
        ours, theirs = np.asarray(ours), theirs.numpy()
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        if ours.dtype.kind == "f":
            np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(theirs, ours)


@pytest.mark.parametrize("what", ["forward", "judge"])
def test_a_program_is_saved_and_loaded(what):
    """Also where no layer is tapped: torch saves no constant without elements."""
    config = CONFIGS["qwen3"]
    one, file = (
        lowering_target(what, config, Sizes(1, 3, 16, 16), weights=weights(config)),
        io.BytesIO(),
    )
    program = one.lower(plan="torch")
    save(program, one, file)
    file.seek(0)
    loaded, operands = torch.export.load(file).module(), on_device(one.args, "torch")
    wanted = jax.tree.leaves(program(*on_device(one.args, "torch")))
    made = loaded(*program.operands(jax.tree.leaves(operands)))
    for ours, theirs in zip(wanted, made, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-6)


@pytest.mark.parametrize("plan", ["torch", "npu", "npu-paged"])
def test_a_program_exports_and_compiles_as_one_graph(plan):
    import dataclasses

    config = dataclasses.replace(CONFIGS["qwen3"], head_dim=64, num_layers=1, dtype="bfloat16")
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), weights(config))
    one = lowering_target("judge", config, Sizes(2, 3, 128, 128), weights=narrow)
    program = one.lower(plan=plan)
    wanted = jax.tree.leaves(program(*on_device(one.args, plan)))
    operands = program.operands(jax.tree.leaves(on_device(one.args, plan)))
    exported = program.export(*on_device(one.args, plan))
    # AOTAutograd takes no custom operator that returns its own input, as npu_scatter_nd_update_
    backend = "eager" if plan == "npu" else "aot_eager"
    compiled = torch.compile(program.module, fullgraph=True, backend=backend)
    for run in (exported.module(), compiled):
        with torch.no_grad():
            fresh = program.operands(jax.tree.leaves(on_device(one.args, plan)))
            made = run(*fresh)
        assert len(fresh) == len(operands)
        for ours, theirs in zip(wanted, made, strict=True):
            torch.testing.assert_close(theirs, ours, rtol=0, atol=0.05)

"""Lowering rules from JAX primitives to PyTorch: one small function per primitive.

A rule takes the equation and its operands and returns one value, or a tuple of them. Operands
that are tensors are constants, and are computed with at once; for fx proxies a call is recorded.
So the same table folds constants and writes the graph.
"""

import operator
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
import torch
from torch import fx

Equation = Any  # a jax.extend.core.JaxprEqn
Operand = Any  # a torch.Tensor, which is a constant, or an fx.Proxy
Rule = Callable[..., Any]  # (equation, *operands) -> a value, or a tuple of them

aten = torch.ops.aten
TAKES_NUMBERS = {
    torch.add, torch.sub, torch.mul, torch.div, torch.lt, torch.le, torch.gt, torch.ge,
    torch.eq, torch.ne, torch.pow, torch.fmod,
}  # fmt: skip


class Refused(NotImplementedError):
    """A program uses something that the bridge cannot lower; the message names it."""


def call(target: Callable[..., Any], *args: Any, **options: Any) -> Operand:
    """Return ``target(*args, **options)``: computed if all are constants, recorded otherwise.

    A constant without dimensions becomes a Python number where the target takes one.
    """
    proxies = [x for x in flat(args) if isinstance(x, fx.Proxy)]
    if not proxies:
        return target(*args, **options)
    if target in TAKES_NUMBERS:
        args = tuple(x.item() if is_scalar(x) else x for x in args)
    args = to_python(args)
    return proxies[0].tracer.create_proxy("call_function", target, args, options)


def flat(args: Iterable[Any]) -> list[Any]:
    """Return the operands, those inside of lists too."""
    return [y for x in args for y in (flat(x) if isinstance(x, list | tuple) else [x])]


def to_python(x: Any) -> Any:
    """Return x with NumPy's integers, which jaxprs have and graphs may not, as Python's."""
    if isinstance(x, list | tuple):
        return type(x)(map(to_python, x))
    return int(x) if isinstance(x, np.integer) else x


def is_scalar(x: Any) -> bool:
    """Return whether x is a constant without dimensions."""
    return isinstance(x, torch.Tensor) and x.ndim == 0


def to_dtype(dtype: Any) -> torch.dtype:
    """Return the torch dtype of a JAX dtype."""
    name = np.dtype(dtype).name
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise Refused(f"dtype {name} has no counterpart in torch: convert it before lowering.")
    return found


def constant(value: Any) -> torch.Tensor:
    """Return a JAX or NumPy constant as a tensor."""
    array = np.array(value)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(array)


def cast(x: Operand, dtype: torch.dtype) -> Operand:
    """Return x converted to a dtype."""
    return call(aten.to.dtype, x, dtype)


def shape_of(eqn: Equation, operand: int = 0) -> tuple[int, ...]:
    """Return an operand's shape."""
    return eqn.invars[operand].aval.shape


def out(eqn: Equation) -> Any:
    """Return the first result's abstract value (shape and dtype)."""
    return eqn.outvars[0].aval


RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Decorate the rule of the named primitives."""

    def enter(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return enter


def plain(target: Callable[..., Any]) -> Rule:
    """Return the rule of a primitive that is one torch function."""
    return lambda eqn, *args: call(target, *args)


SAME: dict[str, Callable[..., Any]] = {
    "add": torch.add, "add_any": torch.add, "sub": torch.sub, "mul": torch.mul,
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "floor": torch.floor,
    "ceil": torch.ceil, "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1,
    "log": torch.log, "log1p": torch.log1p, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "cos": torch.cos, "sin": torch.sin, "tanh": torch.tanh, "logistic": torch.sigmoid,
    "erf": torch.erf, "square": torch.square, "is_finite": torch.isfinite,
    "pow": torch.pow, "max": torch.maximum, "min": torch.minimum, "rem": torch.fmod,
    "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge, "eq": torch.eq,
    "ne": torch.ne, "and": torch.bitwise_and, "or": torch.bitwise_or,
    "xor": torch.bitwise_xor, "not": torch.bitwise_not,
}  # fmt: skip
RULES |= {name: plain(target) for name, target in SAME.items()}


@rule("optimization_barrier", "stop_gradient", "copy", "copy_p")
def same(eqn: Equation, *args: Operand) -> Any:
    """Return the operands: these primitives only matter to XLA."""
    return args[0] if len(args) == 1 else args


@rule("round")
def nearest(eqn: Equation, x: Operand) -> Any:
    """Round to nearest, ties to even."""
    if eqn.params["rounding_method"] != jax.lax.RoundingMethod.TO_NEAREST_EVEN:
        raise Refused("round away from zero: only ties to even are implemented.")
    return call(torch.round, x)


@rule("div")
def divide(eqn: Equation, x: Operand, y: Operand) -> Any:
    """Divide; integers towards zero."""
    if np.issubdtype(out(eqn).dtype, np.integer):
        return call(torch.div, x, y, rounding_mode="trunc")
    return call(torch.div, x, y)


@rule("integer_pow")
def integer_pow(eqn: Equation, x: Operand) -> Any:
    """Raise to a static power."""
    return call(torch.pow, x, eqn.params["y"])


@rule("convert_element_type")
def convert(eqn: Equation, x: Operand) -> Any:
    """Convert element by element."""
    return cast(x, to_dtype(eqn.params["new_dtype"]))


@rule("bitcast_convert_type")
def bitcast(eqn: Equation, x: Operand) -> Any:
    """Reinterpret the bits as another dtype of that width."""
    return call(aten.view.dtype, x, to_dtype(eqn.params["new_dtype"]))


@rule("select_n")
def select(eqn: Equation, which: Operand, *cases: Operand) -> Any:
    """Choose element by element between two cases."""
    if len(cases) != 2:
        raise Refused(f"select_n with {len(cases)} cases: only two are implemented.")
    return call(torch.where, which, cases[1], cases[0])


@rule("clamp")
def clamp(eqn: Equation, least: Operand, x: Operand, most: Operand) -> Any:
    """Bound from below and above."""
    return call(torch.minimum, call(torch.maximum, x, least), most)


@rule("iota")
def iota(eqn: Equation) -> torch.Tensor:
    """Return the indices along one axis, a constant."""
    shape, axis = eqn.params["shape"], eqn.params["dimension"]
    count = torch.arange(shape[axis], dtype=to_dtype(eqn.params["dtype"]))
    return count.reshape([-1 if d == axis else 1 for d in range(len(shape))]).expand(shape)


@rule("broadcast_in_dim")
def broadcast(eqn: Equation, x: Operand) -> Any:
    """Insert axes and repeat along axes of size 1."""
    shape, places = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    wide = [1] * len(shape)
    for place, size in zip(places, shape_of(eqn), strict=True):
        wide[place] = size
    x = x if tuple(wide) == shape_of(eqn) else call(torch.reshape, x, wide)
    return x if tuple(wide) == tuple(shape) else call(aten.expand.default, x, list(shape))


@rule("reshape", "squeeze", "expand_dims")
def reshape(eqn: Equation, x: Operand) -> Any:
    """Reshape, or add or remove axes of size 1."""
    return call(torch.reshape, x, list(out(eqn).shape))


@rule("transpose")
def transpose(eqn: Equation, x: Operand) -> Any:
    """Permute axes."""
    return call(torch.permute, x, list(eqn.params["permutation"]))


@rule("rev")
def reverse(eqn: Equation, x: Operand) -> Any:
    """Reverse axes."""
    return call(torch.flip, x, list(eqn.params["dimensions"]))


@rule("concatenate")
def concatenate(eqn: Equation, *parts: Operand) -> Any:
    """Concatenate along an axis."""
    return call(torch.cat, list(parts), eqn.params["dimension"])


@rule("split")
def split(eqn: Equation, x: Operand) -> Any:
    """Split along an axis."""
    sizes = list(eqn.params["sizes"])
    parts = call(torch.split, x, sizes, eqn.params["axis"])
    return tuple(call(operator.getitem, parts, i) for i in range(len(sizes)))


@rule("slice")
def cut(eqn: Equation, x: Operand) -> Any:
    """Take a static slice of every axis."""
    starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
    strides = eqn.params["strides"] or (1,) * len(starts)
    for axis, size in enumerate(shape_of(eqn)):
        wanted = (starts[axis], limits[axis], strides[axis])
        if wanted != (0, size, 1):
            x = call(aten.slice.Tensor, x, axis, *wanted)
    return x


@rule("pad")
def pad(eqn: Equation, x: Operand, value: Operand) -> Any:
    """Pad with a constant; negative widths remove elements."""
    config = eqn.params["padding_config"]
    if any(inside for _, _, inside in config):
        raise Refused(f"pad between elements: {config}.")
    if not any(low or high for low, high, _ in config):
        return x
    if not is_scalar(value):
        raise Refused("pad with a value that is computed.")
    widths = [width for low, high, _ in reversed(config) for width in (low, high)]
    return call(torch.nn.functional.pad, x, widths, "constant", value.item())


@rule("dynamic_slice")
def dynamic_slice(eqn: Equation, x: Operand, *starts: Operand) -> Any:
    """Take a slice at given starts, which are clamped so that it is in bounds."""
    for axis, (start, size) in enumerate(zip(starts, eqn.params["slice_sizes"], strict=True)):
        full = shape_of(eqn)[axis]
        if size == full:
            continue
        start = call(torch.clamp, start, 0, full - size)
        places = call(torch.add, torch.arange(size, dtype=torch.int32), start)
        x = call(torch.index_select, x, axis, places)
    return x


@rule("dot_general")
def dot_general(eqn: Equation, x: Operand, y: Operand) -> Any:
    """Multiply matrices: the result has batch axes first, then the free axes of either side."""
    (x_sum, y_sum), (x_batch, y_batch) = eqn.params["dimension_numbers"]
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    x_name = [next(letters) for _ in shape_of(eqn, 0)]
    y_name = [next(letters) for _ in shape_of(eqn, 1)]
    for i, j in zip((*x_sum, *x_batch), (*y_sum, *y_batch), strict=True):
        y_name[j] = x_name[i]
    name = [x_name[i] for i in x_batch]
    name += [c for i, c in enumerate(x_name) if i not in (*x_sum, *x_batch)]
    name += [c for i, c in enumerate(y_name) if i not in (*y_sum, *y_batch)]
    dtype = to_dtype(out(eqn).dtype)
    if to_dtype(eqn.invars[0].aval.dtype) != dtype:
        x, y = cast(x, dtype), cast(y, dtype)
    return call(torch.einsum, f"{''.join(x_name)},{''.join(y_name)}->{''.join(name)}", x, y)


@rule("ragged_dot_general")
def ragged_dot(eqn: Equation, x: Operand, stack: Operand, counts: Operand) -> Any:
    """Multiply each row by the matrix of its group; groups of rows lie one behind the other.

    For few rows each row's matrix is gathered, so that no other is read. For more rows than there
    are matrices each matrix is multiplied once, by all rows.
    """
    (rows, _), (groups, _, _) = shape_of(eqn, 0), shape_of(eqn, 1)
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    plain = (((1,), (1,)), ((), ())), (0,), (0,)
    found = (
        numbers.dot_dimension_numbers, numbers.lhs_ragged_dimensions, numbers.rhs_group_dimensions
    )  # fmt: skip
    if tuple(map(_tuples, found)) != plain or eqn.params.get("group_offset") is not None:
        raise NotImplementedError(f"ragged_dot_general of other axes: {numbers}")
    dtype = to_dtype(out(eqn).dtype)
    x, stack = cast(x, dtype), cast(stack, dtype)
    ends = call(torch.cumsum, counts, 0)
    own = call(torch.searchsorted, ends, torch.arange(rows, dtype=torch.int32), right=True)
    if rows <= groups:
        return call(torch.einsum, "pi,pio->po", x, call(torch.index_select, stack, 0, own))
    y = call(torch.matmul, x, call(torch.select, stack, 0, 0))
    for group in range(1, groups):
        made = call(torch.matmul, x, call(torch.select, stack, 0, group))
        is_own = call(torch.unsqueeze, call(torch.eq, own, group), 1)
        y = call(torch.where, is_own, made, y)
    return y


def _tuples(x: Any) -> Any:
    return tuple(map(_tuples, x)) if isinstance(x, (tuple, list)) else x


def reduction(target: Callable[..., Any], *, keeps_dtype: bool) -> Rule:
    """Return the rule of a reduction over ``axes``."""

    def reduce(eqn: Equation, x: Operand) -> Operand:
        axes = list(eqn.params["axes"])
        if not axes:
            return x
        options = {"dtype": to_dtype(out(eqn).dtype)} if keeps_dtype else {}
        return call(target, x, axes, **options)

    return reduce


RULES["reduce_sum"] = reduction(torch.sum, keeps_dtype=True)
RULES["reduce_max"] = reduction(torch.amax, keeps_dtype=False)
RULES["reduce_min"] = reduction(torch.amin, keeps_dtype=False)
RULES["reduce_or"] = reduction(torch.any, keeps_dtype=False)
RULES["reduce_and"] = reduction(torch.all, keeps_dtype=False)


def arg_reduction(target: Callable[..., Any]) -> Rule:
    """Return the rule of argmax or argmin: the first of equals, as in JAX."""

    def reduce(eqn: Equation, x: Operand) -> Operand:
        (axis,) = eqn.params["axes"]
        if eqn.invars[0].aval.dtype == bool:
            x = cast(x, torch.uint8)
        return cast(call(target, x, axis), to_dtype(eqn.params["index_dtype"]))

    return reduce


RULES["argmax"] = arg_reduction(torch.argmax)
RULES["argmin"] = arg_reduction(torch.argmin)


def cumulative(target: Callable[..., Any]) -> Rule:
    """Return the rule of a cumulative sum or product."""

    def run(eqn: Equation, x: Operand) -> Operand:
        axis, backwards = eqn.params["axis"], eqn.params["reverse"]
        x = call(torch.flip, x, [axis]) if backwards else x
        x = call(target, x, axis, dtype=to_dtype(out(eqn).dtype))
        return call(torch.flip, x, [axis]) if backwards else x

    return run


RULES["cumsum"] = cumulative(torch.cumsum)
RULES["cumprod"] = cumulative(torch.cumprod)


@rule("sort")
def sort(eqn: Equation, *operands: Operand) -> Any:
    """Sort all operands by the first one, stably."""
    if eqn.params["num_keys"] != 1:
        raise Refused(f"sort by {eqn.params['num_keys']} keys: only one is implemented.")
    axis = eqn.params["dimension"]
    both = call(torch.sort, operands[0], dim=axis, stable=True)
    order = call(operator.getitem, both, 1)
    rest = tuple(call(torch.gather, x, axis, order) for x in operands[1:])
    return (call(operator.getitem, both, 0), *rest)


@rule("top_k")
def top_k(eqn: Equation, x: Operand) -> Any:
    """Return the k largest of the last axis, the first of equals (torch.topk may return others)."""
    k, axis = eqn.params["k"], len(shape_of(eqn)) - 1
    both = call(torch.sort, x, dim=axis, stable=True, descending=True)
    values, order = (call(operator.getitem, both, i) for i in range(2))
    values, order = (call(aten.slice.Tensor, y, axis, 0, k) for y in (values, order))
    return values, cast(order, to_dtype(eqn.outvars[1].aval.dtype))

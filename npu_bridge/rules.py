"""What each JAX primitive is in PyTorch: one small rule per primitive.

A rule takes the equation and its operands and returns one value, or a tuple of them. Operands
are tensors, which are constants and are computed with at once, or fx proxies, with which a call
is recorded. So one table folds constants and writes the graph.
"""

import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from torch import fx

aten = torch.ops.aten
TAKES_NUMBERS = {
    torch.add, torch.sub, torch.mul, torch.div, torch.lt, torch.le, torch.gt, torch.ge,
    torch.eq, torch.ne, torch.pow, torch.fmod,
}  # fmt: skip


class Refused(NotImplementedError):
    """A program uses what the bridge cannot lower; the message names it."""


def call(target: Callable, *args, **options) -> Any:
    """Compute with constants at once; record a call where an operand is a proxy.

    A constant of no dimensions becomes a number where the target takes one.
    """
    proxies = [x for x in flat(args) if isinstance(x, fx.Proxy)]
    if not proxies:
        return target(*args, **options)
    if target in TAKES_NUMBERS:
        args = tuple(x.item() if is_scalar(x) else x for x in args)
    args = to_python(args)
    return proxies[0].tracer.create_proxy("call_function", target, args, options)


def flat(args) -> list:
    """List operands, those inside of lists too."""
    return [y for x in args for y in (flat(x) if isinstance(x, list | tuple) else [x])]


def to_python(x: Any) -> Any:
    """Replace NumPy's integers, which jaxprs have and graphs may not."""
    if isinstance(x, list | tuple):
        return type(x)(map(to_python, x))
    return int(x) if isinstance(x, np.integer) else x


def is_scalar(x: Any) -> bool:
    """Whether x is a constant of no dimensions."""
    return isinstance(x, torch.Tensor) and x.ndim == 0


def to_dtype(dtype) -> torch.dtype:
    """Return torch's name of a JAX dtype."""
    name = np.dtype(dtype).name
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise Refused(f"dtype {name} has no counterpart in torch: convert it before lowering.")
    return found


def constant(value) -> torch.Tensor:
    """Copy a JAX or NumPy constant."""
    array = np.array(value)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(array)


def cast(x, dtype: torch.dtype):
    """Convert element by element."""
    return call(aten.to.dtype, x, dtype)


def shape_of(eqn, operand: int = 0) -> tuple[int, ...]:
    """Return an operand's shape."""
    return eqn.invars[operand].aval.shape


def out(eqn):
    """Return the first result's shape and dtype."""
    return eqn.outvars[0].aval


RULES: dict[str, Callable] = {}


def rule(*names: str):
    """Enter a function into the table."""

    def enter(function):
        for name in names:
            RULES[name] = function
        return function

    return enter


def plain(target: Callable) -> Callable:
    """Make the rule of a primitive that torch has under another name."""
    return lambda eqn, *args: call(target, *args)


SAME: dict[str, Callable] = {
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
def same(eqn, *args: Any):
    """Pass on: these say something to XLA only."""
    return args[0] if len(args) == 1 else args


@rule("round")
def nearest(eqn, x):
    """Round, ties to even."""
    if eqn.params["rounding_method"] != jax.lax.RoundingMethod.TO_NEAREST_EVEN:
        raise Refused("round away from zero: only ties to even are implemented.")
    return call(torch.round, x)


@rule("div")
def divide(eqn, x, y):
    """Divide; integers towards zero."""
    if np.issubdtype(out(eqn).dtype, np.integer):
        return call(torch.div, x, y, rounding_mode="trunc")
    return call(torch.div, x, y)


@rule("integer_pow")
def integer_pow(eqn, x):
    """Raise to a static power."""
    return call(torch.pow, x, eqn.params["y"])


@rule("convert_element_type")
def convert(eqn, x):
    """Convert element by element."""
    return cast(x, to_dtype(eqn.params["new_dtype"]))


@rule("bitcast_convert_type")
def bitcast(eqn, x):
    """Read the same bits as another dtype of that width."""
    return call(aten.view.dtype, x, to_dtype(eqn.params["new_dtype"]))


@rule("select_n")
def select(eqn, which, *cases):
    """Choose element by element between two cases."""
    if len(cases) != 2:
        raise Refused(f"select_n with {len(cases)} cases: only two are implemented.")
    return call(torch.where, which, cases[1], cases[0])


@rule("clamp")
def clamp(eqn, least, x, most):
    """Bound from below and above."""
    return call(torch.minimum, call(torch.maximum, x, least), most)


@rule("iota")
def iota(eqn):
    """Count along one axis: a constant."""
    shape, axis = eqn.params["shape"], eqn.params["dimension"]
    count = torch.arange(shape[axis], dtype=to_dtype(eqn.params["dtype"]))
    return count.reshape([-1 if d == axis else 1 for d in range(len(shape))]).expand(shape)


@rule("broadcast_in_dim")
def broadcast(eqn, x):
    """Insert axes and repeat along axes of size 1."""
    shape, places = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    wide = [1] * len(shape)
    for place, size in zip(places, shape_of(eqn), strict=True):
        wide[place] = size
    x = x if tuple(wide) == shape_of(eqn) else call(torch.reshape, x, wide)
    return x if tuple(wide) == tuple(shape) else call(aten.expand.default, x, list(shape))


@rule("reshape", "squeeze", "expand_dims")
def reshape(eqn, x):
    """Read the same elements, in order, as another shape."""
    return call(torch.reshape, x, list(out(eqn).shape))


@rule("transpose")
def transpose(eqn, x):
    """Permute axes."""
    return call(torch.permute, x, list(eqn.params["permutation"]))


@rule("rev")
def reverse(eqn, x):
    """Turn axes round."""
    return call(torch.flip, x, list(eqn.params["dimensions"]))


@rule("concatenate")
def concatenate(eqn, *parts):
    """Join along an axis."""
    return call(torch.cat, list(parts), eqn.params["dimension"])


@rule("split")
def split(eqn, x):
    """Cut along an axis."""
    sizes = list(eqn.params["sizes"])
    parts = call(torch.split, x, sizes, eqn.params["axis"])
    return tuple(call(operator.getitem, parts, i) for i in range(len(sizes)))


@rule("slice")
def cut(eqn, x):
    """Take a static range of every axis."""
    starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
    strides = eqn.params["strides"] or (1,) * len(starts)
    for axis, size in enumerate(shape_of(eqn)):
        wanted = (starts[axis], limits[axis], strides[axis])
        if wanted != (0, size, 1):
            x = call(aten.slice.Tensor, x, axis, *wanted)
    return x


@rule("pad")
def pad(eqn, x, value):
    """Put a constant around; negative widths cut."""
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
def dynamic_slice(eqn, x, *starts):
    """Take a range that starts at given places, moved inside where it sticks out."""
    for axis, (start, size) in enumerate(zip(starts, eqn.params["slice_sizes"], strict=True)):
        full = shape_of(eqn)[axis]
        if size == full:
            continue
        start = call(torch.clamp, start, 0, full - size)
        places = call(torch.add, torch.arange(size, dtype=torch.int32), start)
        x = call(torch.index_select, x, axis, places)
    return x


@rule("dot_general")
def dot_general(eqn, x, y):
    """Multiply matrices: batch axes first, then what is left of either side."""
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


def reduction(target: Callable, *, keeps_dtype: bool) -> Callable:
    """Make the rule of a reduction over ``axes``."""

    def reduce(eqn, x):
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


def arg_reduction(target: Callable) -> Callable:
    """Make the rule of argmax or argmin: the first of equals, as in JAX."""

    def reduce(eqn, x):
        (axis,) = eqn.params["axes"]
        if eqn.invars[0].aval.dtype == bool:
            x = cast(x, torch.uint8)
        return cast(call(target, x, axis), to_dtype(eqn.params["index_dtype"]))

    return reduce


RULES["argmax"] = arg_reduction(torch.argmax)
RULES["argmin"] = arg_reduction(torch.argmin)


def cumulative(target: Callable) -> Callable:
    """Make the rule of a running sum or product."""

    def run(eqn, x):
        axis, backwards = eqn.params["axis"], eqn.params["reverse"]
        x = call(torch.flip, x, [axis]) if backwards else x
        x = call(target, x, axis, dtype=to_dtype(out(eqn).dtype))
        return call(torch.flip, x, [axis]) if backwards else x

    return run


RULES["cumsum"] = cumulative(torch.cumsum)
RULES["cumprod"] = cumulative(torch.cumprod)


@rule("sort")
def sort(eqn, *operands):
    """Sort by the first operand and carry the others along; equals stay in order."""
    if eqn.params["num_keys"] != 1:
        raise Refused(f"sort by {eqn.params['num_keys']} keys: only one is implemented.")
    axis = eqn.params["dimension"]
    both = call(torch.sort, operands[0], dim=axis, stable=True)
    order = call(operator.getitem, both, 1)
    rest = tuple(call(torch.gather, x, axis, order) for x in operands[1:])
    return (call(operator.getitem, both, 0), *rest)


@rule("top_k")
def top_k(eqn, x):
    """Return the k largest of the last axis, of equals the first (torch.topk promises none)."""
    k, axis = eqn.params["k"], len(shape_of(eqn)) - 1
    both = call(torch.sort, x, dim=axis, stable=True, descending=True)
    values, order = (call(operator.getitem, both, i) for i in range(2))
    values, order = (call(aten.slice.Tensor, y, axis, 0, k) for y in (values, order))
    return values, cast(order, to_dtype(eqn.outvars[1].aval.dtype))

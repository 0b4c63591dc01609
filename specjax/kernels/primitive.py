"""JAX primitives that are a kernel on one CPU, and plain JAX elsewhere."""

from collections.abc import Callable

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

ArrayFunction = Callable[..., jax.Array]  # of arrays

FORMS: dict[str, ArrayFunction] = {}  # the plain form of each primitive, by its name


def two_forms(name: str, plain: ArrayFunction, cpu: ArrayFunction) -> ArrayFunction:
    """Return a function that is ``cpu`` in a program for one CPU, and ``plain`` elsewhere.

    ``plain`` is used on other platforms, for arrays on several devices, and under ``grad`` and
    ``vmap``. In a jaxpr it is the primitive ``name``.
    """
    primitive = Primitive(name)
    FORMS[name] = plain
    in_xla = mlir.lower_fun(plain, multiple_results=False)
    in_kernel = mlir.lower_fun(cpu, multiple_results=False)

    def lower(context, *operands):
        devices = getattr(context.module_context.axis_context, "num_devices", 1)
        return (in_kernel if devices == 1 else in_xla)(context, *operands)

    def differentiate(primals, tangents):
        return jax.jvp(plain, primals, tuple(map(ad.instantiate_zeros, tangents)))

    def batch(arrays, axes):
        return jax.vmap(plain, in_axes=axes)(*arrays), 0

    def abstract(*shapes):
        found = jax.eval_shape(plain, *(jax.ShapeDtypeStruct(s.shape, s.dtype) for s in shapes))
        return shapes[0].update(shape=found.shape, dtype=found.dtype, weak_type=False)

    primitive.def_impl(jax.jit(primitive.bind))
    primitive.def_abstract_eval(abstract)
    mlir.register_lowering(primitive, in_xla)
    mlir.register_lowering(primitive, lower, platform="cpu")
    ad.primitive_jvps[primitive] = differentiate
    batching.primitive_batchers[primitive] = batch
    return primitive.bind

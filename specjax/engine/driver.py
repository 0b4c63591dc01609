"""Who runs what the loop asks for: XLA here, npu_bridge's executor on another kind of device."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax

from specjax import cache, decode
from specjax.sampling import Sampling
from specjax.types import Cache, Engine, Params, PyTree, State, Text


class Driver(NamedTuple):
    """The loop's programs; whatever holds states, only the functions of its driver touch it."""

    init_state: Callable  # as decode.init_state, placed like all states that follow from it
    fit: Callable  # (state, window) -> state, whose caches an attention reads whole
    place: Callable  # (params, arrays) -> arrays: from the host to where a state has them
    prefill: Callable  # as decode.prefill
    generate: Callable  # as decode.generate
    admit: Callable  # as cache.admit
    leave: Callable  # as cache.leave
    select: Callable  # as cache.select
    ahead: bool = False  # programs run while the host goes on: it may ask before it is answered


prefill = jax.jit(decode.prefill, static_argnums=(0, 4), donate_argnums=2)
generate = jax.jit(decode.generate, static_argnums=(0, 5), donate_argnums=2)
admit = jax.jit(cache.admit, donate_argnums=0)
leave = jax.jit(cache.leave, donate_argnums=0)
select = jax.jit(cache.select)
resize = jax.jit(cache.resize, static_argnums=1)


def init_state(
    engine: Engine, params: Params, text: Text, sampling: Sampling, keys: jax.Array
) -> State:
    """Allocate a state, placed like all that follow from it: else it compiles anew.

    Its caches have ``engine.window`` positions.
    """
    return allocator(beside(params))(engine, params, text, sampling, keys)


def fit(state: State, window: int) -> State:
    """Make the caches as large as the window.

    A product takes no part of a buffer as it is: to read 256 of 2,048 positions XLA copies them
    first, in every layer of every round (32 rows of the bundled target: 17 ms instead of 3). And
    what nobody has written yet takes no memory.
    """

    def one(node):
        if not isinstance(node, Cache):
            return node
        return node._replace(
            keys=tuple(resize(leaf, window) for leaf in node.keys),
            values=tuple(resize(leaf, window) for leaf in node.values),
        )

    if cache.width(state) == window:
        return state
    return jax.tree.map(one, state, is_leaf=lambda node: isinstance(node, Cache))


def fresh(engine: Engine, params: Params, text: Text, sampling: Sampling, keys) -> State:
    """Allocate a state whose caches fit."""
    return fit(decode.init_state(engine, params, text, sampling, keys), engine.window)


def place(params: Params, arrays: PyTree) -> PyTree:
    """Put arrays beside the weights."""
    return jax.device_put(arrays, beside(params))


def beside(params: Params) -> jax.sharding.Sharding | None:
    """Return where the weights are; where several devices share them, XLA chooses."""
    where = jax.tree.leaves(params.target)[0].sharding
    return where if where.num_devices == 1 else None


@functools.cache
def allocator(where: jax.sharding.Sharding | None) -> Callable:
    """Return a program that allocates a state there: putting it there leaf by leaf took 2 ms."""
    return jax.jit(fresh, static_argnums=0, out_shardings=where)


XLA = Driver(init_state, fit, place, prefill, generate, admit, leave, select, ahead=True)

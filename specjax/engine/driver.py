"""Who runs what the loop asks for: XLA here, npu_bridge's executor on another kind of device."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from specjax import cache, decode
from specjax.sampling import Sampling
from specjax.types import Engine, Params, PyTree, State, Text


class Driver(NamedTuple):
    """The loop's programs; whatever holds states, only the functions of its driver touch it."""

    init_state: Callable  # as decode.init_state, placed like all states that follow from it
    place: Callable  # (params, arrays) -> arrays: from the host to where a state has them
    prefill: Callable  # as decode.prefill
    generate: Callable  # as decode.generate
    admit: Callable  # as cache.admit
    leave: Callable  # as cache.leave
    select: Callable  # as cache.select


allocate = jax.jit(decode.init_state, static_argnums=0)
prefill = jax.jit(decode.prefill, static_argnums=(0, 4), donate_argnums=2)
generate = jax.jit(decode.generate, static_argnums=(0, 5), donate_argnums=2)
admit = jax.jit(cache.admit, donate_argnums=0)
leave = jax.jit(cache.leave, donate_argnums=0)
select = jax.jit(cache.select)


def init_state(
    engine: Engine, params: Params, text: Text, sampling: Sampling, keys: jax.Array
) -> State:
    """Allocate a state, placed like all that follow from it: else it compiles anew."""
    return place(params, allocate(engine, params, text, sampling, keys))


def place(params: Params, arrays: PyTree) -> PyTree:
    """Put arrays beside the weights; where several devices share them, XLA chooses."""
    where = jax.tree.leaves(params.target)[0].sharding
    return jax.device_put(arrays, where if where.num_devices == 1 else None)


XLA = Driver(init_state, place, prefill, generate, admit, leave, select)

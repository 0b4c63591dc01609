"""The programs the loop runs: compiled by XLA here, or by npu_bridge for a torch device."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from specjax.core import cache, constrained, decode
from specjax.core.types import (
    Cache,
    Draft,
    Engine,
    Logprobs,
    Output,
    Params,
    PyTree,
    Ring,
    Sampling,
    Slots,
    State,
    StepInfo,
    Text,
)
from specjax.engine.rows import Host


class InitState(Protocol):
    """Allocate a state on the device."""

    def __call__(
        self, engine: Engine, params: Params, text: Text, sampling: Sampling, keys: jax.Array, /
    ) -> State:
        """Return what ``decode.init_state`` does, placed as the states that programs return."""
        ...


class Fit(Protocol):
    """Change the size of a state's caches."""

    def __call__(self, state: State, window: int, /) -> State:
        """Return the state with caches of which attention reads ``window`` positions."""
        ...


class Place(Protocol):
    """Move arrays to the device."""

    def __call__(self, params: Params, arrays: PyTree, /) -> PyTree:
        """Return a pytree of host arrays where states have theirs."""
        ...


class Prefill(Protocol):
    """Read a chunk of prompts."""

    def __call__(
        self, engine: Engine, params: Params, state: State, start: int, chunk: int, /
    ) -> tuple[State, StepInfo, Logprobs | None]:
        """Return what ``decode.prefill`` does; the state passed in may be overwritten."""
        ...


class Generate(Protocol):
    """Run several rounds."""

    def __call__(
        self, engine: Engine, params: Params, state: State, max_rounds: int, min_running: int,
        history: int, /,
    ) -> tuple[State, StepInfo | None, Any]:  # fmt: skip
        """Return what ``decode.generate`` does; the state passed in may be overwritten."""
        ...


class InsertRow(Protocol):
    """Put a request into the batch."""

    def __call__(self, state: State, slot: int, row: State, /) -> State:
        """Return what ``cache.insert_row`` does; the state passed in may be overwritten."""
        ...


class ReleaseSlot(Protocol):
    """Take a request out of the batch."""

    def __call__(self, state: State, slot: int, /) -> State:
        """Return what ``cache.release_slot`` does; the state passed in may be overwritten."""
        ...


class Select(Protocol):
    """Change the size of the batch."""

    def __call__(self, state: State, slots: np.ndarray, num_rows: int, /) -> State:
        """Return what ``cache.select`` does."""
        ...


class Resume(Protocol):
    """Begin a prompt whose first positions have been read before."""

    def __call__(self, state: State, saved: list[Slots | Ring], length: int, /) -> State:
        """Return what ``cache.resume`` does; the state passed in may be overwritten."""
        ...


class Propose(Protocol):
    """Draft, and nothing else of a round."""

    def __call__(
        self, engine: Engine, params: PyTree, drafter_state: PyTree, text: Text,
        sampling: Sampling, keys: jax.Array, /,
    ) -> tuple[Draft, PyTree]:  # fmt: skip
        """Return what ``constrained.propose`` does; the drafter's state may be overwritten."""
        ...


class Forward(Protocol):
    """Run the target over a draft."""

    def __call__(
        self, engine: Engine, params: PyTree, cache: Cache, text: Text, draft: Draft,
        present: Host, /,
    ) -> tuple[Output, jax.Array, Cache]:  # fmt: skip
        """Return what ``constrained.forward`` does; the cache passed in may be overwritten."""
        ...


class ReadRoot(Protocol):
    """Run the target over a draft that is the root alone."""

    def __call__(
        self, engine: Engine, params: Params, state: tuple[Cache, PyTree], text: Text,
        sampling: Sampling, keys: jax.Array, /,
    ) -> tuple[Draft, Output, jax.Array, tuple[Cache, PyTree]]:  # fmt: skip
        """Return what ``constrained.read_root`` does; the state passed in may be overwritten."""
        ...


class Verify(Protocol):
    """Verify a draft under masks."""

    def __call__(
        self, engine: Engine, params: PyTree, state: constrained.Changing, sampling: Sampling,
        keys: jax.Array, draft: Draft, output: Output, logits: jax.Array, mask: Host, /,
    ) -> tuple[constrained.Changing, StepInfo]:  # fmt: skip
        """Return what ``constrained.verify`` does; the state passed in may be overwritten."""
        ...


class Masked(NamedTuple):
    """The programs of a round under masks, which the host makes of the draft.

    Its arrays need not be placed: a program takes them in a tenth of the time of ``Place``.
    """

    propose: Propose
    forward: Forward
    read_root: ReadRoot
    verify: Verify


class Driver(NamedTuple):
    """The loop's programs on one kind of device. States are opaque to all but their driver."""

    init_state: InitState
    fit: Fit
    place: Place
    prefill: Prefill
    generate: Generate
    insert_row: InsertRow
    release_slot: ReleaseSlot
    select: Select
    asynchronous: bool = False  # the next program may start before results are read
    masked: Masked | None = None  # None: no structured output
    resume: Resume | None = None  # None: no prefix caching


insert_row = jax.jit(cache.insert_row, donate_argnums=0)
release_slot = jax.jit(cache.release_slot, donate_argnums=0)
select = jax.jit(cache.select)
resume = jax.jit(cache.resume, donate_argnums=0)
resize = jax.jit(cache.resize, static_argnums=1)


def init_state(
    engine: Engine, params: Params, text: Text, sampling: Sampling, keys: jax.Array
) -> State:
    """Return a new state with caches of ``engine.window`` positions.

    It has the sharding of the states that programs return: with another one they would compile
    again.
    """
    return allocator(sharding_of(params))(engine, params, text, sampling, keys)


def fit(state: State, window: int) -> State:
    """Return the state with caches as large as the window.

    XLA cannot multiply by a slice of a buffer in place: to read 256 of 2,048 positions it copies
    them first, in every layer of every round (32 rows of the bundled target: 17 ms instead of 3).
    Positions beyond the window would also take memory before they are written. Rings stay as they
    are.
    """

    def one(node):
        return resize(node, window) if isinstance(node, Slots) else node

    if cache.capacity(state) == window:
        return state
    return jax.tree.map(one, state, is_leaf=lambda node: isinstance(node, Slots))


def fresh(engine: Engine, params: Params, text: Text, sampling: Sampling, keys: Array) -> State:
    """Return a new state whose caches have the window's size."""
    return fit(decode.init_state(engine, params, text, sampling, keys), engine.window)


def place(params: Params, arrays: PyTree) -> PyTree:
    """Return the arrays on the device of the weights."""
    return jax.device_put(arrays, sharding_of(params))


def sharding_of(params: Params) -> jax.sharding.Sharding | None:
    """Return the sharding of the weights; None, for XLA to choose, where several devices share."""
    where = jax.tree.leaves(params.target)[0].sharding
    return where if where.num_devices == 1 else None


@functools.cache
def allocator(where: jax.sharding.Sharding | None) -> Callable[..., State]:
    """Return a program that allocates a state there; leaf by leaf it took 2 ms."""
    return jax.jit(fresh, static_argnums=0, out_shardings=where)


def driver_for(where: jax.sharding.Sharding | None) -> Driver:
    """Return the driver whose programs leave what the host reads with a sharding; None: XLA's."""

    def program(function: Callable, static: Any, read: Any) -> Any:
        pinned = None if where is None else read
        return jax.jit(function, static_argnums=static, donate_argnums=2, out_shardings=pinned)

    return Driver(
        init_state,
        fit,
        place,
        program(decode.prefill, (0, 4), (None, where, where)),
        program(decode.generate, (0, 5), (None, where, where)),
        insert_row,
        release_slot,
        select,
        asynchronous=True,
        masked=Masked(
            propose=program(constrained.propose, 0, (where, None)),
            forward=program(constrained.forward, 0, None),
            read_root=program(constrained.read_root, 0, (where, None, None, None)),
            verify=program(constrained.verify, 0, (None, where)),
        ),
        resume=resume,
    )


@functools.cache
def split_driver(mesh: jax.sharding.Mesh) -> Driver:
    """Return the driver of several devices: each has the whole of what the host reads.

    XLA chooses that by itself today; where processes share the devices, a host can read nothing
    else.
    """
    return driver_for(NamedSharding(mesh, PartitionSpec()))


XLA = driver_for(None)

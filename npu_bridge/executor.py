"""The engine's rounds as PyTorch programs: ``LLM(device="npu")``, or "torch-cpu" on a CPU.

A round is ``decode.step`` lowered, a chunk of a prompt ``decode.prefill`` lowered; key-value caches
and weights are on the device. The inputs of a round are text, sampling parameters and noise; its
outputs are text, counts and the drafter's observation. Drafters without weights (n-gram, suffix)
propose and observe in JAX, on the host. There is one program per (engine, window, rows, nodes).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from npu_bridge.ascend import MOST_TOP_K
from npu_bridge.lower import Program, lower
from npu_bridge.runtime import Captured, open_device
from npu_bridge.tensors import to_jax, to_torch
from specjax.core import cache as kv
from specjax.core import decode
from specjax.core.topology import chain_parents
from specjax.core.types import (
    RUNNING,
    Cache,
    Draft,
    Drafter,
    Engine,
    Logprobs,
    Observation,
    Params,
    PyTree,
    Sampling,
    Slots,
    State,
    StepInfo,
    Text,
)

# Cache slots past the text's end: the last chunk of a prompt may be padded by 63 positions, and a
# drafter reads one more. XLA drops writes out of bounds; writes in place need these slots.
SPARE = 64


@functools.cache
def relay(depth: int, nodes: int) -> Drafter:
    """Return a drafter that passes data to and from a host drafter, in its state.

    ``propose`` takes the state as the draft that the host has made, and ``observe`` returns the
    observation as the state, without hidden states.
    """

    def propose(params, state, text, sampling, keys, window):
        parents = chain_parents(*state.tokens.shape) if nodes == depth + 1 else state.parents
        return state._replace(parents=parents), ()

    def observe(params, state, text, observation, window):
        hidden, taps = observation.hidden[..., :0], observation.taps[..., :0, :]
        return observation._replace(hidden=hidden, taps=taps)

    return Drafter(lambda params, batch_size, capacity: (), propose, observe, depth, nodes)


@functools.partial(jax.jit, static_argnums=0)
def propose(
    engine: Engine,
    params: PyTree,
    text: Text,
    drafter_state: PyTree,
    sampling: Sampling,
    keys: jax.Array,
) -> tuple[Draft, PyTree]:
    """Return the draft of a drafter without weights, made on the host."""
    return engine.drafter.propose(params, drafter_state, text, sampling, keys, engine.window)


@functools.partial(jax.jit, static_argnums=0)
def observe(
    engine: Engine, params: PyTree, text: Text, drafter_state: PyTree, observation: Observation
) -> PyTree:
    """Return the new state of a drafter without weights, computed on the host."""
    return engine.drafter.observe(params, drafter_state, text, observation, engine.window)


# for the leaves of a state that are on the host
insert_row, release_slot, select = map(jax.jit, (kv.insert_row, kv.release_slot, kv.select))


class Executor:
    """The functions of an ``engine.driver.Driver`` on a torch device."""

    def __init__(self, device: str, host_drafter: bool, *, compile: bool = False):
        self.device = open_device(device)
        self.host_drafter, self.compile = host_drafter, compile
        self.plan = "npu" if self.device == "npu" else "torch"
        self.programs: dict[Any, Program] = {}
        self.compiled: dict[Any, Callable[..., Any]] = {}
        self.graphs: dict[Any, Captured] = {}

    @property
    def num_lowered(self) -> int:
        """The number of programs lowered so far."""
        return len(self.programs)

    def place_params(self, params: Params) -> Params:
        """Return the weights on the device; on a CPU they are not copied."""
        move = functools.partial(to_torch, device=self.device)
        draft = params.draft if self.host_drafter else jax.tree.map(move, params.draft)
        return Params(jax.tree.map(move, params.target), draft)

    def init_state(
        self, engine: Engine, params: Params, text: Text, sampling: Sampling, keys: jax.Array
    ) -> State:
        """Return a state with its caches on the device, and everything else on the host."""
        batch_size, capacity = text.tokens.shape
        shapes = jax.eval_shape(lambda: engine.target.init_cache(batch_size, capacity + SPARE))
        cache = jax.tree.map(self.allocate, shapes)
        if self.host_drafter:
            drafter_state = engine.drafter.init(params.draft, batch_size, capacity)
        else:
            drafter_state = engine.drafter.init(params.draft, batch_size, capacity + SPARE)
            drafter_state = jax.tree.map(self.allocate, drafter_state)
        text, sampling = self.place(params, (text, sampling))
        return State(text, cache, drafter_state, sampling, keys)

    def fit(self, state: State, window: int) -> State:
        """Return the state as it is: attention reads a part of a cache without a copy."""
        return state

    def place(self, params: Params, arrays: PyTree) -> PyTree:
        """Return the arrays as JAX arrays on the host."""
        return jax.tree.map(jnp.asarray, arrays)

    def allocate(self, leaf: jax.ShapeDtypeStruct | jax.Array) -> Any:
        """Return zeros: on the device if the leaf has several axes, else on the host."""
        if len(leaf.shape) < 2:
            return jnp.zeros(leaf.shape, leaf.dtype)
        shape, dtype = list(leaf.shape), getattr(torch, np.dtype(leaf.dtype).name)
        if len(shape) == 4 and self.plan != "torch":  # [B, T, KH, d] in memory
            shape[1], shape[2] = shape[2], shape[1]
            return torch.zeros(shape, dtype=dtype, device=self.device).transpose(1, 2)
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def prefill(
        self, engine: Engine, params: Params, state: State, start: int, chunk: int
    ) -> tuple[State, StepInfo, Logprobs | None]:
        """Read a chunk of prompts: ``decode.prefill``, lowered."""
        check_room(state, chunk)
        sent = state._replace(drafter=()) if self.host_drafter else state
        read, at = functools.partial(read_chunk, chunk), jnp.asarray(start, jnp.int32)
        text, cache, made, info, scores = self.call(chunk, read, engine, params, sent, at)
        drafter_state = self.learn(engine, params, text, state.drafter, made)
        return state._replace(text=text, cache=cache, drafter=drafter_state), info, scores

    def generate(
        self,
        engine: Engine,
        params: Params,
        state: State,
        max_rounds: int,
        min_running: int,
        _: int,
    ) -> tuple[State, StepInfo | None, int]:
        """Run rounds as ``decode.generate`` does, in a loop on the host.

        If all slots are idle one round is run and not counted, so that its program is lowered.
        """
        infos = []
        while len(infos) < max_rounds and going(engine, state, min_running):
            state, info = self.step(engine, params, state)
            infos.append(info)
        if not infos and not (np.asarray(state.text.reason) == RUNNING).any():
            state = self.step(engine, params, state)[0]
        stacked = jax.tree.map(lambda *rounds: np.stack(rounds), *infos) if infos else None
        return state, stacked, len(infos)

    def step(self, engine: Engine, params: Params, state: State) -> tuple[State, StepInfo]:
        """Run one round: ``decode.step``, lowered."""
        check_room(state, engine.drafter.nodes)
        sent, drafter_state = state, state.drafter
        if self.host_drafter:
            text, _, drafter_state, sampling, keys = state
            draft, drafter_state = propose(
                engine, params.draft, text, drafter_state, sampling, keys
            )
            sent = state._replace(drafter=draft)
        text, cache, made, info, _ = self.call(0, speculate, engine, params, sent)
        drafter_state = self.learn(engine, params, text, drafter_state, made)
        return state._replace(text=text, cache=cache, drafter=drafter_state), info

    def learn(
        self, engine: Engine, params: Params, text: Text, drafter_state: PyTree, made: PyTree
    ) -> PyTree:
        """Return the drafter's new state: ``made``, or computed from it on the host."""
        if self.host_drafter:
            return observe(engine, params.draft, text, drafter_state, jax.tree.map(to_jax, made))
        return jax.tree.map(rest_on_host, made)

    def insert_row(self, state: State, slot: int, row: State) -> State:
        """Return the batch with a one-row state in a slot; tensors are overwritten."""
        for leaf, one in zip(jax.tree.leaves(state), jax.tree.leaves(row), strict=True):
            if torch.is_tensor(leaf):
                leaf[slot].copy_(one[0])
        return change(insert_row, state, slot, hosted(row))

    def release_slot(self, state: State, slot: int) -> State:
        """Return the batch with a slot idle."""
        return change(release_slot, state, slot)

    def select(self, state: State, slots: np.ndarray, num_rows: int) -> State:
        """Return a batch of other size, with new tensors (``cache.select``)."""

        def choose(leaf):
            if not torch.is_tensor(leaf):
                return leaf
            shape = len(slots), *leaf.shape[1:]
            made = self.allocate(jax.ShapeDtypeStruct(shape, describe(leaf).dtype))
            return made.copy_(leaf[torch.from_numpy(slots)])

        return change(select, jax.tree.map(choose, state), slots, num_rows)

    def call(
        self,
        chunk: int,
        function: Callable[..., Any],
        engine: Engine,
        params: Params,
        state: State,
        *extra: jax.Array,
    ) -> tuple[Text, Cache, PyTree, StepInfo, Logprobs | None]:
        """Return a function's results on a state, by its program, which is lowered once."""
        if self.host_drafter:
            drafter = engine.drafter
            engine = engine._replace(drafter=relay(drafter.depth, drafter.nodes))
            params = params._replace(draft=None)
        args = (params, *state, *extra)
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves((state.text, state.sampling)))
        most = bound_top_k(state.sampling)
        key = (chunk, engine, jax.tree.structure(state.sampling), shapes, most)
        if key not in self.programs:
            self.programs[key] = lower(
                functools.partial(function, engine),
                jax.tree.map(describe, args),
                donate=(CACHE,) if self.host_drafter else (CACHE, DRAFTER_STATE),
                host=(TEXT, SAMPLING, KEYS) + ((DRAFTER_STATE,) if self.host_drafter else ()),
                device=self.device,
                plan=self.plan,
                most_top_k=most,
                name=f"a chunk of {chunk}" if chunk else "a round",
            )
        program = self.programs[key]
        results = self.execute(key, program, program.operands(jax.tree.leaves(args)))
        text, cache, made, info, scores = jax.tree.unflatten(program.out_tree, results)
        text, scores = jax.tree.map(to_jax, (text, scores))
        info = jax.tree.map(lambda one: one.cpu().numpy(), info)
        return text, jax.tree.map(rest_on_host, cache), made, info, scores

    def execute(self, key: Any, program: Program, operands: Sequence[Any]) -> Any:
        """Return a program's results; on an NPU from a captured graph, if possible."""
        with torch.no_grad():
            if self.compile:
                if key not in self.compiled:
                    self.compiled[key] = torch.compile(program.module, fullgraph=True)
                return self.compiled[key](*operands)
            if self.device != "npu" or len(program.lengths) > 1:
                return program.module(*operands)
            if key not in self.graphs:
                self.graphs[key] = Captured(program.module, operands, len(program.lengths))
            return self.graphs[key](*operands)


TEXT, CACHE, DRAFTER_STATE, SAMPLING, KEYS = range(1, 6)  # arguments of the lowered functions


def speculate(
    engine: Engine,
    params: Params,
    text: Text,
    cache: Cache,
    drafter_state: PyTree,
    sampling: Sampling,
    keys: jax.Array,
) -> tuple[Text, Cache, PyTree, StepInfo, None]:
    """Run one round, on arguments one by one; the keys are not returned."""
    state, info = decode.step(engine, params, State(text, cache, drafter_state, sampling, keys))
    return state.text, state.cache, state.drafter, info, None


def read_chunk(
    chunk: int,
    engine: Engine,
    params: Params,
    text: Text,
    cache: Cache,
    drafter_state: PyTree,
    sampling: Sampling,
    keys: jax.Array,
    start: jax.Array,
) -> tuple[Text, Cache, PyTree, StepInfo, Logprobs | None]:
    """Read a chunk of prompts, on arguments one by one; the keys are not returned."""
    state = State(text, cache, drafter_state, sampling, keys)
    state, info, scores = decode.prefill(engine, params, state, start, chunk)
    return state.text, state.cache, state.drafter, info, scores


def hosted(state: State) -> State:
    """Return a state with None in place of tensors."""
    return jax.tree.map(lambda leaf: None if torch.is_tensor(leaf) else leaf, state)


def change(function: Callable[..., State], state: State, *args: Any) -> State:
    """Return a state with a function of states applied to its leaves that are no tensors."""
    made = iter(jax.tree.leaves(function(hosted(state), *args)))
    return jax.tree.map(lambda leaf: leaf if torch.is_tensor(leaf) else next(made), state)


def describe(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return an array's or tensor's shape and JAX dtype."""
    if torch.is_tensor(leaf):
        return jax.ShapeDtypeStruct(tuple(leaf.shape), jnp.dtype(str(leaf.dtype).split(".")[1]))
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def bound_top_k(sampling: Sampling) -> int | None:
    """Return the fused kernel's limit of top_k if all rows are within it, else None."""
    if sampling.top_k is None or int(np.asarray(sampling.top_k).max()) > MOST_TOP_K:
        return None
    return MOST_TOP_K


def rest_on_host(leaf: torch.Tensor) -> Any:
    """Return a tensor as it is, or as a JAX array if it has one axis, as lengths have."""
    return leaf if leaf.ndim > 1 else to_jax(leaf)


def check_room(state: State, nodes: int) -> None:
    """Raise RuntimeError if a slot to be written is out of bounds: in place, none is dropped."""
    if not any(isinstance(layer, Slots) for layer in state.cache.layers):
        return  # a ring has room for any number
    capacity, last = kv.capacity(state), int(np.asarray(state.cache.lengths).max())
    if last + nodes > capacity:
        raise RuntimeError(f"{nodes} nodes after {last} do not fit a cache of {capacity} slots")


def going(engine: Engine, state: State, min_running: int) -> bool:
    """Return whether ``decode.generate`` would run another round."""
    running = np.asarray(state.text.reason) == RUNNING
    fits = np.asarray(state.text.lengths) + engine.drafter.room <= engine.window
    return int(running.sum()) >= max(min_running, 1) and bool((fits | ~running).all())

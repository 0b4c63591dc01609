"""Run the loop's rounds lowered: ``LLM(device="npu")``, and "torch-cpu" for the same on a CPU.

A round is the lowered ``decode.step``, a prompt's chunk the lowered ``decode.prefill``; the key
value caches and the weights live on the device. Per round the text, the sampling options and
the noise go in; the text, the counts and what the drafter may learn come out. Drafters without
weights (n-gram, suffix) propose and observe in JAX, on the host. Programs are lowered once per
(engine, window, rows, nodes).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from npu_bridge.ascend import MOST_TOP_K
from npu_bridge.lower import Program, lower
from npu_bridge.runtime import Captured, open_device
from npu_bridge.tensors import to_jax, to_torch
from specjax import cache as kv
from specjax import decode
from specjax.topology import chain_parents
from specjax.types import RUNNING, Drafter, Engine, Params, PyTree, State, StepInfo

# Slots of a cache past the text's end: the last piece of a prompt may be padded by 63 positions,
# and a drafter reads one more. XLA drops what is written there, writes in place need the room.
SPARE = 64


@functools.cache
def relay(depth: int, nodes: int) -> Drafter:
    """Build the drafter whose state is the host's draft, and then what the host may learn."""

    def propose(params, state, text, sampling, keys, window):
        parents = chain_parents(*state.tokens.shape) if nodes == depth + 1 else state.parents
        return state._replace(parents=parents), ()

    def observe(params, state, text, seen, window):
        return seen._replace(hidden=seen.hidden[..., :0], taps=seen.taps[..., :0, :])

    return Drafter(lambda params, batch_size, capacity: (), propose, observe, depth, nodes)


@functools.partial(jax.jit, static_argnums=0)
def propose(engine: Engine, params, text, guess, sampling, keys):
    """Let a drafter without weights propose, on the host."""
    return engine.drafter.propose(params, guess, text, sampling, keys, engine.window)


@functools.partial(jax.jit, static_argnums=0)
def observe(engine: Engine, params, text, guess, seen):
    """Let a drafter without weights learn, on the host."""
    return engine.drafter.observe(params, guess, text, seen, engine.window)


admit, leave, select = map(jax.jit, (kv.admit, kv.leave, kv.select))  # of what is on the host


class Executor:
    """The loop's driver on a torch device (``engine.driver.Driver`` lists its methods)."""

    def __init__(self, device: str, host_drafter: bool, *, compile: bool = False):
        self.device = open_device(device)
        self.host_drafter, self.compile = host_drafter, compile
        self.plan = "npu" if self.device == "npu" else "torch"
        self.programs: dict[Any, Program] = {}
        self.compiled: dict[Any, Callable] = {}
        self.graphs: dict[Any, Captured] = {}

    @property
    def num_lowered(self) -> int:
        """How many programs were lowered so far."""
        return len(self.programs)

    def place_params(self, params: Params) -> Params:
        """Move the weights to the device; on a CPU they stay where they are."""
        move = functools.partial(to_torch, device=self.device)
        draft = params.draft if self.host_drafter else jax.tree.map(move, params.draft)
        return Params(jax.tree.map(move, params.target), draft)

    def init_state(self, engine: Engine, params: Params, text, sampling, keys) -> State:
        """Allocate the caches on the device, and everything else on the host."""
        batch_size, capacity = text.tokens.shape
        shapes = jax.eval_shape(lambda: engine.target.init_cache(batch_size, capacity + SPARE))
        cache = jax.tree.map(self.allocate, shapes)
        if self.host_drafter:
            guess = engine.drafter.init(params.draft, batch_size, capacity)
        else:
            guess = engine.drafter.init(params.draft, batch_size, capacity + SPARE)
            guess = jax.tree.map(self.allocate, guess)
        text, sampling = self.place(params, (text, sampling))
        return State(text, cache, guess, sampling, keys)

    def fit(self, state: State, window: int) -> State:
        """Leave the caches as they are: attention reads a part of them without a copy."""
        return state

    def place(self, params: Params, arrays: PyTree) -> PyTree:
        """Keep arrays on the host."""
        return jax.tree.map(jnp.asarray, arrays)

    def allocate(self, leaf) -> Any:
        """Return zeros: on the device where there are several axes, else on the host."""
        if len(leaf.shape) < 2:
            return jnp.zeros(leaf.shape, leaf.dtype)
        shape, dtype = list(leaf.shape), getattr(torch, np.dtype(leaf.dtype).name)
        if len(shape) == 4 and self.plan != "torch":  # [B, T, KH, d] in memory
            shape[1], shape[2] = shape[2], shape[1]
            return torch.zeros(shape, dtype=dtype, device=self.device).transpose(1, 2)
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def prefill(self, engine: Engine, params: Params, state: State, start: int, chunk: int):
        """Read a chunk of a prompt: ``decode.prefill``, lowered."""
        check_room(state, chunk)
        sent = state._replace(drafter=()) if self.host_drafter else state
        read, at = functools.partial(read_chunk, chunk), jnp.asarray(start, jnp.int32)
        text, cache, made, info, scores = self.call(chunk, read, engine, params, sent, at)
        guess = self.learn(engine, params, text, state.drafter, made)
        return state._replace(text=text, cache=cache, drafter=guess), info, scores

    def generate(
        self,
        engine: Engine,
        params: Params,
        state: State,
        max_rounds: int,
        min_running: int,
        _: int,
    ) -> tuple[State, StepInfo | None, int]:
        """Run rounds as ``decode.generate`` does, from the host.

        Of a batch that is all idle one is run that does not count: so it is lowered beforehand.
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
        sent, guess = state, state.drafter
        if self.host_drafter:
            text, _, guess, sampling, keys = state
            draft, guess = propose(engine, params.draft, text, guess, sampling, keys)
            sent = state._replace(drafter=draft)
        text, cache, made, info, _ = self.call(0, speculate, engine, params, sent)
        guess = self.learn(engine, params, text, guess, made)
        return state._replace(text=text, cache=cache, drafter=guess), info

    def learn(self, engine: Engine, params: Params, text, guess, made):
        """Return the drafter's state: what the device made of it, or what the host makes now."""
        if self.host_drafter:
            return observe(engine, params.draft, text, guess, jax.tree.map(to_jax, made))
        return jax.tree.map(rest_on_host, made)

    def admit(self, state: State, slot: int, row: State) -> State:
        """Put a one-row state into a slot: tensors in place."""
        for leaf, one in zip(jax.tree.leaves(state), jax.tree.leaves(row), strict=True):
            if torch.is_tensor(leaf):
                leaf[slot].copy_(one[0])
        return change(admit, state, slot, hosted(row))

    def leave(self, state: State, slot: int) -> State:
        """Make a slot idle."""
        return change(leave, state, slot)

    def select(self, state: State, slots: np.ndarray, num_rows: int) -> State:
        """Make a batch of other size, in memory of its own."""

        def choose(leaf):
            if not torch.is_tensor(leaf):
                return leaf
            shape = len(slots), *leaf.shape[1:]
            made = self.allocate(jax.ShapeDtypeStruct(shape, describe(leaf).dtype))
            return made.copy_(leaf[torch.from_numpy(slots)])

        return change(select, jax.tree.map(choose, state), slots, num_rows)

    def call(self, chunk: int, function: Callable, engine: Engine, params, state: State, *extra):
        """Run a lowered function on a state; lower it first if it is new."""
        if self.host_drafter:
            drafter = engine.drafter
            engine = engine._replace(drafter=relay(drafter.depth, drafter.nodes))
            params = params._replace(draft=None)
        args = (params, *state, *extra)
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves((state.text, state.sampling)))
        most = promise(state.sampling)
        key = (chunk, engine, jax.tree.structure(state.sampling), shapes, most)
        if key not in self.programs:
            self.programs[key] = lower(
                functools.partial(function, engine),
                jax.tree.map(describe, args),
                donate=(CACHE,) if self.host_drafter else (CACHE, GUESS),
                host=(TEXT, SAMPLING, KEYS) + ((GUESS,) if self.host_drafter else ()),
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

    def execute(self, key, program: Program, operands) -> Any:
        """Run a program; on an NPU as a captured graph, if its lengths are one list."""
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


TEXT, CACHE, GUESS, SAMPLING, KEYS = range(1, 6)  # arguments of the lowered functions


def speculate(engine: Engine, params: Params, text, cache, guess, sampling, keys):
    """Run one round; keys stay on the host."""
    state, info = decode.step(engine, params, State(text, cache, guess, sampling, keys))
    return state.text, state.cache, state.drafter, info, None


def read_chunk(chunk: int, engine: Engine, params, text, cache, guess, sampling, keys, start):
    """Read a chunk of a prompt; keys stay on the host."""
    state = State(text, cache, guess, sampling, keys)
    state, info, scores = decode.prefill(engine, params, state, start, chunk)
    return state.text, state.cache, state.drafter, info, scores


def hosted(state: State) -> State:
    """Leave tensors out."""
    return jax.tree.map(lambda leaf: None if torch.is_tensor(leaf) else leaf, state)


def change(function: Callable, state: State, *args) -> State:
    """Apply a function of states to what is on the host, and leave the tensors as they are."""
    made = iter(jax.tree.leaves(function(hosted(state), *args)))
    return jax.tree.map(lambda leaf: leaf if torch.is_tensor(leaf) else next(made), state)


def describe(leaf) -> jax.ShapeDtypeStruct:
    """Return an array's or tensor's shape and dtype, as JAX has them."""
    if torch.is_tensor(leaf):
        return jax.ShapeDtypeStruct(tuple(leaf.shape), jnp.dtype(str(leaf.dtype).split(".")[1]))
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def promise(sampling) -> int | None:
    """Return a bound of every row's top_k that the fused kernel takes, if there is one."""
    if sampling.top_k is None or int(np.asarray(sampling.top_k).max()) > MOST_TOP_K:
        return None
    return MOST_TOP_K


def rest_on_host(leaf: torch.Tensor) -> Any:
    """Leave tensors of several axes on the device; lengths belong to the host."""
    return leaf if leaf.ndim > 1 else to_jax(leaf)


def check_room(state: State, nodes: int) -> None:
    """Raise unless every slot that will be written lies in the cache: in place, none is dropped."""
    capacity, last = kv.width(state), int(np.asarray(state.cache.lengths).max())
    if last + nodes > capacity:
        raise RuntimeError(f"{nodes} nodes after {last} do not fit a cache of {capacity} slots")


def going(engine: Engine, state: State, min_running: int) -> bool:
    """Whether ``decode.generate`` would run another round."""
    running = np.asarray(state.text.reason) == RUNNING
    fits = np.asarray(state.text.lengths) + engine.drafter.room <= engine.window
    return int(running.sum()) >= max(min_running, 1) and bool((fits | ~running).all())

"""Drive ``prefill`` and ``generate`` over a queue of requests, slot by slot.

Each request is read alone, as a batch of one, and admitted to a slot; so what a row
computes while it is read never depends on its mates. Everything compiled here is compiled
once per (layout, slots, capacity, window).
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import cache, decode
from specjax.engine import rows
from specjax.engine.rows import Request, bucket, layout, row
from specjax.types import RUNNING, STOPPED, Engine, Params, State, StepInfo

HISTORY = 64  # rounds per entry of the compiled loop
PREFILL_CHUNKS = 16, 32, 64, 96, 128, 192, 256
MOST_PADDING = 32  # positions: computing more of them takes longer than reading the weights again
LEAST_WINDOW = 64

init_state = jax.jit(decode.init_state, static_argnums=0)
idle = jax.jit(rows.idle, static_argnums=(0, 1, 2))
prefill = jax.jit(decode.prefill, static_argnums=(0, 4), donate_argnums=2)
generate = jax.jit(decode.generate, static_argnums=(0, 5), donate_argnums=2)
admit = jax.jit(cache.admit, donate_argnums=0)


class Driver(NamedTuple):
    """Who runs what the loop asks for: XLA here, or a bridge to another kind of device."""

    init_state: Callable  # as decode.init_state
    prefill: Callable  # as decode.prefill
    generate: Callable  # as decode.generate
    admit: Callable  # as cache.admit


XLA = Driver(init_state, prefill, generate, admit)


class Round(NamedTuple):
    """What one round did for one request; ``tokens`` are committed."""

    tokens: list[int]
    drafted: list[int]
    num_accepted: int
    logprobs: Any  # per token: (ids, values, rank), or None


@dataclass
class Progress:
    """A request on its way: what the loop knows, and what it reports."""

    index: int
    request: Request
    rounds: list[Round] = field(default_factory=list)  # rounds[0] is the undrafted first token
    tokens: list[int] = field(default_factory=list)  # of all rounds, kept: every round asks
    prompt_logprobs: list[Any] = field(default_factory=list)
    finish_reason: Literal["stop", "length"] | None = None
    kv_transfer_params: Mapping[str, str] | None = None  # what ``Export`` returned

    def cut(self, num_tokens: int) -> None:
        """Keep the first ``num_tokens`` output tokens and the rounds that made them."""
        del self.tokens[num_tokens:]
        kept = []
        for one in self.rounds:
            if num_tokens <= 0:
                break
            logprobs = one.logprobs and one.logprobs[:num_tokens]
            kept.append(one._replace(tokens=one.tokens[:num_tokens], logprobs=logprobs))
            num_tokens -= len(one.tokens)
        self.rounds = kept


Watch = Callable[[Progress], int | None]  # how many output tokens to keep, if it should stop
Learn = Callable[[Progress], Any]  # what the drafter's parameters are from now on
Export = Callable[[Progress, Any], Mapping[str, str]]  # a finished row's drafter state, saved


def run(
    engine: Engine,
    params: Params,
    requests: Sequence[Request],
    *,
    max_num_seqs: int,
    watch: Watch | None = None,
    learn: Learn | None = None,
    export: Export | None = None,
    max_rounds: int = HISTORY,
    driver: Driver = XLA,
) -> Iterator[Progress]:
    """Complete all requests; yield a request's ``Progress`` whenever it has grown.

    First come, first served: a slot is refilled as soon as it is free. ``engine.window``
    is set here. ``watch`` sees each request that has grown and may stop it; then ``learn`` sees
    it, and may give the drafter other parameters. ``export`` sees those that have finished.
    """
    if not requests:
        return
    shape = layout(requests, engine.target.vocab_size, engine.drafter.depth)
    capacity = bucket(max(r.limit for r in requests) + engine.drafter.nodes, LEAST_WINDOW)
    slots = bucket(min(len(requests), max_num_seqs), 1)
    slots = min(slots, max_num_seqs)
    state = driver.init_state(engine, params, *idle(slots, shape, capacity))
    waiting = deque(Progress(i, request) for i, request in enumerate(requests))
    live: dict[int, Progress] = {}
    while waiting or live:
        free = [slot for slot in range(slots) if slot not in live]
        for slot in free[: len(waiting)]:
            progress = waiting.popleft()
            one = read_prompt(engine, params, progress, shape, capacity, driver)
            settle(progress, int(one.text.reason[0]), watch)
            hand_over(progress, one, 0, export)
            params = params if learn is None else params._replace(draft=learn(progress))
            yield progress
            if progress.finish_reason is None:
                state, live[slot] = driver.admit(state, slot, one), progress
        if not live:
            continue
        engine = engine._replace(window=fit_window(engine, live.values(), capacity))
        min_running = len(live) if waiting else 1
        asked = (max_rounds, min_running, HISTORY)
        state, infos, rounds = driver.generate(engine, params, state, *asked)
        if rounds == 0:
            raise RuntimeError(f"no progress in a window of {engine.window}: {capacity=}")
        text, infos = jax.device_get((state.text, infos))
        for slot, progress in list(live.items()):
            unpack(progress, slot, text.tokens[slot], infos, int(rounds))
            settle(progress, int(text.reason[slot]), watch)
            hand_over(progress, state, slot, export)
            params = params if learn is None else params._replace(draft=learn(progress))
            yield progress
            if progress.finish_reason is not None:
                del live[slot]
                if text.reason[slot] == RUNNING:
                    state = stop(state, slot)


def read_prompt(
    engine, params, progress: Progress, shape, capacity: int, driver: Driver = XLA
) -> State:
    """Prefill one request in chunks, alone; it comes out with its first token."""
    request = progress.request
    state = driver.init_state(engine, params, *row(request, shape, capacity))
    start, length = 0, len(request.prompt)
    while start < length:
        chunk = next_chunk(length - start)
        window = min(bucket(start + chunk + 1, LEAST_WINDOW), capacity)
        one = engine._replace(window=window)
        state, info, prompt = driver.prefill(one, params, state, start, chunk)
        if prompt is not None:
            ids, values, ranks = jax.device_get(prompt)
            real = min(chunk, length - 1 - start)
            progress.prompt_logprobs += list(zip(ids[0], values[0], ranks[0], strict=True))[:real]
        start += chunk
    text, infos = jax.device_get((state.text, jax.tree.map(lambda x: x[None], info)))
    unpack(progress, 0, text.tokens[0], infos, 1)
    return state


def next_chunk(left: int) -> int:
    """Choose how many positions of a prompt to read at once, when ``left`` are left."""
    over = min((c for c in PREFILL_CHUNKS if c >= left), default=PREFILL_CHUNKS[-1])
    under = max((c for c in PREFILL_CHUNKS if c <= left), default=over)
    return over if over - left <= MOST_PADDING else under


def fit_window(engine: Engine, live, capacity: int) -> int:
    """Choose the prefix of the cache to read: a power of two, and few different ones.

    Every window recompiles the step, so when the largest that will ever be needed is at
    most four times the smallest that serves now, begin with it.
    """
    nodes = engine.drafter.nodes
    now = max(len(p.request.prompt) + len(p.tokens) for p in live) + nodes
    ever = max(p.request.limit for p in live) + nodes
    now, ever = bucket(now, LEAST_WINDOW), bucket(ever, LEAST_WINDOW)
    return min(ever if ever <= 4 * now else now, capacity)


def unpack(progress: Progress, slot: int, row_tokens, infos: StepInfo, rounds: int) -> None:
    """Append a slot's part of the stacked infos to its request."""
    end = len(progress.request.prompt) + len(progress.tokens)
    for r in range(rounds):
        count = int(infos.num_emitted[r, slot])
        if not count:
            continue
        logprobs = None
        if infos.logprobs is not None:
            ids, values, ranks = (leaf[r, slot, :count] for leaf in infos.logprobs)
            logprobs = list(zip(ids, values, ranks, strict=True))
        tokens = np.asarray(row_tokens[end : end + count]).tolist()
        drafted = [token for token in infos.drafted[r, slot].tolist() if token >= 0]
        accepted = int(infos.num_accepted[r, slot])
        progress.rounds.append(Round(tokens, drafted, accepted, logprobs))
        progress.tokens += tokens
        end += count


def settle(progress: Progress, reason: int, watch: Watch | None) -> None:
    """Record whether, and why, a request has finished."""
    if reason != RUNNING:
        progress.finish_reason = "stop" if reason == STOPPED else "length"
    keep = watch(progress) if watch else None
    if keep is not None:
        progress.cut(keep)
        progress.finish_reason = "stop"


def hand_over(progress: Progress, state: State, slot: int, export: Export | None) -> None:
    """Show a finished request's row of the drafter's state to whoever saves it."""
    if export is not None and progress.finish_reason is not None:
        row = jax.tree.map(lambda leaf: leaf[slot], state.drafter)
        progress.kv_transfer_params = export(progress, row)


def stop(state: State, slot: int) -> State:
    """Make sure a slot runs no further (a stop string is seen only on the host)."""
    reason = jnp.where(jnp.arange(state.text.reason.shape[0]) == slot, STOPPED, state.text.reason)
    return state._replace(text=state.text._replace(reason=reason))

"""A serving simulator: continuous batching step by step, with and without speculation.

Every engine step admits waiting requests, verifies what each running request drafted, and takes
a time that depends on the batch. One compiled loop; seeds and parameters are vmapped. Times in s,
in float64 whatever JAX is configured to.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specjax.simulate.noise import noise_key
from specjax.simulate.policy import Policy
from specjax.simulate.workload import Workload
from specjax.theory.arrays import Scalar, Value, require


class Costs(NamedTuple):
    """Seconds of a step; B requests run, they draft tokens of at most K levels.

    max(t0 + t1 B + t_kv context + t_tok drafted, t_flop tokens) + K (t_draft0 + t_draft1 B)
    + h + t_prefill prompt: memory or compute, whichever takes longer, then drafting (K > 0),
    the overhead of speculation (K > 0), and the prompts admitted in this step.
    """

    t0: Float[Any, ""]
    t1: Float[Any, ""] = 0.0
    t_tok: Float[Any, ""] = 0.0  # per drafted token
    t_draft0: Float[Any, ""] = 0.0
    t_draft1: Float[Any, ""] = 0.0
    h: Float[Any, ""] = 0.0
    t_kv: Float[Any, ""] = 0.0  # per token of context, prompts included
    t_flop: Float[Any, ""] = 0.0  # per token computed: running, drafted and prompt
    t_prefill: Float[Any, ""] = 0.0  # per prompt token


class Served(NamedTuple):
    """Times and counts of each request [N], NumPy arrays in s; a round is one decode step."""

    issued: Float[Any, "N"]  # when the client sent it
    admitted: Float[Any, "N"]
    first: Float[Any, "N"]  # first token
    last: Float[Any, "N"]
    end: Float[Any, ""]  # when the last request ended
    area: Float[Any, ""]  # integral of the running requests over time
    full_time: Float[Any, ""]  # time during which all slots ran
    full_tokens: Int[Any, ""]  # tokens emitted in it
    num_steps: Int[Any, ""]
    num_rounds: Int[Any, ""]  # decode steps of all requests
    num_drafts: Int[Any, ""]  # rounds that drafted anything
    num_drafted: Int[Any, ""]
    num_accepted: Int[Any, ""]  # before the text ends
    num_emitted: Int[Any, ""]  # after it: the overshoot is discarded
    accepted_per_pos: Int[Any, "K"]  # rounds that accepted more than i tokens


def serving(
    workload: Workload,
    costs: Costs,
    policy: Policy,
    num_slots: int,
    *,
    num_seeds: int | None = None,
    seed: int = 0,
    kv_budget: Scalar = np.inf,
) -> Served:
    """Return the run of a workload with at most ``num_slots`` running requests; one compiled call.

    Requests are admitted in order as soon as a slot, a client (``workload.clients``) and
    ``kv_budget`` tokens of cache (prompt and output reserved) are free; a request that alone
    exceeds the budget runs alone. The step that admits a request reads its prompt and emits its
    first token; from the next on it drafts L ~ ``len_pmf``, at most K = schedule[running],
    accepts a prefix, each token with the request's alpha, and emits one more. Noise is addressed
    by (seed, request, token): equal seeds share it, whatever speculation does.

    Leaves of ``workload``, ``costs`` and ``policy`` may carry one more leading axis [P], all of
    one size: parameters are vmapped, results lead with [P]. ``num_seeds`` adds an axis [R] before.
    Raises ValueError for a negative cost, no slots or more clients than slots.
    """
    require("num_slots", num_slots, 1)
    for name, value in costs._asdict().items():
        require(name, value, 0.0)
    require("num_slots - clients", num_slots - np.asarray(workload.clients), 0)
    policy = policy._replace(schedule=np.asarray(policy.schedule)[..., : num_slots + 1])
    if policy.schedule.shape[-1] != num_slots + 1:
        raise ValueError(f"the schedule must reach {num_slots} running requests")
    with jax.enable_x64(True):
        given = jax.tree.map(jnp.asarray, (workload, costs, policy))
        key = noise_key(seed)
        keys = key if num_seeds is None else jax.random.split(key, num_seeds)
        done = run_all(*given, keys, jnp.float64(kv_budget), num_slots)
        return jax.device_get(done)


RANKS = (Workload(1, 1, 1, 1, 0, 0), Costs(*([0] * 9)), Policy(1, 1))


@functools.partial(jax.jit, static_argnums=5)
def run_all(
    workload: Workload, costs: Costs, policy: Policy, keys: Value, kv_budget: Value, num_slots: int
) -> Served:
    """Return ``serve`` vmapped over the parameters and seeds that have leading axes."""
    given = (workload, costs, policy)
    axes = jax.tree.map(lambda leaf, rank: 0 if leaf.ndim > rank else None, given, RANKS)

    def one(workload, costs, policy, key):
        return serve(workload, costs, policy, key, kv_budget, num_slots)

    if any(axis == 0 for axis in jax.tree.leaves(axes)):
        one = jax.vmap(one, (*axes, None))
    if keys.ndim:
        one = jax.vmap(one, (None, None, None, 0))
    return one(workload, costs, policy, keys)


class Slots(NamedTuple):
    """The requests that run: one per slot."""

    request: Int[Array, "S"]  # N: the slot is idle
    emitted: Int[Array, "S"]


def serve(
    workload: Workload, costs: Costs, policy: Policy, key: Value, kv_budget: Value, num_slots: int
) -> Served:
    """Return one simulated run, in the precision of the arguments."""
    num_requests = workload.outputs.shape[0]
    depth = policy.len_pmf.shape[0] - 1
    reserved = workload.prompts + workload.outputs
    cdf = jnp.cumsum(policy.len_pmf)[:-1]
    real = jnp.result_type(float)

    def admit(slots: Slots, now, waiting) -> tuple[Slots, Bool[Array, "S"]]:
        """Admit waiting requests to idle slots, in order, as clients and cache capacity allow."""
        idle = slots.request == num_requests
        free = idle & (jnp.cumsum(idle) <= workload.clients - (~idle).sum())
        request = jnp.minimum(waiting + jnp.cumsum(free) - 1, num_requests)
        there = free & (request < num_requests)
        there &= take(workload.arrivals, request) <= now
        held = jnp.where(idle, 0, take(reserved, slots.request)).sum()
        needed = held + jnp.cumsum(jnp.where(free, take(reserved, request), 0))
        alone = idle.all() & (request == waiting)
        there &= (needed <= kv_budget) | alone
        return Slots(
            jnp.where(there, request, slots.request), jnp.where(there, 0, slots.emitted)
        ), there

    def draft(slots: Slots, decoding, deepest):
        """Return each request's random draft length and its accepted part."""

        def noise(request, emitted):
            own = jax.random.fold_in(jax.random.fold_in(key, request), emitted)
            return jax.random.uniform(own, (depth + 1,), jnp.float32)

        u = jax.vmap(noise)(slots.request, slots.emitted)
        length = jnp.minimum((u[:, :1] >= cdf[None]).sum(axis=1), deepest)
        drafted = jnp.where(decoding, length, 0)
        position = jnp.arange(depth)[None]
        good = u[:, 1:] < take(workload.alphas, slots.request)[:, None]
        good &= position < drafted[:, None]
        return drafted, jnp.cumprod(good, axis=1).sum(axis=1)

    def going(carry):
        slots, _, waiting, _ = carry
        return (waiting < num_requests) | (slots.request < num_requests).any()

    def step(carry):
        slots, now, waiting, done = carry
        slots, new = admit(slots, now, waiting)
        waiting = waiting + new.sum()
        running = slots.request < num_requests
        batch = running.sum()
        deepest = policy.schedule[batch]
        drafted, accepted = draft(slots, running & ~new, deepest)
        prompts, outputs = (take(x, slots.request) for x in (workload.prompts, workload.outputs))
        gained = jnp.where(new, 1, jnp.minimum(accepted + 1, outputs - slots.emitted))
        gained = jnp.where(running, gained, 0)
        read = jnp.where(new, prompts, 0).sum()
        context = jnp.where(running, prompts + slots.emitted, 0).sum()
        spent = seconds(costs, batch, drafted.sum(), deepest, context, read)
        next_arrival = workload.arrivals[jnp.minimum(waiting, num_requests - 1)]
        until = jnp.where(batch > 0, now + spent, jnp.maximum(next_arrival, now))

        emitted = slots.emitted + gained
        ended = running & (emitted >= outputs)
        at = jnp.where(new, slots.request, num_requests)
        over = jnp.where(ended, slots.request, num_requests)
        sent = jnp.where(workload.closed, now, take(workload.arrivals, slots.request))
        full = batch == workload.clients
        position = jnp.arange(depth)[None]
        done = Served(
            issued=done.issued.at[at].set(sent, mode="drop"),
            admitted=done.admitted.at[at].set(now, mode="drop"),
            first=done.first.at[at].set(until, mode="drop"),
            last=done.last.at[over].set(until, mode="drop"),
            end=until,
            area=done.area + batch * (until - now),
            full_time=done.full_time + jnp.where(full, until - now, 0.0),
            full_tokens=done.full_tokens + jnp.where(full, gained.sum(), 0),
            num_steps=done.num_steps + (batch > 0),
            num_rounds=done.num_rounds + (running & ~new).sum(),
            num_drafts=done.num_drafts + (drafted > 0).sum(),
            num_drafted=done.num_drafted + drafted.sum(),
            num_accepted=done.num_accepted + accepted.sum(),
            num_emitted=done.num_emitted + gained.sum(),
            accepted_per_pos=done.accepted_per_pos + (accepted[:, None] > position).sum(axis=0),
        )
        slots = Slots(jnp.where(ended, num_requests, slots.request), emitted)
        return slots, until, waiting, done

    slots = Slots(jnp.full(num_slots, num_requests), jnp.zeros(num_slots, int))
    zero, none = jnp.zeros((), real), jnp.zeros((), int)
    unknown = jnp.zeros(num_requests, real)
    served = Served(
        issued=unknown,
        admitted=unknown,
        first=unknown,
        last=unknown,
        end=zero,
        area=zero,
        full_time=zero,
        full_tokens=none,
        num_steps=none,
        num_rounds=none,
        num_drafts=none,
        num_drafted=none,
        num_accepted=none,
        num_emitted=none,
        accepted_per_pos=jnp.zeros(depth, int),
    )
    start = (slots, zero, none, served)
    return jax.lax.while_loop(going, step, start)[3]


def take(values: Value, request: Int[Array, "S"]) -> Array:
    """Return the values of each slot's request; the last request's for an idle slot."""
    return values[jnp.minimum(request, values.shape[0] - 1)]


def seconds(
    costs: Costs, batch: Value, drafted: Value, deepest: Value, context: Value, read: Value
) -> Value:
    """Return the time of a step, see ``Costs``."""
    memory = costs.t0 + costs.t1 * batch + costs.t_kv * context + costs.t_tok * drafted
    compute = costs.t_flop * (batch + drafted + read)
    drafting = deepest * (costs.t_draft0 + costs.t_draft1 * batch)
    extra = jnp.where(deepest > 0, costs.h, 0.0)
    return jnp.maximum(memory, compute) + drafting + extra + costs.t_prefill * read

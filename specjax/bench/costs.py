"""``specjax bench costs``: the seconds of a plain step, of drafting and of verifying.

Measures t_draft / t_target: whole jitted rounds are timed with the drafter, with one that proposes
a fixed chain at no cost, and with none. Several rounds run in one call, as in the engine; a plain
step alone in its call took 1.5 times as long. Times exclude the host's work, by which the rounds of
a log are longer. They depend on the tokens in two ways: rows of no token are zeros, which products
skip, so that a round is cheaper where no n-gram or suffix matches; and the suffix index reads what
was accepted token by token. So a round is timed as it is, with all drafts rejected, and accepted.
"""

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from specjax.bench.report import MOST_LOAD, busy
from specjax.bench.step import fixed_chain
from specjax.core.sampling import row_key
from specjax.core.types import (
    RUNNING,
    Drafter,
    Engine,
    Params,
    PyTree,
    Rule,
    Sampling,
    Text,
)
from specjax.drafters.none import none
from specjax.engine.driver import XLA, init_state
from specjax.engine.llm import LLM
from specjax.host.files import write_json
from specjax.measure.turns import median_in_turns
from specjax.verify.walk import follow, walk

CONTEXT, WINDOW = 128, 256  # tokens: some 25 rounds of K = 4 in a call, as where texts are served


def bench_costs(
    model: str,
    speculative_config: Any,
    json_file: Path | None,
    *,
    batch_size: int = 1,
    others: Sequence[int] = (1, 2, 3, 4, 6, 8),
    reps: int = 15,
    console: Console | None = None,
) -> dict[str, Any]:
    """Return, print and write the round times at several batch sizes, as ``explain`` reads them.

    The parts are those of ``batch_size``; rounds at ``others`` serve the schedule.
    Raises ValueError for a bad model or config.
    """
    console = console or Console(highlight=False)
    llm = LLM(model, speculative_config=speculative_config)
    depth = llm.core.depth
    load = busy()
    if load > MOST_LOAD:
        console.print(f"other processes keep {load:.1f} cores busy: these numbers will move")
    measured: dict[str, Any] = {"num_speculative_tokens": depth, "batch_size": batch_size}
    steps = []
    for rows in dict.fromkeys((batch_size, *others)):
        plain, verify, whole, *_ = round_costs(llm, rows, reps)
        if not steps:
            measured |= {"plain_s": plain, "verify_s": verify}
            measured |= {"draft_s": max(whole - verify, 0.0), "round_s": whole}
        steps += [
            {"batch_size": rows, "k": 0, "seconds": plain},
            {"batch_size": rows, "k": depth, "seconds": whole},
        ]
        console.print(
            f"batch {rows}: plain step {1e3 * plain:.3g} ms; round of K = {depth} "
            f"{1e3 * whole:.3g} ms, {1e3 * verify:.3g} ms of it without drafting",
            soft_wrap=True,
        )
    measured["steps"] = steps
    if json_file is not None:
        write_json(json_file, measured)
        console.print(f"wrote {json_file}", soft_wrap=True, markup=False)
    return measured


class Costs(NamedTuple):
    """Seconds of rounds at one batch size, without the host's work."""

    plain: float
    verify: float  # a round whose drafts cost nothing
    whole: float  # a round with K drafted tokens, none of which is accepted
    unmatched: float  # one in a text of random tokens, where n-grams and suffixes find nothing
    accepted: float  # one with K drafted tokens, all of which are accepted

    def drafting(self, drafted: float, accepted: float) -> float:
        """Return the seconds of a round with these shares of K tokens drafted and accepted."""
        reading = accepted * (self.accepted - self.whole)
        return drafted * self.whole + (1 - drafted) * self.unmatched + reading


@functools.cache
def always(drafter: Drafter) -> Drafter:
    """Return a drafter that does the same work and always has K tokens, if wrong ones."""

    def propose(*inputs):
        draft, state = drafter.propose(*inputs)
        return draft._replace(valid=jnp.ones_like(draft.valid)), state

    return drafter._replace(propose=propose)


@functools.cache
def accepting(rule: Rule, everything: bool) -> Rule:
    """Return a rule that does the same work, and accepts all that was drafted or nothing.

    Nothing: the target may loop, and loops are drafted. Of a tree it accepts one path.
    """

    def verify(noise, draft, logits, text, sampling, depth):
        verdict = rule.verify(noise, draft, logits, text, sampling, depth)
        if not everything:
            return verdict._replace(num_accepted=jnp.zeros_like(verdict.num_accepted))
        nodes = jnp.arange(draft.tokens.shape[1])
        child = draft.parents[:, None] == nodes[None, :, None]
        child &= (draft.valid & (nodes > 0)[None])[:, None]
        first = jnp.take_along_axis(draft.tokens, jnp.argmax(child, axis=2), axis=1)
        return follow(draft, jnp.where(child.any(axis=2), first, verdict.tokens[:, :1]), depth)

    return rule._replace(verify=verify)


def round_costs(llm: LLM, batch_size: int, reps: int) -> Costs:
    """Return the costs of plain rounds, of a fixed chain's and of the method's own, in turns."""
    fits = llm.core.engine.drafter.room <= WINDOW - CONTEXT
    engine = llm.core.engine._replace(window=WINDOW if fits else 2 * WINDOW)
    drafted = engine.drafter.nodes - 1
    fixed = fixed_chain(drafted) if drafted else none
    engines = [engine._replace(drafter=drafter, rule=walk) for drafter in (none, fixed)]
    drafting = engine._replace(drafter=always(engine.drafter))
    whole, accepted = (
        drafting._replace(rule=accepting(engine.rule, everything)) for everything in (False, True)
    )
    engines += [whole, engine, accepted]
    calls = [round_timer(one, llm.core.params, batch_size) for one in engines]
    return Costs(*median_in_turns(calls, reps, warm_up=2))


def round_timer(engine: Engine, params: Params, batch_size: int) -> Callable[[], float]:
    """Return a function that runs rounds from the same context and returns the seconds of one."""
    most = max((engine.window - CONTEXT) // (engine.drafter.depth + 1) - 1, 1)
    # Texts of the window's length, as served: of twice that, XLA splits every look into a suffix
    # index between threads, and to append a token takes 100 us instead of 20
    vocab_size, capacity = engine.target.vocab_size, engine.window
    tokens = np.random.default_rng(0).integers(0, vocab_size, (batch_size, capacity))

    def full(value: int):
        return jnp.full(batch_size, value, jnp.int32)

    text = Text(
        jnp.asarray(tokens, jnp.int32), full(CONTEXT), full(CONTEXT), full(capacity), full(RUNNING)
    )
    sampling = Sampling(
        temperature=jnp.zeros(batch_size),
        max_draft=full(engine.drafter.depth),
        stop_ids=jnp.full((batch_size, 1), vocab_size, jnp.int32),
    )
    keys = jnp.stack([row_key(i) for i in range(batch_size)])
    # The first round reads the context: a suffix index has none of it yet
    state, _, _ = XLA.generate(
        engine, params, init_state(engine, params, text, sampling, keys), 1, 1, most
    )
    changing = copied((state.text, state.cache.lengths, state.drafter))
    held = [state]

    def seconds() -> float:
        state = held.pop()
        text, lengths, drafter = copied(changing)
        cache = state.cache._replace(lengths=lengths)
        state = jax.block_until_ready(state._replace(text=text, cache=cache, drafter=drafter))
        start = time.perf_counter()
        state, _, rounds = jax.block_until_ready(XLA.generate(engine, params, state, most, 1, most))
        seconds = time.perf_counter() - start
        held.append(state)
        return seconds / int(rounds)

    return seconds


def copied(arrays: PyTree) -> PyTree:
    """Return copies, which a program may overwrite."""
    return jax.tree.map(jnp.copy, arrays)

"""``specjax bench drafters``: the cost of drafting without a model, beside vLLM's.

Times are per batch, inside a jitted loop, on this Python's own library in the bundled target's
tokens. Arctic's C++ cache and vLLM's numba n-gram are called request by request, as vLLM calls
them, in the same run, each alone on the machine. The index of responses does not contain
the contexts, and on the edit prompts (``bench.edits``) no request uses an index: replaying prompts
against their own responses would accept every draft.
"""

import functools
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from specjax.bench.drafter_peers import time_peers
from specjax.bench.drafter_plan import DEPTH, LOOPS, NGRAM, RESPONSE, Sizes, library, rows_of
from specjax.bench.edits import edit_rows
from specjax.bench.masked_scan import time_scan
from specjax.bench.plan import Setting
from specjax.bench.report import MOST_LOAD, Row, busy, compare, machine_row, print_rows, write_rows
from specjax.bench.step import Stepper
from specjax.bundled import resolve
from specjax.core.types import RUNNING, Drafter, Params, PyTree, Text
from specjax.drafters import suffix_index
from specjax.drafters.ngram import ngram
from specjax.drafters.suffix import read, suffix
from specjax.drafters.suffix_index import Index
from specjax.engine.corpus import append
from specjax.measure.turns import median_in_turns
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params

MOST_MS, MOST_GROWTH = 2.0, 1.5  # goals: a proposal at the largest batch; largest over least corpus


def bench_drafters(
    json_file: Path | None,
    *,
    sizes: Sizes | None = None,
    reps: int = 5,
    edits: bool = True,
    console: Console | None = None,
) -> list[Row]:
    """Return, print and write the rows of the benchmark. A missed goal is not a failure."""
    sizes, console = sizes or Sizes(), console or Console(highlight=False)

    def echo(line: str) -> None:
        console.print(line, soft_wrap=True, markup=False)

    rows, load = [machine_row()], busy()
    if load > MOST_LOAD:
        echo(f"other processes keep {load:.1f} cores busy: no goal is judged on these numbers")
    tokens = library(max(sizes.corpora) + max(sizes.batches) * (max(sizes.contexts) + 512))
    echo("timing the target's plain step ...")
    plain = {batch: plain_step(batch, reps) for batch in sizes.batches}
    echo("timing vLLM's drafters ...")
    theirs = time_peers(sizes, tokens, reps, echo)
    rows += ngram_rows(sizes, tokens, plain, theirs, reps, echo)
    rows += suffix_rows(sizes, tokens, plain, theirs, reps, echo)
    rows += scan_rows(sizes, tokens, plain, reps, echo)
    if edits:
        rows += edit_rows(reps, echo)
    print_rows(rows, console, judged=load <= MOST_LOAD)
    if json_file is not None:
        write_rows(rows, json_file)
        echo(f"wrote {json_file}")
    return rows


def plain_step(batch: int, reps: int) -> float:
    """Return the milliseconds of a plain step of the bundled target."""
    folder = resolve("bundled")
    config, _ = read_config(folder, dtype="float32")
    setting = Setting(config)
    weights = load_params(folder, config)
    stepper = Stepper(setting, Params(weights, None), batch, setting.window)
    return median_ms(lambda: stepper.seconds(1), reps)


def median_ms(seconds: Callable[[], float], reps: int) -> float:
    """Return the median in milliseconds, after two calls that are not counted."""
    return 1e3 * median_in_turns([seconds], reps, warm_up=2)[0]


def clocked(call: Callable[[], Any]) -> float:
    """Return the seconds of a call, per proposal or appended token."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    return (time.perf_counter() - start) / LOOPS


@functools.partial(jax.jit, static_argnums=0)
def proposals(drafter: Drafter, params: PyTree, state: PyTree, text: Text) -> jax.Array:
    """Run ``LOOPS`` proposals in one program, each waiting for the one before; to be timed."""
    unused: Any = None  # sampling parameters and keys: neither drafter samples

    def one(_, largest):
        seen = text._replace(lengths=text.lengths - (largest < 0))
        draft, _ = drafter.propose(params, state, seen, unused, unused, 0)
        return jnp.maximum(largest, draft.tokens.max())

    return jax.lax.fori_loop(0, LOOPS, one, jnp.zeros((), jnp.int32))


@functools.partial(jax.jit, donate_argnums=0)
def catch_up(index: Index, text: Text) -> Index:
    """Append to an index the tokens of its text that it lacks."""
    return read(index, text, text.lengths)


def laid_out(texts: np.ndarray, length: int) -> Text:
    """Return texts of this length."""
    batch = texts.shape[0]
    same = jnp.full(batch, length, jnp.int32)
    limits, reason = jnp.full_like(same, texts.shape[1]), jnp.full_like(same, RUNNING)
    return Text(jnp.asarray(texts), same, same, limits, reason)


def ngram_rows(
    sizes: Sizes,
    tokens: np.ndarray,
    plain: dict[int, float],
    theirs: dict[tuple, float],
    reps: int,
    echo: Callable[[str], None],
) -> list[Row]:
    """Return rows of n-gram proposals."""
    drafter, rows = ngram(DEPTH, NGRAM[1], NGRAM[0]), []
    for context, batch in itertools.product(sizes.contexts, sizes.batches):
        echo(f"timing ngram, context {context}, batch {batch} ...")
        text = laid_out(rows_of(sizes, tokens, batch, context), context)
        took = median_ms(
            lambda text=text: clocked(lambda: proposals(drafter, None, (), text)), reps
        )
        name = f"ngram, context {context}, batch {batch}: proposal"
        rows += beside(name, took, theirs.get(("ngram", context, batch)), "vLLM", plain[batch])
    return rows


def suffix_rows(
    sizes: Sizes,
    tokens: np.ndarray,
    plain: dict[int, float],
    theirs: dict[tuple, float],
    reps: int,
    echo: Callable[[str], None],
) -> list[Row]:
    """Return rows of suffix proposals and appends, for every size of both indexes."""
    drafter, rows, whole = suffix(DEPTH, DEPTH), [], {}
    corpora: dict[int, Index | None] = {}
    for size in sizes.corpora:
        echo(f"indexing {size} tokens of responses ...")
        corpora[size], took = indexed(tokens[:size])
        name, peer = f"suffix, corpus {size}: append a token", theirs.get(("append", size))
        rows += beside(name, took, peer, "Arctic", None) if size else []
    for batch, context in itertools.product(sizes.batches, sizes.contexts):
        echo(f"timing suffix, context {context}, batch {batch} ...")
        texts = rows_of(sizes, tokens, batch, context)
        state = suffix_index.empty(batch, DEPTH, texts.shape[1])
        state, appended = catch_up(state, laid_out(texts, context)), []
        for number in range(1, reps + 3):
            text, start = laid_out(texts, context + number * LOOPS), time.perf_counter()
            state = jax.block_until_ready(catch_up(state, text))
            appended.append(1e3 * (time.perf_counter() - start) / LOOPS)
        appended = statistics.median(appended[2:])
        where = f"context {context}, batch {batch}"
        name, peer = f"suffix, {where}: append a token", theirs.get(("own", context, batch))
        rows += beside(name, appended, peer, "Arctic", plain[batch])
        args = [(drafter, common, state, text) for common in corpora.values()]
        calls = [lambda one=one: clocked(lambda: proposals(*one)) for one in args]
        medians = median_in_turns(calls, reps, warm_up=2)
        for size, seconds in zip(corpora, medians, strict=True):
            took = 1e3 * seconds
            whole[context, batch, size] = took + appended
            name = f"suffix, {where}, corpus {size}: proposal"
            peer = theirs.get(("suffix", context, batch, size))
            goal = MOST_MS if batch == max(sizes.batches) else None
            rows += beside(name, took, peer, "Arctic", plain[batch], goal)
        del state, args, calls
    rows += growth_rows(sizes, whole)
    size = max(sizes.corpora)
    each = 4 * suffix_index.NUM_FIELDS * DEPTH
    name, peer = f"memory per indexed token, depth {DEPTH}", theirs.get(("memory", size))
    rows.append(compare(name, each, "B", peer, f"Arctic, {size} tokens") if peer else
                Row(name=name, value=each, unit="B"))  # fmt: skip
    return rows


def indexed(tokens: np.ndarray) -> tuple[Index | None, float]:
    """Return an index of the responses, and the milliseconds per token of building it."""
    if not len(tokens):
        return None, 0.0
    index, start = suffix_index.empty(1, DEPTH, len(tokens) + RESPONSE), time.perf_counter()
    for first in range(0, len(tokens), RESPONSE):
        if first == RESPONSE:
            start = time.perf_counter()  # compiled
        index = index._replace(active=jnp.zeros_like(index.active))
        one = tokens[first : first + RESPONSE]
        count = jnp.full(1, len(one), jnp.int32)
        index = append(index, jnp.asarray(np.resize(one, (1, RESPONSE))), count)
    jax.block_until_ready(index)
    return index, 1e3 * (time.perf_counter() - start) / max(len(tokens) - RESPONSE, 1)


def scan_rows(
    sizes: Sizes,
    tokens: np.ndarray,
    plain: dict[int, float],
    reps: int,
    echo: Callable[[str], None],
) -> list[Row]:
    """Return rows of the simple alternative to the trie, on the same responses."""
    rows = []
    for size, batch in itertools.product(filter(None, sizes.corpora), sizes.batches):
        echo(f"timing a masked scan, corpus {size}, batch {batch} ...")
        append_ms, propose_ms = time_scan(tokens[:size], batch, reps)
        name = f"masked scan, batch {batch}, corpus {size}"
        rows += beside(f"{name}: append a token", append_ms, None, "", plain[batch])
        rows += beside(f"{name}: proposal", propose_ms, None, "", plain[batch])
    return rows


def growth_rows(sizes: Sizes, whole: dict) -> list[Row]:
    """Return rows that compare the largest corpus with the smallest: step, proposal, append."""
    real = [size for size in sizes.corpora if size]
    rows = []
    for context, batch in itertools.product(sizes.contexts, sizes.batches):
        large, small = (whole[context, batch, size] for size in (max(real), min(real)))
        name = f"suffix, context {context}, batch {batch}, corpus {max(real)}: proposal and token"
        against = f"corpus {min(real)}"
        rows.append(compare(name, large, "ms", small, against, at_most=MOST_GROWTH))
    return rows


def beside(
    name: str,
    took: float,
    peer: float | None,
    who: str,
    plain: float | None,
    goal: float | None = None,
) -> list[Row]:
    """Return rows that compare milliseconds with a peer's, if measured, and with a plain step's."""
    rows = []
    if goal is not None:
        rows.append(Row(name=name, value=took, unit="ms", goal=f"<= {goal:g} ms", met=took <= goal))
    if peer is not None:
        rows.append(compare(name, took, "ms", peer, f"{who}, request by request"))
    if plain is not None:
        rows.append(compare(name, took, "ms", plain, "the bundled target's plain step"))
    return rows

"""vLLM's drafters without a model, timed on the texts of ``specjax bench drafters``.

Arctic's C++ cache and vLLM's numba n-gram, called request by request, as vLLM calls them.
"""

import itertools
import statistics
from collections.abc import Callable, Sequence

import numpy as np

from specjax.bench.drafter_plan import DEPTH, LOOPS, NGRAM, RESPONSE, ROOM, Sizes, rows_of
from specjax.oracle.ask import ask
from specjax.oracle.environment import OracleMissing


def time_peers(
    sizes: Sizes, tokens: np.ndarray, reps: int, echo: Callable[[str], None]
) -> dict[tuple, float]:
    """Return the times of vLLM's drafters on the same texts; empty if vLLM is not installed."""
    try:
        return peer_ngram(sizes, tokens, reps) | peer_suffix(sizes, tokens, reps)
    except OracleMissing as missing:
        echo(f"vLLM: left out; {missing}")
        return {}


def peer_ngram(sizes: Sizes, tokens: np.ndarray, reps: int) -> dict[tuple, float]:
    """Return the milliseconds per batch of vLLM's n-gram rule, request by request."""
    found = {}
    for context, batch in itertools.product(sizes.contexts, sizes.batches):
        texts = rows_of(sizes, tokens, batch, context)[:, :context].tolist()
        cases = [[text, *NGRAM, 1 << 20, DEPTH] for text in texts]
        took = ask({"kind": "ngram", "cases": cases * (reps + 1)})["took"]
        found["ngram", context, batch] = 1e3 * median_of_sums(took[batch:], batch)
    return found


def peer_suffix(sizes: Sizes, tokens: np.ndarray, reps: int) -> dict[tuple, float]:
    """Return the bytes of Arctic's suffix tree, and its milliseconds per token and per batch."""
    found: dict[tuple, float] = {}
    for size in sizes.corpora:
        stories = [
            ("said", (context, batch), rows_of(sizes, tokens, batch, context))
            for context, batch in itertools.product(sizes.contexts, sizes.batches)
        ]
        events = corpus_events(tokens[:size])
        num_corpus = len(events)
        for _, _, texts in stories:
            events += row_events(texts, reps)
        world = {"cache": {"max_tree_depth": DEPTH}, "options": {}, "events": events}
        answer = ask({"kind": "suffix", "worlds": [world]}, timeout=900)
        took = answer["took"][0]
        if size:
            added = [s for s, e in zip(took, events[:num_corpus], strict=False) if e[0] == "add"]
            found["append", size] = 1e3 * sum(added) / size
            found["memory", size] = answer["memory"][0] / size
        at = num_corpus
        for _, key, texts in stories:
            batch, at = len(texts), at + len(texts)
            asked = took[at : at + (reps + 1) * batch][batch:]
            at += (reps + 1) * batch
            added = took[at : at + batch]
            at += 2 * batch
            found["suffix", *key, size] = 1e3 * median_of_sums(asked, batch)
            if not size:
                found["own", *key] = 1e3 * sum(added) / LOOPS
    return found


def corpus_events(tokens: np.ndarray) -> list:
    """Return the events that add responses to the cache, one after the other."""
    events = []
    for first in range(0, len(tokens), RESPONSE):
        name = f"response {first}"
        events.append(["start", name, []])
        events.append(["add", name, tokens[first : first + RESPONSE].tolist()])
        events.append(["stop", name])
    return events


def row_events(texts: np.ndarray, reps: int) -> list:
    """Return the events of a batch: start all, request drafts repeatedly, add tokens, stop."""
    batch, width = texts.shape
    context = width - ROOM
    names = [f"row {row} of {batch}, {context}" for row in range(batch)]
    starts = [
        ["start", name, text[:context].tolist()] for name, text in zip(names, texts, strict=True)
    ]
    asks = [
        ["ask", name, text[context - DEPTH : context].tolist(), DEPTH]
        for name, text in zip(names, texts, strict=True)
    ]
    adds = [
        ["add", name, text[context : context + LOOPS].tolist()]
        for name, text in zip(names, texts, strict=True)
    ]
    return [*starts, *asks * (reps + 1), *adds, *(["stop", name] for name in names)]


def median_of_sums(seconds: Sequence[float], size: int) -> float:
    """Return the median over repetitions of a batch's summed time."""
    return statistics.median(sum(seconds[i : i + size]) for i in range(0, len(seconds), size))

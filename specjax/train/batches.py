"""The tokens of a training step, a function of (seed, step) alone: a resumed run gets the same."""

import functools

import numpy as np


@functools.lru_cache(maxsize=2)
def _epoch(num_tokens: int, context: int, seed: int, epoch: int) -> np.ndarray:
    """Return the starts of one pass over the text, in random order: int64 [windows].

    Windows of ``context`` inputs and one more target tile the text from a random offset.
    Raw bits of Philox keyed by (seed, epoch): NumPy keeps that stream for ever, unlike the
    order of ``Generator.permutation``.
    """
    bits = np.random.Philox(key=np.array([seed, epoch], np.uint64))
    offset = int(bits.random_raw()) % min(context, num_tokens - context)
    starts = np.arange(offset, num_tokens - context, context)
    return starts[np.argsort(bits.random_raw(len(starts)), kind="stable")]


def crop(tokens: np.ndarray, seed: int, step: int, batch: int, context: int) -> np.ndarray:
    """Return step ``step``'s sequences: int32 [batch, context + 1], inputs and targets.

    Every token is seen about once before any is seen twice. Raises ValueError when the text
    is shorter than one window.
    """
    if len(tokens) <= context + 1:
        raise ValueError(f"the text has {len(tokens)} tokens, one window needs {context + 2}")
    per_epoch = (len(tokens) - context) // context  # what the largest offset still leaves
    rows = []
    for row in range(step * batch, (step + 1) * batch):
        epoch, index = divmod(row, max(per_epoch, 1))
        start = _epoch(len(tokens), context, seed, epoch)[index]
        rows.append(tokens[start : start + context + 1])
    return np.stack(rows).astype(np.int32)


def measure(tokens: np.ndarray, batch: int, context: int, num_batches: int) -> list[np.ndarray]:
    """Return fixed held-out batches, spread evenly over the text: int32 [batch, context + 1]."""
    if len(tokens) <= context:
        raise ValueError(f"the text has {len(tokens)} tokens, one window needs {context + 1}")
    starts = np.linspace(0, len(tokens) - context - 1, batch * num_batches).astype(np.int64)
    rows = np.stack([tokens[start : start + context + 1] for start in starts]).astype(np.int32)
    return list(rows.reshape(num_batches, batch, context + 1))

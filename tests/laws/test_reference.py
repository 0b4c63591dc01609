"""The step against an independent reference: one token at a time, NumPy, no cache, no draft."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core.sampling import CHOOSE
from specjax.core.topology import causal
from tests.laws import harness as h


@jax.jit
def logits_of(params, tokens):
    """Logits after every position of [1, T] tokens, in one pass over an empty cache."""
    cache = h.TARGET.init_cache(1, h.CAPACITY)
    positions = jnp.arange(h.CAPACITY)[None]
    output, _ = h.TARGET.forward(params, tokens, positions, causal(h.CAPACITY), cache, h.CAPACITY)
    return h.TARGET.logits(params, output.hidden)


@jax.jit
def noise_of(key, position):
    """The Gumbel noise that decides the token at a position."""
    key = jax.random.fold_in(jax.random.fold_in(key, position), CHOOSE)
    uniform = jnp.float32(jax.random.bits(key, (h.VOCAB,))) * 2.0**-32 + 2.0**-33
    return -jnp.log(-jnp.log1p(-jnp.minimum(uniform, 1 - 2.0**-24)))


def constrained(logits: np.ndarray, row: h.Row, output: list[int]) -> np.ndarray:
    """What a request asks of its logits, written from vLLM's definitions with a sort."""
    logits = logits.astype(np.float64)
    for word in row.bad_words:
        if list(word[:-1]) == output[len(output) - len(word) + 1 :] or len(word) == 1:
            logits[word[-1]] = -1e30
    if len(output) < row.min_tokens:
        logits[list(row.stop_ids)] = -1e30
    for token in {*row.prompt, *output}:
        value = logits[token]
        logits[token] = value / row.repetition if value > 0 else value * row.repetition
    for token in set(output):
        logits[token] -= row.presence + row.frequency * output.count(token)
    if row.temperature == 0:
        return logits
    order = np.argsort(-logits, kind="stable")
    probs = np.exp((logits - logits.max()) / row.temperature)
    keep = order[: row.top_k]
    mass = np.cumsum(probs[keep]) / probs[keep].sum()
    keep = keep[: int(np.searchsorted(mass, row.top_p - 1e-9)) + 1]
    allowed = np.full_like(logits, -1e30)
    allowed[keep] = logits[keep]
    return allowed


def reference(row: h.Row) -> tuple[list[int], list[float]]:
    """Complete one request; also return how far ahead each choice was of the next best."""
    words = np.array([row.seed >> 32, row.seed & 0xFFFFFFFF], np.uint32)
    key = jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
    tokens, margins = list(row.prompt), []
    while len(tokens) < len(row.prompt) + row.max_tokens:
        padded = np.zeros((1, h.CAPACITY), np.int32)
        padded[0, : len(tokens)] = tokens
        logits = np.asarray(logits_of(h.weights().target, padded))[0, len(tokens) - 1]
        noise = noise_of(key, len(tokens))
        scores = constrained(logits, row, tokens[len(row.prompt) :])
        scores = scores + row.temperature * np.asarray(noise)
        best, second = np.sort(scores)[::-1][:2]
        margins.append(float(best - second))
        tokens.append(int(scores.argmax()))
        if tokens[-1] in row.stop_ids:
            break
    return tokens[len(row.prompt) :], margins


@pytest.mark.parametrize("seed", [21, 22])
def test_every_sampling_feature_agrees_with_a_one_token_reference(seed):
    rows = h.random_rows(8, seed=seed, max_tokens=40)
    plain = h.run(h.PLAIN, rows)
    drafted = h.run(h.guided(h.TREES["bush"]), rows, params=h.knowing(plain, rows, 0.7))
    for row, ours, tree in zip(rows, plain.tokens, drafted.tokens, strict=True):
        expected, margins = reference(row)
        differ = [i for i, pair in enumerate(zip(ours, expected, strict=False)) if len({*pair}) > 1]
        if differ:  # only at a tie that float32 cannot see
            assert margins[differ[0]] < 1e-4
        else:
            assert ours == expected
        assert tree == ours

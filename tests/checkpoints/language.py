"""The cycle language: what every checkpoint of one seed knows, and the random rest.

Token t is followed by ``follow[t]``: the head's row of ``follow[t]`` is the embedding of t.
Four kindred tokens share most of their embedding, so four successors compete, and a target
decides between them by the token before: its stream at position n is

    e[t_n] + recall e[t_(n-1)] + noise

``recall`` reads the first half of a vector and writes the second, hence recall^2 = 0, and a head
that is given the target's hidden state h_n and the next embedding rebuilds the next stream:

    e[t_(n+1)] + recall h_n  =  e[t_(n+1)] + recall e[t_n] + recall noise

A lost hidden state, a shift by one or a mistaken norm therefore costs acceptance.
"""

import math
import zlib
from typing import NamedTuple

import numpy as np

VOCAB, HIDDEN, HEAD_DIM, INTERMEDIATE = 256, 64, 32, 48
CYCLE = 16  # tokens per cycle
KIN, LIKENESS = 4, 0.85  # tokens 4k .. 4k + 3 have this share of their embeddings in common
EMBED_SCALE = 0.5  # sets how sharp the law is at temperature 1
RECALL_SCALE = 2.0  # how much louder the previous token is than the current one
STREAM_SCALE = EMBED_SCALE * math.hypot(1.0, RECALL_SCALE / math.sqrt(2))  # a stream's rms
ANCHOR = 2.0  # the constant that feature 0 of every embedding holds, in units of EMBED_SCALE
SHARPNESS = 4.5  # of the attention that looks for a distance
ROPE_THETA = 100.0

Weights = dict[str, np.ndarray]


class Language(NamedTuple):
    """What target and drafters of one seed share."""

    embed: np.ndarray  # [V, D]
    follow: np.ndarray  # [V], a permutation made of cycles
    recall: np.ndarray  # [D, D], first half -> second half, a signed permutation

    def head(self, steps: int = 1) -> np.ndarray:
        """Return head weights [V, D]: row v is the embedding of the token ``steps`` before v."""
        rows, ahead = np.empty_like(self.embed), np.arange(VOCAB)
        for _ in range(steps):
            ahead = self.follow[ahead]
        rows[ahead] = self.embed
        return rows


def stream(seed: int, name: str) -> np.random.Generator:
    """Return the generator of one name: a checkpoint does not depend on its neighbours."""
    return np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(name.encode())]))


def draw(seed: int) -> Language:
    """Draw the language of a seed."""
    rng, half = stream(seed, "language"), HIDDEN // 2
    shared = np.repeat(rng.standard_normal((VOCAB // KIN, HIDDEN)), KIN, axis=0)
    own = rng.standard_normal((VOCAB, HIDDEN))
    embed = EMBED_SCALE * (math.sqrt(LIKENESS) * shared + math.sqrt(1.0 - LIKENESS) * own)
    embed[:, 0] = EMBED_SCALE * ANCHOR
    cycles = rng.permutation(VOCAB).reshape(-1, CYCLE)
    follow = np.empty(VOCAB, dtype=np.int64)
    follow[cycles] = np.roll(cycles, -1, axis=1)
    recall = np.zeros((HIDDEN, HIDDEN))
    signs = RECALL_SCALE * rng.choice([-1.0, 1.0], half)
    recall[half + rng.permutation(half), np.arange(half)] = signs
    recall[:, 0] = 0.0  # the anchor says nothing
    return Language(embed, follow, recall)


def noise(rng: np.random.Generator, rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
    """Draw a matrix [rows, columns] that multiplies a vector's rms by about ``gain``."""
    return gain * rng.standard_normal((rows, columns)) / math.sqrt(columns)


def norm(rng: np.random.Generator, size: int, scale: float = 1.0) -> np.ndarray:
    """Draw the weight [size] of an RMSNorm; never exactly ``scale``, or a default would hide."""
    return scale * (1.0 + 0.05 * rng.standard_normal(size))


def mlp(rng: np.random.Generator, gain: float) -> Weights:
    """Draw a SwiGLU block; ``gain`` is the size of what it adds to the stream."""
    return {
        "mlp.gate_proj.weight": noise(rng, INTERMEDIATE, HIDDEN),
        "mlp.up_proj.weight": noise(rng, INTERMEDIATE, HIDDEN),
        "mlp.down_proj.weight": noise(rng, HIDDEN, INTERMEDIATE, gain),
    }


def look_back(distance: int, size: int = HEAD_DIM) -> tuple[np.ndarray, np.ndarray]:
    """Return (query, key) [size] whose score is greatest ``distance`` tokens back.

    Rotary scores depend on the distance alone (Su et al., arXiv:2104.09864): a constant key
    and the same vector turned back by ``distance`` meet there in every frequency. Only the
    fastest quarter is used; slow ones do not tell neighbours apart. The two halves of a vector
    are paired, as in Llama.
    """
    angles = distance * ROPE_THETA ** (-np.arange(0, size, 2) / size)
    fast = np.where(np.arange(size // 2) < size // 8, SHARPNESS * math.sqrt(8), 0.0)
    query = np.concatenate([fast * np.cos(angles), -fast * np.sin(angles)])
    return query, np.concatenate([fast, np.zeros(size // 2)])


def prefixed(prefix: str, weights: Weights) -> Weights:
    """Put ``prefix`` before every name."""
    return {prefix + name: value for name, value in weights.items()}

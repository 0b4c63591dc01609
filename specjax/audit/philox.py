"""Random numbers that no NumPy version changes: raw bits of Philox instead of ``Generator``."""

import math

import numpy as np


class Noise:
    """A stream of uniform, exponential and integer random numbers from a seed."""

    def __init__(self, seed: int):
        self._bits = np.random.Philox(key=np.array([seed, 0], np.uint64))

    def uniform(self, *shape: int) -> np.ndarray:
        """Return float32 uniforms [shape]: odd multiples of 2^-23 in (0, 1), never 0."""
        raw = self._bits.random_raw(math.prod(shape)).reshape(shape) >> np.uint64(42)
        return ((raw.astype(np.float64) + 0.5) / 2**22).astype(np.float32)

    def exponential(self, *shape: int) -> np.ndarray:
        """Return float32 exponential noise [shape]."""
        return -np.log(self.uniform(*shape))

    def integers(self, low: int, high: int, *shape: int) -> np.ndarray:
        """Return int64 integers [shape] in low .. high - 1."""
        wide = np.floor(self.uniform(*shape).astype(np.float64) * (high - low))
        return wide.astype(np.int64) + low

    def integer(self, low: int, high: int) -> int:
        """Return one integer in low .. high - 1."""
        return int(self.integers(low, high, 1)[0])

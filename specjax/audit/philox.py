"""Random numbers that stay the same for ever: raw bits of Philox, not ``Generator``'s."""

import math

import numpy as np


class Noise:
    """A stream of uniforms and integers, addressed by a seed."""

    def __init__(self, seed: int):
        self._bits = np.random.Philox(key=np.array([seed, 0], np.uint64))

    def uniform(self, *shape: int) -> np.ndarray:
        """Draw multiples of 2^-23 in (0, 1), none of them 0: float32 [shape]."""
        raw = self._bits.random_raw(math.prod(shape)).reshape(shape) >> np.uint64(42)
        return ((raw.astype(np.float64) + 0.5) / 2**22).astype(np.float32)

    def exponential(self, *shape: int) -> np.ndarray:
        """Draw exponential waiting times: float32 [shape]."""
        return -np.log(self.uniform(*shape))

    def integers(self, low: int, high: int, *shape: int) -> np.ndarray:
        """Draw from low .. high - 1: int64 [shape]."""
        wide = np.floor(self.uniform(*shape).astype(np.float64) * (high - low))
        return wide.astype(np.int64) + low

    def integer(self, low: int, high: int) -> int:
        """Draw one of low .. high - 1."""
        return int(self.integers(low, high, 1)[0])

"""A server on a roofline whose shares of the peak numbers are known within bounds only.

A schedule that holds at every bound changes K only where the change pays at all of them.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from specjax.theory.arrays import Real, Scalar, Value
from specjax.theory.intervals import Interval
from specjax.theory.roofline import HARDWARE, Hardware, ModelCost, decode_time_roofline

BANDWIDTH = (0.5, 1.0)  # assumed shares of the peak: of bandwidth, of operations,
COMPUTE = (0.4, 0.9)
DRAFT = (0.15, 1.0)  # and of bandwidth in a draft's passes, which are short: launches count
MOST_ROWS = 512
ASSUMED = (
    f"a roofline with {BANDWIDTH[0]:.0%} to {BANDWIDTH[1]:.0%} of the bandwidth, {COMPUTE[0]:.0%} "
    f"to {COMPUTE[1]:.0%} of the operations, drafting with {DRAFT[0]:.0%} to {DRAFT[1]:.0%}"
)


class ModelledServer(NamedTuple):
    """What a server's times are computed from. ``draft`` None: drafts cost nothing."""

    hardware: Hardware
    target: ModelCost
    draft: ModelCost | None = None
    context: Scalar = 0.0  # tokens per row, mean
    num_devices: int = 1  # tensor parallel, without the cost of communication

    def worlds(self) -> Iterator[tuple[Hardware, Hardware]]:
        """Yield the target's and the draft's hardware at every corner of the bounds."""
        for bandwidth, compute, draft in itertools.product(BANDWIDTH, COMPUTE, DRAFT):
            yield self.slowed(bandwidth, compute), self.slowed(draft, compute)

    def slowed(self, bandwidth: Scalar, compute: Scalar) -> Hardware:
        """Return all devices together at shares of their peak."""
        hw, n = self.hardware, self.num_devices
        return hw._replace(
            bandwidth=n * bandwidth * hw.bandwidth,
            flops=n * compute * hw.flops,
            memory=n * hw.memory,
        )

    def rounds(self, batch: Real, ks: Real, own: Hardware, draft: Hardware) -> Value:
        """Return the seconds of a round for each K in one world; K = 0 is a plain step."""
        depth = np.asarray(ks, np.float64)
        seconds = decode_time_roofline(batch, depth + 1.0, self.context, self.target, own)
        if self.draft is not None:
            one = decode_time_roofline(batch, 1.0, self.context, self.draft, draft)
            seconds = seconds + depth * one
        return seconds

    def costs(self, batch: Scalar, k: int) -> dict[str, Interval]:
        """Return drafting, verifying beyond one token, and both, in plain steps, with bounds."""
        found: dict[str, list[float]] = {"draft": [], "verify": [], "both": []}
        for own, draft in self.worlds():
            plain, whole = self.rounds(batch, (0, k), own, draft)
            bare, verified = self._replace(draft=None).rounds(batch, (0, k), own, draft)
            found["draft"].append(float((whole - verified) / plain))
            found["verify"].append(float(verified / bare - 1.0))
            found["both"].append(float(whole / plain - 1.0))
        return {name: spread(values) for name, values in found.items()}

    def plain_s(self, batch: Scalar) -> Interval:
        """Return the seconds of a plain step with bounds."""
        return spread([float(self.rounds(batch, (0,), *world)[0]) for world in self.worlds()])

    def most_rows(self) -> int:
        """Return how many rows fit into memory beside the weights, at most ``MOST_ROWS``."""
        models = [self.target] + ([] if self.draft is None else [self.draft])
        weights = sum(one.num_params * one.bytes_per_param for one in models)
        row = self.context * sum(one.kv_bytes for one in models)
        room = self.num_devices * self.hardware.memory - weights
        return int(min(max(room / row, 0.0), MOST_ROWS)) if row > 0 else MOST_ROWS * (room > 0)

    def bound_by_compute(self, k: int) -> int | None:
        """Return the smallest batch whose verification is bound by compute at peak numbers."""
        hw = self.slowed(1.0, 1.0)
        rows = np.arange(1, 4097)
        free = decode_time_roofline(
            rows, k + 1.0, self.context, self.target, hw._replace(flops=1e300)
        )
        whole = decode_time_roofline(rows, k + 1.0, self.context, self.target, hw)
        bound = np.flatnonzero(whole > free * (1 + 1e-9))
        return int(rows[bound[0]]) if len(bound) else None


def spread(values: Sequence[float]) -> Interval:
    """Return the middle (geometric, if positive), least and greatest of some values."""
    low, high = min(values), max(values)
    return Interval(float(np.sqrt(low * high)) if low > 0 else (low + high) / 2, low, high)


def parse_hardware(text: str) -> tuple[Hardware, int]:
    """Return the device and how many of ``H200`` or ``2xH200``. Raises ValueError for others."""
    found = re.fullmatch(r"(?:(\d+) ?x ?)?(.+)", text)
    number, name = ("1", text) if found is None else (found[1] or "1", found[2])
    by_name = {key.lower(): hardware for key, hardware in HARDWARE.items()}
    if name.lower() not in by_name or int(number) < 1:
        raise ValueError(f"unknown hardware {text!r}; valid: N x {', '.join(HARDWARE)}")
    return by_name[name.lower()], int(number)


class Advice(NamedTuple):
    """Ranges of batch sizes with a K, and the gain over the K in use."""

    schedule: list[list[int]]  # num_speculative_tokens_per_batch_size
    gains: list[Interval]  # per range, at its last batch, over the K in use


def advise(
    server: ModelledServer,
    tokens: Callable[[int], float],
    used: int,
    overhead: Scalar = 0.0,
    most_rows: int | None = None,
) -> Advice:
    """Return K by batch size: never one that is slower than the K in use in any of the worlds.

    At each batch size the K (0 to the one in use: beyond, acceptance is not known) whose least
    gain over the K in use, over all worlds, is greatest. From one batch size to the next K changes
    only where the one before would be slower than the K in use in some world, or 2% worse.

    Args:
        server: the roofline.
        tokens: expected tokens per round at a K; tokens(0) is 1.
        used: the K in use.
        overhead: further cost of a round with drafts, in plain steps.
        most_rows: the largest batch size; by default what fits into memory.

    Raises:
        ValueError: the weights do not fit into memory.
    """
    limit = server.most_rows() if most_rows is None else most_rows
    if limit < 1:
        raise ValueError(
            f"{server.target.name} and a row of {server.context:g} tokens do not fit into "
            f"{server.num_devices} x {server.hardware.name}."
        )
    ks, rows = np.arange(used + 1), np.arange(1, limit + 1)[:, None]
    made = np.array([tokens(int(k)) for k in ks])
    speeds = []
    for world in server.worlds():
        seconds = server.rounds(rows, ks, *world)  # [rows, K]
        speeds.append(made[None] / (seconds + overhead * seconds[:, :1] * (ks > 0)[None]))
    over = np.stack(speeds) / np.stack(speeds)[:, :, used:]  # [worlds, rows, K]
    least = over.min(axis=0)
    advice, gains, now = [], [], used
    for row, batch in enumerate(rows[:, 0].tolist()):
        best = int(least[row].argmax())
        if least[row, now] < 1.0 - 1e-9 or least[row, now] < least[row, best] / 1.02:
            now = best
        gain = spread(over[:, row, now].tolist())
        if advice and advice[-1][2] == now:
            advice[-1][1], gains[-1] = batch, gain
        else:
            advice.append([batch, batch, now])
            gains.append(gain)
    return Advice(advice, gains)

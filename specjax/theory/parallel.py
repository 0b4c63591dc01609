"""The cost of a model that several devices share: what a pass and a round send, and how long.

Megatron's split (Shoeybi et al. 2019, arXiv:1909.08053), as ``engine.device`` lays weights out: two
sums over all devices in a layer and one of the embeddings, each of one hidden vector per token.
Collectives cost what Thakur, Rabenseifner & Gropp 2005 derive for recursive halving and doubling.
"""

from typing import NamedTuple

from specjax.theory.arrays import Real, Value, arrays, require, require_costs
from specjax.theory.roofline import Hardware, ModelCost, decode_time_roofline


class Link(NamedTuple):
    """What connects the devices; ``assumption`` says where the numbers come from."""

    name: str
    latency: float  # seconds per step of a collective
    bandwidth: float  # bytes/s that a device sends
    assumption: str


class Shape(NamedTuple):
    """The sizes of a model that determine what its devices exchange."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    bytes_per_value: float = 2.0  # of hidden states


NVLINK = Link("NVLink in a host", 3e-6, 450e9, "assumed: data sheet, 8 GPUs, one direction")
NETWORK = Link("400 Gb/s network", 10e-6, 50e9, "assumed: one network card per GPU")
QWEN3_32B_SHAPE = Shape(64, 5120, 64, 8)
QWEN3_0_6B_SHAPE = Shape(28, 1024, 16, 8)


def num_all_reduces(shape: Shape, num_devices: int) -> int:
    """Return the sums over all devices in one pass: two per layer, one for the embeddings.

    Shoeybi et al. 2019 (arXiv 1909.08053), sec. 3; without its sums for gradients.
    """
    require("num_devices", num_devices, 1)
    return 0 if num_devices == 1 else 2 * shape.num_layers + 1


def all_reduce_bytes(B: Real, m: Real, shape: Shape) -> Value:
    """Return the bytes that one of these sums adds up, of B rows of m tokens.

    Shoeybi et al. 2019 (arXiv 1909.08053), sec. 3.
    """
    require_costs(B=B, m=m)
    _, B, m = arrays(B, m)
    return (B * m * shape.hidden_size * shape.bytes_per_value)[()]


def all_reduce_time(num_bytes: Real, num_devices: Real, link: Link) -> Value:
    """Return 2 ceil(log2 n) latencies + 2 (n - 1) / n bytes / bandwidth.

    Thakur, Rabenseifner & Gropp 2005, sec. 4.5 (Rabenseifner's algorithm).
    Raises ValueError for fewer than one device, or negative bytes.

    >>> print(f"{float(all_reduce_time(10240, 8, NVLINK)) * 1e6:.1f} us")
    18.0 us
    """
    require("num_devices", num_devices, 1)
    require_costs(num_bytes=num_bytes)
    xp, size, n = arrays(num_bytes, num_devices)
    return (2.0 * xp.ceil(xp.log2(n)) * link.latency + 2.0 * (n - 1.0) / n * size / link.bandwidth)[
        ()
    ]


def split_pass_time(
    B: Real, m: Real, ctx: Real, model: ModelCost, shape: Shape, hw: Hardware,
    num_devices: int, link: Link,
) -> Value:  # fmt: skip
    """Return the seconds of a pass over B rows of m tokens by devices that share the model.

    The roofline of Williams et al. 2009 for a share of the model, and the sums.
    Weights and operations are divided by the devices, keys and values by at most the key heads, of
    which further devices have copies. Nothing overlaps with the sums. Raises ValueError if the
    devices do not divide the query heads: no head is on two of them.
    """
    check_heads(shape, num_devices)
    share = min(num_devices, shape.num_kv_heads)
    one = model._replace(
        num_params=model.num_params / num_devices,
        expert_params=model.expert_params / num_devices,
        kv_bytes=model.kv_bytes / share,
        context_flops=model.context_flops / num_devices,
    )
    alone = decode_time_roofline(B, m, ctx, one, hw)
    each = all_reduce_time(all_reduce_bytes(B, m, shape), num_devices, link)
    return alone + num_all_reduces(shape, num_devices) * each


def split_round_time(
    B: Real, K: Real, ctx: Real,
    target: tuple[ModelCost, Shape], draft: tuple[ModelCost, Shape] | None,
    hw: Hardware, num_devices: int, link: Link, *, draft_devices: int = 1,
) -> Value:  # fmt: skip
    """Return the seconds of a round: K draft passes, one pass that verifies K + 1 tokens.

    Leviathan et al. 2023 (arXiv 2211.17192), Thm 3.8, with these times as its costs.
    ``draft`` None: a free draft, such as n-grams. ``draft_devices`` 1: each device drafts all by
    itself and the same (specjax's heads); more: they share the draft model as well. Raises as
    ``split_pass_time`` does.
    """
    require_costs(K=K)
    _, K = arrays(K)
    verified = split_pass_time(B, K + 1.0, ctx, *target, hw, num_devices, link)
    if draft is None:
        return verified
    return verified + K * split_pass_time(B, 1, ctx, *draft, hw, draft_devices, link)


class Loading(NamedTuple):
    """The bytes of a checkpoint that each host keeps and reads."""

    held: Value
    read: Value


def split_loading(
    row_bytes: Real, column_bytes: Real, copied_bytes: Real, num_hosts: int
) -> Loading:
    """Return the bytes that each of several hosts keeps and reads of a checkpoint.

    A file holds matrices row after row (Shoeybi et al. 2019, arXiv 1909.08053, split them). Those
    split by rows (``row_bytes``: queries, keys, values, gate, up, vocabulary tables; stacks of
    experts that are dealt out) are read in part. Those split by columns (``column_bytes``: outputs
    of attention and MLP) are kept in part and read whole, as are those that all keep.

    >>> loading = split_loading(40e9, 20e9, 0, num_hosts=4)
    >>> print(f"keeps {float(loading.held) / 1e9:.0f} GB, reads {float(loading.read) / 1e9:.0f} GB")
    keeps 15 GB, reads 30 GB
    """
    require("num_hosts", num_hosts, 1)
    require_costs(row_bytes=row_bytes, column_bytes=column_bytes, copied_bytes=copied_bytes)
    _, rows, columns, copied = arrays(row_bytes, column_bytes, copied_bytes)
    held = (rows + columns) / num_hosts + copied
    return Loading(held[()], (rows / num_hosts + columns + copied)[()])


def check_heads(shape: Shape, num_devices: int) -> None:
    """Raise ValueError unless each device has as many query heads as the others."""
    require("num_devices", num_devices, 1)
    if shape.num_heads % num_devices:
        raise ValueError(
            f"{num_devices} devices do not divide {shape.num_heads} query heads: share the model "
            f"among at most {shape.num_heads}, and make replicas of that."
        )

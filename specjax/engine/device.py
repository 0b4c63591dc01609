"""Choose where the weights are: on one device, on several that share them, or a torch device.

The only module of the engine that imports npu_bridge, and only when it is needed.
"""

import dataclasses
import math
from types import ModuleType

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from specjax.core.types import Params
from specjax.engine.driver import XLA, Driver, split_driver
from specjax.models.config import ModelConfig

TORCH_DEVICES = ("npu", "torch-cpu")
SPLIT_OUTPUTS = (  # column parallel
    *("q_proj", "k_proj", "v_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj"),
)
VOCABULARY = ("embed_tokens", "lm_head")  # a row or an output per token
SPLIT_INPUTS = ("o_proj", "down_proj")  # row parallel: XLA adds the all-reduce


def choose_devices(device: str, tensor_parallel_size: int) -> Mesh:
    """Return a mesh of ``tensor_parallel_size`` devices of a jax platform.

    For a torch device it is the host's CPU, where weights are read. Of several processes
    (``jax.distributed``) all devices count.

    Raises ValueError naming the remedy for a platform or a number that is not there.
    """
    if device in TORCH_DEVICES:
        bridge().open_device(device)
        if tensor_parallel_size != 1:
            raise ValueError(
                f"tensor_parallel_size={tensor_parallel_size} needs a jax platform: with device="
                f"{device!r} use tensor_parallel_size=1."
            )
    platform = "cpu" if device in TORCH_DEVICES else device
    try:
        found = jax.devices(None if platform == "auto" else platform)
    except RuntimeError:
        raise ValueError(
            f"device {device!r} is not available: jax sees "
            f"{sorted({d.platform for d in jax.devices()})}. Install the jax build for it, or "
            "use device='auto'."
        ) from None
    whole = isinstance(tensor_parallel_size, int)
    if not whole or not 1 <= tensor_parallel_size <= len(found):
        raise ValueError(
            f"tensor_parallel_size={tensor_parallel_size} needs as many devices, and jax sees "
            f"{len(found)}: use tensor_parallel_size between 1 and {len(found)}."
        )
    count = jax.process_count()
    if count > 1 and tensor_parallel_size != len(found):
        raise ValueError(
            f"tensor_parallel_size={tensor_parallel_size}, and {count} processes have "
            f"{len(found)} devices in all: use tensor_parallel_size={len(found)}, so that each has "
            "its part."
        )
    sizes = prime_factors(tensor_parallel_size)
    names = ("tensor", *(f"tensor{i}" for i in range(2, len(sizes) + 1)))
    return Mesh(np.array(found[:tensor_parallel_size]).reshape(sizes), names)


def prime_factors(size: int) -> tuple[int, ...]:
    """Return the axes of a mesh, so that arrays can also be split in fewer parts than devices.

    >>> prime_factors(8), prime_factors(1)
    ((2, 2, 2), (1,))
    """
    for factor in range(2, size):
        if size % factor == 0:
            return factor, *prime_factors(size // factor)
    return (size,)


def bridge() -> ModuleType:
    """Return the module npu_bridge. Raises ValueError where torch is not installed."""
    try:
        import npu_bridge
    except ModuleNotFoundError as missing:
        raise ValueError(
            f"npu_bridge ({', '.join(map(repr, TORCH_DEVICES))}) needs {missing.name}: "
            "pip install 'specjax[bridge]'."
        ) from None
    return npu_bridge


def choose_driver(
    device: str, mesh: Mesh, params: Params, *, host_drafter: bool
) -> tuple[Driver, Params]:
    """Return the driver for a device, and the weights on that device."""
    if device not in TORCH_DEVICES:
        return (XLA if mesh.size == 1 else split_driver(mesh)), params
    executor = bridge().Executor(device, host_drafter)
    driver = Driver(
        executor.init_state, executor.fit, executor.place, executor.prefill, executor.generate,
        executor.insert_row, executor.release_slot, executor.select,
    )  # fmt: skip
    return driver, executor.place_params(params)


def choose_dtype(dtype: str, mesh: Mesh, device: str = "auto") -> str:
    """Return the dtype to compute in: "auto" is float32 on CPUs, elsewhere the checkpoint's."""
    on_cpu = mesh.devices.flat[0].platform == "cpu" and device != "npu"
    return "float32" if dtype == "auto" and on_cpu else dtype


def name_platform(device: str, mesh: Mesh) -> str:
    """Return jax's name of the platform that computes, or npu_bridge's of its device."""
    return device if device in TORCH_DEVICES else mesh.devices.flat[0].platform


def has_inference_layout(mesh: Mesh, device: str) -> bool:
    """Return whether weights are laid out for inference: joined, and in the file's dtype on a CPU.

    Not where several devices share them, and not for npu_bridge, which has layouts of its own.
    """
    return mesh.size == 1 and device not in TORCH_DEVICES


def inference_layout(
    config: ModelConfig, mesh: Mesh, device: str, *, expert_parallel: bool = False
) -> ModelConfig:
    """Return the config of the weights' layout for inference, if ``has_inference_layout``.

    Of several devices each has some of the experts if ``expert_parallel``.
    """
    if expert_parallel and config.experts is not None and mesh.size > 1:
        axes = zip(mesh.axis_names, mesh.devices.shape, strict=True)
        return dataclasses.replace(config, expert_axes=tuple(axes))
    if not has_inference_layout(mesh, device):
        return config
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    bits = "uint16" if on_cpu and config.dtype == "bfloat16" else None
    return dataclasses.replace(config, joined=True, cache_dtype=bits)


def check_implemented(config: ModelConfig, device: str) -> None:
    """Raise ValueError if npu_bridge is to run layers that it cannot lower."""
    if device in TORCH_DEVICES and config.recurrent:
        raise ValueError(
            f"device={device!r} does not run layers with a recurrent state (gated delta nets): "
            "npu_bridge has no loop over tokens. Use device='auto'."
        )


def check_divisible(config: ModelConfig, mesh: Mesh) -> None:
    """Raise ValueError, naming the sizes that work, unless every split comes out even."""
    latent, columns = config.latent, mlp_columns(config)
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    if latent is not None:
        query = config.num_heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim)
        key = config.num_heads * math.gcd(latent.qk_nope_head_dim, latent.v_head_dim)
    if key_head_axes(config, mesh) != mesh.axis_names:
        key = mesh.size * config.head_dim  # the copies count
    sizes = (query, key, columns)
    if any(size % mesh.size for size in sizes):
        works = [n for n in range(1, mesh.size) if not any(size % n for size in sizes)]
        raise ValueError(
            f"tensor_parallel_size={mesh.size} does not divide the model's {sizes[0]} query, "
            f"{sizes[1]} key and {sizes[2]} MLP columns: use one of {works}."
        )
    if config.expert_axes and config.experts is not None:
        number = config.experts.n_routed_experts
        works = [n for n in range(1, mesh.size) if not any(x % n for x in (*sizes, number))]
        if number % mesh.size:
            raise ValueError(
                f"enable_expert_parallel: tensor_parallel_size={mesh.size} does not divide the "
                f"model's {number} experts: use one of {works}, or leave the option out."
            )


def mlp_columns(config: ModelConfig) -> int:
    """Return what divides the columns of all MLPs that are split: what divides it divides all."""
    facts = config.experts
    if facts is None:
        return config.intermediate_size
    own = 0 if config.expert_axes else facts.moe_intermediate_size
    shared = facts.shared_size or facts.n_shared_experts * facts.moe_intermediate_size
    mixtures = all(config.has_experts(layer) for layer in range(config.num_layers))
    dense = 0 if mixtures else config.intermediate_size
    return math.gcd(own, shared if facts.n_shared_experts else 0, dense)


def check_experts(config: ModelConfig, *, expert_parallel: bool) -> None:
    """Raise ValueError if experts are to be dealt out and there are none."""
    if expert_parallel and config.experts is None:
        raise ValueError("enable_expert_parallel: the model has no experts, leave the option out.")


def sharding(
    mesh: Mesh, config: ModelConfig, path: tuple[str | int, ...], shape: tuple[int, ...]
) -> NamedSharding:
    """Return where a weight goes: matrices and vocabulary tables are split, the rest is copied.

    Of a stack of experts each is split like an MLP, or each device has some of them whole
    (``expert_axes``). Fewer key heads than devices are copied: each
    device has the one that its query heads read. A vocabulary that does not divide is copied.
    """
    split: tuple = (None,) * len(shape)
    bias, few = path[-1] == "bias", {"k_proj", "v_proj"} & {*path}
    axes = key_head_axes(config, mesh) if few else mesh.axis_names
    if config.expert_axes and "experts" in path:
        split = (mesh.axis_names, *split[1:])
    elif any(name in SPLIT_OUTPUTS for name in path):
        split = (*split[1:], axes) if bias else (*split[2:], axes, None)
    elif any(name in SPLIT_INPUTS for name in path) and not bias:
        split = (*split[1:], axes)
    elif path[0] in VOCABULARY and shape[0] % mesh.size == 0:
        split = (axes, *split[1:])
    return NamedSharding(mesh, PartitionSpec(*split))


def head_sharding(
    mesh: Mesh, config: ModelConfig | None, path: tuple[str | int, ...], shape: tuple[int, ...]
) -> NamedSharding:
    """Return where a weight of a drafting head goes: it is copied, unless experts are dealt out.

    ``config`` is that of the head's layers, if it has any.
    """
    if config is not None and config.expert_axes and "experts" in path:
        return sharding(mesh, config, path, shape)
    return NamedSharding(mesh, PartitionSpec())


def key_head_axes(config: ModelConfig, mesh: Mesh) -> tuple[str, ...]:
    """Return the axes that split key heads: as many parts as heads, if these are the fewer."""
    for count in range(len(mesh.axis_names)):
        if config.latent is None and config.num_kv_heads == math.prod(mesh.devices.shape[:count]):
            return mesh.axis_names[:count]
    return mesh.axis_names

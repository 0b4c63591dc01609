"""Find out how a checkpoint is quantized, and read its tensors as the matrices they stand for.

A quantized matrix is stored as several tensors; ``Scheme.gather`` replaces them by one source with
the name that the matrix would have unquantized, from the headers alone. What is not known for sure
to be read right is refused, with the value and a remedy. Activations are not quantized here: a
quantized checkpoint is the same model as its dequantized twin.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specjax.host.files import read_json_object
from specjax.weights.packed import (
    AWQ_ORDER,
    Decode,
    Packed,
    StaticBias,
    e2m1,
    e4m3,
    integers,
    nibbles,
    nibbles_down,
)
from specjax.weights.safetensors_file import Entry, read_all

Source = Entry | Packed | StaticBias
DESCRIPTION = "quant_model_description.json"  # ModelSlim's
UNQUANTIZED = "use the unquantized checkpoint"
# Of activations and of the cache, which are not quantized here.
UNUSED = (
    *("input_scale", "input_zero_point", "input_global_scale", "output_scale", "weight_shape"),
    *("k_scale", "v_scale", "q_scale", "kv_scale", "input_offset", "quant_bias", "deq_scale"),
)
MODELSLIM = ("FLOAT", "W8A8", "W8A8_DYNAMIC", "W8A8_MIX", "W8A16")


class Scheme(NamedTuple):
    """How a checkpoint is quantized."""

    method: str  # by vLLM's name
    detail: str  # for people
    gather: Callable[[dict[str, Entry]], dict[str, Source]]  # by name, before any renaming
    dtype: str  # of the values: safetensors' name


def read_scheme(folder: Path) -> Scheme | None:
    """Return how the checkpoint in a folder is quantized; None if it is not.

    Raises:
        ValueError: its method, or a variant of it, is not implemented.
    """
    config = folder / "config.json"
    raw = read_json_object(config) if config.is_file() else {}
    if (folder / DESCRIPTION).is_file():
        return _modelslim(read_json_object(folder / DESCRIPTION), _value_dtype(raw))
    return parse_quantization(raw)


def parse_quantization(raw: Mapping[str, Any]) -> Scheme | None:
    """Return the scheme that a config.json declares; None if it declares none.

    Raises:
        ValueError: its method, or a variant of it, is not implemented.
    """
    inner = raw.get("text_config")
    outer = raw if not isinstance(inner, dict) else {**inner, **raw}
    facts = outer.get("quantization_config") or outer.get("compression_config")
    if not facts:
        return None
    if not isinstance(facts, dict):
        raise ValueError(f"config.json: quantization_config must be an object, got {facts!r}")
    method = facts.get("quant_method", facts.get("format") and "compressed-tensors")
    if method not in METHODS:
        _refuse("quant_method", method, f"known are {', '.join(METHODS)}")
    return METHODS[method](facts, _value_dtype(raw))


def _fp8(facts: Mapping[str, Any], dtype: str) -> Scheme:
    _only(facts, "fmt", (None, "e4m3", "float8_e4m3fn"))
    _only(facts, "scale_fmt", (None, "ue8m0", "float"))
    block = facts.get("weight_block_size")
    if block is not None and not (_are_sizes(block) and len(block) == 2):
        _refuse("weight_block_size", block, "two sizes are known")
    detail = f"FP8, {f'blocks of {block[0]} x {block[1]}' if block else 'a scale per tensor'}"
    return Scheme("fp8", detail, lambda entries: _scaled(entries, dtype, lambda _: block), dtype)


def _compressed(facts: Mapping[str, Any], dtype: str) -> Scheme:
    known = ("float-quantized", "int-quantized", "naive-quantized", "pack-quantized")
    groups = facts.get("config_groups") or {}
    _only(facts, "quantization_status", (None, "compressed", "frozen"))
    sparsity = facts.get("sparsity_config") or {}
    _only(sparsity, "format", (None, "dense"), "sparsity_config.")
    for transform in (facts.get("transform_config") or {}).get("config_groups") or {}:
        _refuse("transform_config", transform, "rotations of weights are not known")
    found = []
    for number, group in groups.items():
        if not isinstance(group, dict):
            _refuse(f"config_groups.{number}", group, "an object with its weights is known")
        form = group.get("format") or facts.get("format")
        weights = group.get("weights") or {}
        at = f"config_groups.{number}."
        _only({"format": form}, "format", known, at)
        _only(weights, "type", ("float",) if form == "float-quantized" else ("float", "int"), at)
        bits = (8,) if form != "pack-quantized" else (4, 8)
        _only(weights, "num_bits", bits, at)
        block = weights.get("block_structure")
        size = weights.get("group_size")
        block = block if block else [1, size] if size and size > 0 else None
        found.append((tuple(group.get("targets") or ()), weights["num_bits"], block, form))

    def group_of(name: str) -> tuple[tuple[str, ...], int, list[int] | None, str]:
        module = name.rpartition(".")[0]
        named = (g for g in found if any(_names(target, module) for target in g[0]))
        return next(named, next((g for g in found if "Linear" in g[0]), found[0]))

    def gather(entries: dict[str, Entry]) -> dict[str, Source]:
        sources = _scaled(entries, dtype, lambda name: group_of(name)[2])
        for name in [name for name in sources if name.endswith("_packed")]:
            base = name.removesuffix("_packed")
            _, bits, block, _ = group_of(base)
            sources[base] = _pack_quantized(entries, base, bits, block, dtype)
            for end in ("packed", "scale", "zero_point", "shape", "g_idx"):
                sources.pop(f"{base}_{end}", None)
        return sources

    if not found:
        _refuse("config_groups", groups, "at least one group is needed")
    kinds = {f"{form} {bits} bits" for _, bits, _, form in found}
    return Scheme("compressed-tensors", ", ".join(sorted(kinds)), gather, dtype)


def _pack_quantized(
    entries: dict[str, Entry], base: str, bits: int, block: list[int] | None, dtype: str
) -> Packed:
    payload, scales = entries[f"{base}_packed"], _companion(entries, base, f"{base}_scale")
    rows, columns = map(int, read_all(_companion(entries, base, f"{base}_shape")))
    groups, zeros = entries.get(f"{base}_g_idx"), entries.get(f"{base}_zero_point")
    half = 1 << (bits - 1)
    if payload.dtype != "I32" or payload.shape != (rows, -(-columns * bits // 32)):
        raise ValueError(f"{base}_packed is {payload.dtype} {list(payload.shape)}, not {bits} bits")
    block_of = _block(base, (rows, columns), scales, block)
    packed = zeros is not None and zeros.dtype == "I32"  # down the outputs; older ones are int8
    if zeros is not None:
        high = -(-scales.shape[0] * bits // 32) if packed else scales.shape[0]
        _fits(base, zeros, (high, *scales.shape[1:]))
    return Packed(
        (rows, columns), dtype, payload, nibbles(bits, half), scales, block_of, zeros,
        nibbles_down(bits, half) if packed else integers, group_of_column=groups,
    )  # fmt: skip


def _mxfp4(facts: Mapping[str, Any], dtype: str) -> Scheme:
    def gather(entries: dict[str, Entry]) -> dict[str, Source]:
        sources: dict[str, Source] = dict(entries)
        for name in [name for name in entries if name.endswith("_blocks")]:
            base = name.removesuffix("_blocks")
            scales, payload = _companion(entries, base, f"{base}_scales"), entries[name]
            *lead, rows, groups, half = payload.shape
            if payload.dtype != "U8" or half != 16 or scales.shape != (*lead, rows, groups):
                raise ValueError(f"{name} is {payload.dtype} {list(payload.shape)}, not MXFP4")
            lines = payload._replace(shape=(*lead, rows, groups * half))
            sources[base] = Packed(  # published input-first, and packed output-first
                (*lead, groups * 32, rows), dtype, lines, e2m1, scales, (1, 32), transposed=True
            )
            del sources[name], sources[f"{base}_scales"]
        return sources

    return Scheme("mxfp4", "MXFP4, groups of 32", gather, dtype)


def _awq(facts: Mapping[str, Any], dtype: str) -> Scheme:
    _only(facts, "version", (None, "gemm", "GEMM"))
    _only(facts, "bits", (4,))
    _only(facts, "zero_point", (None, True))
    decode = nibbles(4, 0, AWQ_ORDER)

    def matrix(entries: dict[str, Entry], module: str) -> Packed:
        payload = entries[f"{module}.qweight"]
        size_in, words = payload.shape
        shape = words * 8, size_in
        return _by_input(entries, module, shape, facts, dtype, decode, decode, 1, grouped=False)

    return _grouped("awq", facts, dtype, matrix)


def _gptq(facts: Mapping[str, Any], dtype: str) -> Scheme:
    _only(facts, "bits", (4, 8))
    _only(facts, "checkpoint_format", (None, "gptq", "gptq_v2"))
    bits, later = facts["bits"], facts.get("checkpoint_format") == "gptq_v2"
    each = 32 // bits

    def matrix(entries: dict[str, Entry], module: str) -> Packed:
        words, size_out = entries[f"{module}.qweight"].shape
        shape, zeros = (size_out, words * each), nibbles(bits, 0 if later else -1)
        decode = nibbles_down(bits)
        return _by_input(entries, module, shape, facts, dtype, decode, zeros, each, grouped=True)

    return _grouped("gptq", facts, dtype, matrix)


def _grouped(
    method: str, facts: Mapping[str, Any], dtype: str, matrix: Callable[..., Packed]
) -> Scheme:
    size = facts.get("group_size", facts.get("q_group_size"))
    if not isinstance(size, int) or size == 0:
        _refuse("group_size", size, "a size, or -1 for one group, is known")

    def gather(entries: dict[str, Entry]) -> dict[str, Source]:
        sources: dict[str, Source] = dict(entries)
        for name in [name for name in entries if name.endswith(".qweight")]:
            module = name.removesuffix(".qweight")
            sources[f"{module}.weight"] = matrix(entries, module)
            for end in ("qweight", "qzeros", "scales", "g_idx"):
                sources.pop(f"{module}.{end}", None)
        return sources

    span = f"groups of {size}" if size > 0 else "one group"
    return Scheme(method, f"{method.upper()} {facts['bits']} bits, {span}", gather, dtype)


def _by_input(
    entries: dict[str, Entry], module: str, shape: tuple[int, int], facts: Mapping[str, Any],
    dtype: str, decode: Decode, decode_zeros: Decode, per: int, *, grouped: bool,
) -> Packed:  # fmt: skip
    """Return a matrix that is stored transposed, with a scale per group of inputs and output."""
    payload = entries[f"{module}.qweight"]
    zeros, scales = (_companion(entries, module, f"{module}.{n}") for n in ("qzeros", "scales"))
    size_out, size_in = shape
    size = facts.get("group_size", facts.get("q_group_size"))
    tall = size if size > 0 else size_in
    per_word = 32 // facts["bits"]
    groups = -(-size_in // tall), size_out
    if (
        payload.dtype != "I32"
        or scales.shape != groups
        or zeros.shape != (groups[0], -(-size_out // per_word))
    ):
        found = f"{list(payload.shape)}, scales {list(scales.shape)}, qzeros {list(zeros.shape)}"
        raise ValueError(f"{module}: {found} are no {facts['bits']}-bit groups of {tall}")
    return Packed(
        shape, dtype, payload, decode, scales, (tall, 1), zeros, decode_zeros,
        group_of_row=entries.get(f"{module}.g_idx") if grouped else None,
        rows_per_row=per, transposed=True,
    )  # fmt: skip


def _modelslim(types: Mapping[str, Any], dtype: str) -> Scheme:
    """Return the scheme of msModelSlim's exports, which name a type per tensor."""
    for name, kind in types.items():
        if name.endswith((".weight", ".bias")) and kind not in MODELSLIM:
            known = f"known are {', '.join(MODELSLIM)}"
            raise ValueError(f"{DESCRIPTION}: {name} = {kind!r} is not implemented: {known}; "
                             f"{UNQUANTIZED}")  # fmt: skip
    kinds = sorted({kind for kind in types.values() if kind in MODELSLIM[1:]})
    size = types.get("group_size")
    block = [1, size] if isinstance(size, int) and size > 0 else None

    def gather(entries: dict[str, Entry]) -> dict[str, Source]:
        sources = _scaled(entries, dtype, lambda _: block)
        for name, entry in entries.items():
            if not name.endswith(".quant_bias"):
                continue
            module = name.removesuffix(".quant_bias")
            facts = [_companion(entries, module, f"{module}.{n}")
                     for n in ("weight", "deq_scale", "input_offset")]  # fmt: skip
            sources[f"{module}.bias"] = StaticBias(entry.shape, dtype, entry, *facts)
        return sources

    return Scheme("ascend", f"ModelSlim {', '.join(kinds)}", gather, dtype)


METHODS: dict[str, Callable[[Mapping[str, Any], str], Scheme]] = {
    "fp8": _fp8,
    "compressed-tensors": _compressed,
    "mxfp4": _mxfp4,
    "awq": _awq,
    "gptq": _gptq,
}


def _scaled(
    entries: dict[str, Entry], dtype: str, block_of: Callable[[str], list[int] | None]
) -> dict[str, Source]:
    """Return the tensors, those of 8 bits with their scales and zero points."""
    sources: dict[str, Source] = {
        name: entry for name, entry in entries.items() if not name.endswith(UNUSED)
    }
    for name, entry in entries.items():
        if entry.dtype not in ("F8_E4M3", "I8") or len(entry.shape) < 2:
            continue
        if name not in sources or name.endswith(("_zero_point", "_offset")):
            continue
        ends = [end for end in ("_scale_inv", "_scale") if name + end in entries]
        if not ends:
            raise ValueError(f"{name} is {entry.dtype} and has no {name}_scale: {UNQUANTIZED}")
        scales = entries[name + ends[0]]
        zeros = entries.get(f"{name}_zero_point", entries.get(f"{name}_offset"))
        if zeros is not None:
            _fits(name, zeros, scales.shape)
        sources[name] = Packed(
            entry.shape, dtype, entry, e4m3 if entry.dtype == "F8_E4M3" else integers, scales,
            _block(name, entry.shape, scales, block_of(name)), zeros,
        )  # fmt: skip
        for end in (ends[0], "_zero_point", "_offset"):
            sources.pop(name + end, None)
    return sources


def _block(
    name: str, shape: tuple[int, ...], scales: Entry, block: list[int] | None
) -> tuple[int, int]:
    """Return how many rows and columns share a scale, by the shape of the scales."""
    *lead, rows, columns = shape
    sizes = (rows, columns), (1, columns), tuple(block or (rows, columns))
    grids = [((*lead, -(-rows // tall), -(-columns // wide)), (tall, wide)) for tall, wide in sizes]
    known = {(): sizes[0], (1,): sizes[0], (rows,): sizes[1]} if not lead else {}
    known |= {grid: size for grid, size in grids if grid not in known}
    if scales.shape not in known:
        found = f"scales {list(scales.shape)}, blocks {block}"
        raise ValueError(f"{name} is {list(shape)} with {found}: they do not fit")
    return known[scales.shape]


def _fits(name: str, zeros: Entry, shape: tuple[int, ...]) -> None:
    if zeros.shape != shape:
        raise ValueError(f"{name}: zero points {list(zeros.shape)}, expected {list(shape)}")


def _companion(entries: dict[str, Entry], module: str, name: str) -> Entry:
    if name not in entries:
        raise ValueError(f"{module} is quantized and lacks {name}: fetch the checkpoint again")
    return entries[name]


def _names(target: str, module: str) -> bool:
    """Return whether a target of compressed-tensors names a module."""
    if target.startswith("re:"):
        return re.match(target.removeprefix("re:"), module) is not None
    return target == module


def _value_dtype(raw: Mapping[str, Any]) -> str:
    """Return the type of dequantized values: the checkpoint's own if it has 16 bits, or BF16."""
    inner = raw.get("text_config")
    outer = {**inner, **raw} if isinstance(inner, dict) else raw
    stored = str(outer.get("dtype") or outer.get("torch_dtype")).removeprefix("torch.")
    return "F16" if stored in ("float16", "half") else "BF16"


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value > 0 for value in values)


def _only(facts: Mapping[str, Any], key: str, known: tuple, at: str = "") -> None:
    if facts.get(key) not in known:
        some = ", ".join(repr(value) for value in known if value is not None)
        _refuse(at + key, facts.get(key), f"known: {some}")


def _refuse(key: str, value: Any, what: str) -> None:
    where = f"config.json: quantization_config.{key} = {value!r} is not implemented"
    raise ValueError(f"{where} ({what}); {UNQUANTIZED}")

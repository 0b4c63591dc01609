"""The table of quantized formats that are read, for people."""

from typing import NamedTuple


class Format(NamedTuple):
    """One format: where it is declared, what a matrix [O, I] is stored as, and its values."""

    method: str  # a key of ``quantization.METHODS``, or "ascend"
    name: str
    tensors: str
    value: str


FORMATS = (
    Format(
        "fp8",
        "FP8 by block (DeepSeek, Qwen)",
        "`weight` F8_E4M3, `weight_scale_inv` F32, F8_E8M0 or U8 [O/128, I/128], rounded up",
        "w * scale of its block",
    ),
    Format("fp8", "FP8 per tensor", "`weight` F8_E4M3, `weight_scale` [] or [1]", "w * scale"),
    Format(
        "compressed-tensors",
        "`float-quantized`",
        "`weight` F8_E4M3, `weight_scale` per tensor, row, group or block",
        "w * scale",
    ),
    Format(
        "compressed-tensors",
        "`int-quantized` (W8A8)",
        "`weight` I8, `weight_scale` and perhaps `weight_zero_point`",
        "(w - zero) * scale",
    ),
    Format(
        "compressed-tensors",
        "`pack-quantized` of 4 or 8 bits",
        "`weight_packed` I32, `weight_scale`, `weight_shape`, perhaps `weight_zero_point`, "
        "`weight_g_idx`",
        "(w - zero) * scale of its group",
    ),
    Format(
        "mxfp4",
        "MXFP4 (gpt-oss)",
        "`..._blocks` U8 [E, O, I/32, 16], `..._scales` U8 [E, O, I/32]",
        "FP4 * 2^(scale - 127)",
    ),
    Format(
        "awq",
        "AWQ of 4 bits, `gemm`",
        "`qweight` I32 [I, O/8], `qzeros` I32, `scales` F16 [I/g, O]",
        "(w - zero) * scale of its group",
    ),
    Format(
        "gptq",
        "GPTQ of 4 or 8 bits, also `gptq_v2`",
        "`qweight` I32 [I/8, O], `qzeros` I32, `scales` F16 [I/g, O], `g_idx`",
        "(w - zero - 1) * scale; without the 1 in `gptq_v2`",
    ),
    Format(
        "ascend",
        "ModelSlim (vllm-ascend): `W8A8`, `W8A8_DYNAMIC`, `W8A8_MIX`, `W8A16`",
        "`weight` I8, `weight_scale`, `weight_offset` [O, 1]",
        "(w - offset) * scale; a static bias is deq_scale * (quant_bias + input_offset * sum of w)",
    ),
)


def markdown() -> str:
    """Return the table of formats."""
    lines = [
        "| method | format | tensors of a matrix [O, I] | value |",
        "| --- | --- | --- | --- |",
    ]
    return "\n".join(
        [*lines, *(f"| `{f[0]}` | {f.name} | {f.tensors} | {f.value} |" for f in FORMATS)]
    )

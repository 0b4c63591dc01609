"""Packers of every quantized format, in torch, written from the published formats.

They share nothing with the reader. Each returns the tensors of one matrix by the end of their name,
and the values that they stand for.
"""

import torch

Tensors = dict[str, torch.Tensor]


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return a random matrix with rows of different sizes."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator)
    return values * torch.rand((*shape[:-1], 1), generator=generator).exp()


def blow_up(scales: torch.Tensor, shape: torch.Size, block: tuple[int, int]) -> torch.Tensor:
    """Return the scale of each value, of blocks that the border may cut."""
    wide = scales.float().repeat_interleave(block[0], -2).repeat_interleave(block[1], -1)
    return wide[..., : shape[-2], : shape[-1]]


def fp8_block(
    matrix: torch.Tensor, block=(128, 128), *, powers=False
) -> tuple[Tensors, torch.Tensor]:
    """FP8 with a scale per block, as DeepSeek and Qwen publish it; scales may be powers of two."""
    tall, wide = block
    grid = -(-matrix.shape[0] // tall), -(-matrix.shape[1] // wide)
    scales = torch.zeros(grid)
    for i in range(grid[0]):
        for j in range(grid[1]):
            part = matrix[i * tall : (i + 1) * tall, j * wide : (j + 1) * wide]
            scales[i, j] = part.abs().max() / 448
    stored = scales
    if powers:
        exponents = scales.log2().ceil()
        scales, stored = 2**exponents, (exponents + 127).to(torch.uint8)
    each = blow_up(scales, matrix.shape, block)
    numbers = (matrix / each).to(torch.float8_e4m3fn)
    return {"weight": numbers, "weight_scale_inv": stored}, numbers.float() * each


def fp8_tensor(matrix: torch.Tensor, shape=(), name="weight_scale") -> tuple[Tensors, torch.Tensor]:
    """FP8 with one scale, beside one of activations."""
    scale = (matrix.abs().max() / 448).reshape(shape)
    numbers = (matrix / scale.reshape(())).to(torch.float8_e4m3fn)
    tensors = {"weight": numbers, name: scale, "input_scale": torch.tensor(0.5)}
    return tensors, numbers.float() * scale.reshape(())


def fp8_channel(matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """FP8 with a bfloat16 scale per row, as compressed-tensors writes it."""
    scale = (matrix.abs().amax(1, keepdim=True) / 448).bfloat16()
    numbers = (matrix / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"weight": numbers, "weight_scale": scale}, numbers.float() * scale.float()


def int8(matrix: torch.Tensor, group: int | None = None, *, zero_point: str | None = None):
    """8-bit integers with a scale per row, or per row and group; perhaps with zero points."""
    size = group or matrix.shape[1]
    parts = matrix.split(size, dim=1)
    low = torch.stack([part.amin(1) for part in parts], 1)
    high = torch.stack([part.amax(1) for part in parts], 1)
    if zero_point is None:
        scale, zero = torch.maximum(-low, high) / 127, torch.zeros_like(low)
    else:
        scale = (high - low) / 255
        zero = (-128 - low / scale).round().clamp(-128, 127)
    block = (1, size)
    each, shift = blow_up(scale, matrix.shape, block), blow_up(zero, matrix.shape, block)
    numbers = (matrix / each + shift).round().clamp(-128, 127)
    tensors = {"weight": numbers.to(torch.int8), "weight_scale": scale}
    if zero_point is not None:
        tensors[zero_point] = zero.to(torch.int8) if "zero" in zero_point else zero
    return tensors, (numbers - shift) * each


def pack_words(numbers: torch.Tensor, bits: int, order=None) -> torch.Tensor:
    """Pack unsigned numbers along the last axis into int32, the first in the lowest bits."""
    each = 32 // bits
    order = order or list(range(each))
    short = -numbers.shape[-1] % each
    numbers = torch.nn.functional.pad(numbers.long(), (0, short))
    words = numbers.reshape(*numbers.shape[:-1], -1, each)
    packed = torch.zeros(words.shape[:-1], dtype=torch.int64)
    for place, source in enumerate(order):
        packed |= words[..., source] << (bits * place)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def quantize_groups(
    matrix: torch.Tensor, group: int, bits: int, groups: torch.Tensor | None = None
):
    """Return unsigned numbers [O, I], scales and zero points [O, G], and each column's group."""
    size_in = matrix.shape[1]
    groups = torch.arange(size_in) // group if groups is None else groups
    count, most = int(groups.max()) + 1, 2**bits - 1
    scales, zeros = torch.zeros(len(matrix), count), torch.zeros(len(matrix), count)
    for g in range(count):
        part = matrix[:, groups == g]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        scales[:, g] = ((high - low) / most).half().float()
        zeros[:, g] = (-low / scales[:, g]).round().clamp(1, most)
    numbers = (matrix / scales[:, groups] + zeros[:, groups]).round().clamp(0, most)
    return numbers, scales, zeros, groups


def pack_quantized(matrix: torch.Tensor, group=32, bits=4, *, groups=None, packed_zeros=True):
    """compressed-tensors' packed integers: along rows; zero points down the outputs, or int8."""
    numbers, scales, zeros, groups_of = quantize_groups(matrix, group, bits, groups)
    tensors = {
        "weight_packed": pack_words(numbers, bits),
        "weight_scale": scales,
        "weight_zero_point": pack_words(zeros.T, bits).T.contiguous()
        if packed_zeros
        else (zeros - 2 ** (bits - 1)).to(torch.int8),
        "weight_shape": torch.tensor(matrix.shape),
    }
    if groups is not None:
        tensors["weight_g_idx"] = groups.int()
    return tensors, (numbers - zeros[:, groups_of]) * scales[:, groups_of]


def awq(matrix: torch.Tensor, group=32):
    """AutoAWQ's GEMM layout: stored by input, outputs of a word in an order of their own."""
    numbers, scales, zeros, groups = quantize_groups(matrix, group, 4)
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # AutoAWQ's order_map: the output in each nibble
    tensors = {
        "qweight": pack_words(numbers.T, 4, order),
        "qzeros": pack_words(zeros.T, 4, order),
        "scales": scales.T.half().contiguous(),
    }
    return tensors, (numbers - zeros[:, groups]) * scales[:, groups]


def gptq(matrix: torch.Tensor, group=32, bits=4, *, later=False, shuffled=False):
    """AutoGPTQ's layout: inputs of a word below each other, zero points minus one, g_idx."""
    size_in = matrix.shape[1]
    groups = torch.arange(size_in) // group
    if shuffled:
        groups = groups[torch.randperm(size_in, generator=torch.Generator().manual_seed(1))]
    numbers, scales, zeros, groups = quantize_groups(matrix, group, bits, groups)
    tensors = {
        "qweight": pack_words(numbers, bits).T.contiguous(),
        "qzeros": pack_words(zeros.T - (0 if later else 1), bits),
        "scales": scales.T.half().contiguous(),
        "g_idx": groups.int(),
        "bias": torch.zeros(len(matrix)).half(),
    }
    return tensors, (numbers - zeros[:, groups]) * scales[:, groups]


def mxfp4(matrices: torch.Tensor):
    """gpt-oss' MXFP4 of matrices [E, O, I], which its bfloat16 twin stores as [E, I, O]."""
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    blocks = matrices.unflatten(-1, (-1, 32))
    exponents = (blocks.abs().amax(-1) / 6).log2().ceil()
    near = (blocks / 2 ** exponents[..., None])[..., None] - table
    codes = near.abs().argmin(-1)
    values = table[codes] * 2 ** exponents[..., None]
    packed = codes[..., 0::2] | (codes[..., 1::2] << 4)
    tensors = {"blocks": packed.to(torch.uint8), "scales": (exponents + 127).to(torch.uint8)}
    return tensors, values.flatten(-2).transpose(-1, -2)


def static_bias(numbers: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, *, as_bits=False):
    """msModelSlim's tensors of a layer whose activations have one scale and one offset."""
    input_scale, input_offset = torch.tensor([0.02]), torch.tensor([7.0])
    output_scale = input_scale * scale.reshape(-1)
    sums = numbers.long().sum(1)
    quant_bias = (bias / output_scale - input_offset * sums).round().to(torch.int32)
    stored = output_scale.view(torch.int32).long() if as_bits else output_scale
    return {
        "input_scale": input_scale,
        "input_offset": input_offset,
        "quant_bias": quant_bias,
        "deq_scale": stored,
    }, output_scale.double() * (quant_bias + input_offset.double() * sums)

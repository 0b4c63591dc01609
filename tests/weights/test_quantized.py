"""A quantized checkpoint is its dequantized twin: equal in every bit, and so is its text."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from specjax import LLM, SamplingParams
from specjax.core.types import Int8Matrix
from specjax.models.build import build_target
from specjax.train.loop import causal_logits
from specjax.weights import load
from specjax.weights.hf_config import read_config
from specjax.weights.quantization import DESCRIPTION, METHODS
from specjax.weights.reader import Part, read_tensor
from specjax.weights.save import save_as
from tests.weights import packers
from tests.weights.packers import draw

NAME = "model.layers.0.mlp.up_proj"
RAGGED = 300, 200  # in blocks of 128, and in groups of 32


def fp8(**more):
    return {"quant_method": "fp8", "activation_scheme": "dynamic", **more}


def compressed(form, **weights):
    group = {"weights": weights, "targets": ["Linear"], "input_activations": None}
    facts = {"format": form, "config_groups": {"group_0": group}, "ignore": ["lm_head"]}
    return {"quant_method": "compressed-tensors", "quantization_status": "compressed", **facts}


INT8 = {"num_bits": 8, "type": "int"}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
BLOCKS = {"weight_block_size": [128, 128]}
KV_A = 576, 256  # DeepSeek's kv_a_proj: 4.5 blocks of rows
CASES = {  # what config.json says, the tensors, and the values
    "fp8-block": (fp8(**BLOCKS), packers.fp8_block(draw(*KV_A))),
    "fp8-block-ragged": (fp8(**BLOCKS), packers.fp8_block(draw(*RAGGED))),
    "fp8-block-e8m0": (
        fp8(**BLOCKS, scale_fmt="ue8m0"),
        packers.fp8_block(draw(*KV_A), powers=True),
    ),
    "fp8-tensor": (fp8(), packers.fp8_tensor(draw(*RAGGED))),
    "fp8-tensor-1": (fp8(), packers.fp8_tensor(draw(*RAGGED), (1,))),
    "ct-fp8-tensor": (
        compressed("float-quantized", num_bits=8, type="float", strategy="tensor"),
        packers.fp8_tensor(draw(*RAGGED), (1,)),
    ),
    "ct-fp8-channel": (
        compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
        packers.fp8_channel(draw(*RAGGED)),
    ),
    "ct-int8-channel": (compressed("int-quantized", **INT8), packers.int8(draw(*RAGGED))),
    "ct-int8-asymmetric": (
        compressed("int-quantized", **INT8),
        packers.int8(draw(*RAGGED), zero_point="weight_zero_point"),
    ),
    "ct-int8-groups": (
        compressed("int-quantized", **INT8, group_size=64, strategy="group"),
        packers.int8(draw(*RAGGED), 64, zero_point="weight_zero_point"),
    ),
    "ct-packed": (compressed("pack-quantized", **INT4), packers.pack_quantized(draw(77, 100))),
    "ct-packed-int8-zeros": (
        compressed("pack-quantized", **INT4),
        packers.pack_quantized(draw(77, 100), packed_zeros=False),
    ),
    "ct-packed-order": (
        compressed("pack-quantized", **INT4, actorder="group"),
        packers.pack_quantized(draw(77, 96), groups=torch.arange(96).flip(0) // 32),
    ),
    "ct-packed-8": (
        compressed("pack-quantized", **INT4 | {"num_bits": 8}),
        packers.pack_quantized(draw(77, 102), bits=8),
    ),
    "awq": (AWQ, packers.awq(draw(88, 96))),
    "awq-one-group": (AWQ | {"group_size": -1}, packers.awq(draw(88, 96), 96)),
    "gptq": (GPTQ, packers.gptq(draw(88, 96))),
    "gptq-ordered": (GPTQ | {"desc_act": True}, packers.gptq(draw(88, 96), shuffled=True)),
    "gptq-v2": (GPTQ | {"checkpoint_format": "gptq_v2"}, packers.gptq(draw(88, 96), later=True)),
    "gptq-8": (GPTQ | {"bits": 8}, packers.gptq(draw(88, 96), bits=8)),
    "ascend": ("W8A8_DYNAMIC", packers.int8(draw(*RAGGED), zero_point="weight_offset")),
    "ascend-symmetric": ("W8A16", packers.int8(draw(*RAGGED))),
}


def write(folder, facts, tensors, dtype="bfloat16"):
    """Write tensors and a config.json that says how they are quantized."""
    config = {"torch_dtype": dtype}
    if isinstance(facts, str):
        types = dict.fromkeys(tensors, facts)
        (folder / DESCRIPTION).write_text(json.dumps(types | {"version": "1.0.0"}))
    else:
        config["quantization_config"] = facts
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: value.contiguous() for name, value in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def matrix_of(folder, dtype="float32", part=None, where=None, name=f"{NAME}.weight"):
    """Return a matrix of a folder as the reader gives it."""
    sources = load.find_tensors(folder, lambda name: name)
    part = part or Part(name)
    leaf = jax.ShapeDtypeStruct(part.shape(sources[name].shape), dtype)
    return np.asarray(read_tensor([(part, sources[name])], leaf, where))


def rounded(values, dtype=torch.bfloat16):
    return values.to(dtype).float().numpy()


@pytest.mark.parametrize("case", CASES)
def test_values_are_the_packers_in_every_bit(case, tmp_path, monkeypatch):
    monkeypatch.setattr("specjax.weights.reader.PIECE", 1500)  # some rows at a time
    facts, (tensors, values) = CASES[case]
    write(tmp_path, facts, {f"{NAME}.{end}": value for end, value in tensors.items()})
    np.testing.assert_array_equal(matrix_of(tmp_path), rounded(values))
    assert np.abs(rounded(values)).max() > 0.5  # they are not all zero


@pytest.mark.parametrize("rows", [1500, 1 << 20])
def test_experts_in_mxfp4_are_stored_by_output(rows, tmp_path, monkeypatch):
    monkeypatch.setattr("specjax.weights.reader.PIECE", rows)
    tensors, values = packers.mxfp4(draw(3, 52, 64))
    name = "model.layers.0.mlp.experts.gate_up_proj"
    write(tmp_path, {"quant_method": "mxfp4"}, {f"{name}_{e}": v for e, v in tensors.items()})
    np.testing.assert_array_equal(matrix_of(tmp_path, name=name), rounded(values))
    gate = Part(name, axis=2, step=2, transpose=True)  # the even columns, output-first
    found = matrix_of(tmp_path, part=gate, name=name)
    np.testing.assert_array_equal(found, rounded(values[:, :, ::2].transpose(1, 2)))


def test_stacked_experts_in_fp8_have_scales_of_their_own(tmp_path):
    each = [packers.fp8_block(draw(*RAGGED, seed=seed)) for seed in range(3)]
    name = f"{NAME}.weight"
    tensors = {
        name: torch.stack([tensors["weight"] for tensors, _ in each]),
        f"{name}_scale_inv": torch.stack([tensors["weight_scale_inv"] for tensors, _ in each]),
    }
    write(tmp_path, fp8(**BLOCKS), tensors)
    values = torch.stack([values for _, values in each])
    np.testing.assert_array_equal(matrix_of(tmp_path), rounded(values))


def test_values_have_the_checkpoints_own_half_precision(tmp_path):
    facts, (tensors, values) = CASES["awq"]
    named = {f"{NAME}.{end}": value for end, value in tensors.items()}
    write(tmp_path, facts, named, "float16")
    np.testing.assert_array_equal(matrix_of(tmp_path), rounded(values, torch.float16))


@pytest.mark.parametrize(("as_bits", "dtype"), [(False, "W8A8"), (True, "W8A8_MIX")])
def test_the_bias_of_static_activations_is_not_the_stored_one(as_bits, dtype, tmp_path):
    tensors, _ = packers.int8(draw(*RAGGED), zero_point="weight_offset")
    static, bias = packers.static_bias(
        tensors["weight"], tensors["weight_scale"], draw(RAGGED[0]), as_bits=as_bits
    )
    named = tensors | static | {"bias": torch.full(RAGGED[:1], 9.0)}
    write(tmp_path, dtype, {f"{NAME}.{end}": value for end, value in named.items()})
    found = matrix_of(tmp_path, name=f"{NAME}.bias")
    np.testing.assert_array_equal(found, rounded(bias, torch.float32))


# Whole checkpoints. The packers do not choose what a name means, so every second matrix is left as
# it is.
WHOLE = {
    "fp8-block": (fp8(weight_block_size=[16, 16]), lambda m: packers.fp8_block(m, (16, 16))),
    "ct-int8": (compressed("int-quantized", **INT8), packers.int8),
    "ct-packed": (compressed("pack-quantized", **INT4), packers.pack_quantized),
    "awq": (AWQ | {"group_size": 16}, lambda m: packers.awq(m, 16)),
    "gptq": (GPTQ | {"group_size": 16}, lambda m: packers.gptq(m, 16)),
    "ascend": ("W8A8_DYNAMIC", packers.int8),
}


def quantize(source, folder, case, *, more=lambda module, tensors: {}) -> Path:
    """Write a quantized copy of a checkpoint and its dequantized twin; return the copy's folder."""
    facts, pack = WHOLE[case]
    twin, ours = (Path(shutil.copytree(source, folder / name)) for name in ("twin", "quantized"))
    plain, packed, values = load_file(twin / "model.safetensors"), {}, {}
    for name, tensor in plain.items():
        if not name.endswith("proj.weight") or "k_proj" in name:
            packed[name] = values[name] = tensor
            continue
        module = name.removesuffix(".weight")
        tensors, value = pack(tensor.float())
        packed |= {f"{module}.{e}": v for e, v in (tensors | more(module, tensors)).items()}
        values[name] = value.bfloat16()
    save_file(values, twin / "model.safetensors")
    raw = json.loads((ours / "config.json").read_text())
    if isinstance(facts, str):
        types = {name: facts if v.dtype == torch.int8 else "FLOAT" for name, v in packed.items()}
        (ours / DESCRIPTION).write_text(json.dumps(types | {"model_quant_type": facts}))
        (ours / "model.safetensors").unlink()
        save_file(packed, ours / "quant_model_weight_w8a8_dynamic.safetensors")
    else:
        (ours / "config.json").write_text(json.dumps(raw | {"quantization_config": facts}))
        save_file(packed, ours / "model.safetensors")
    return ours


@pytest.mark.parametrize("keep_dtype", [False, True])
@pytest.mark.parametrize("case", WHOLE)
def test_a_quantized_checkpoint_is_its_twin(case, keep_dtype, pair, tmp_path, monkeypatch):
    monkeypatch.setattr("specjax.weights.int8.has_amx", lambda: True)  # nothing stays int8
    folder = quantize(pair.target, tmp_path, case)
    config, _ = read_config(folder)
    found = load.load_params(folder, config, keep_dtype=keep_dtype)
    twin = load.load_params(tmp_path / "twin", config, keep_dtype=keep_dtype)
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {
        jnp.dtype(jnp.bfloat16 if keep_dtype else jnp.float32)
    }
    jax.tree.map(np.testing.assert_array_equal, found, twin)


def matrices_of(params):
    """Return the weights by dotted path; an int8 matrix is one of them."""
    whole = jax.tree_util.tree_leaves_with_path(
        params, is_leaf=lambda leaf: isinstance(leaf, Int8Matrix)
    )
    return {".".join(str(key.key) for key in path): leaf for path, leaf in whole}


@pytest.mark.parametrize("case", ["ct-int8", "ascend"])
@pytest.mark.parametrize("joined", [False, True])
def test_int8_with_a_scale_per_output_stays_as_it_is(case, joined, pair, tmp_path, monkeypatch):
    monkeypatch.setattr("specjax.weights.int8.has_amx", lambda: False)
    folder = quantize(pair.target, tmp_path, case)
    config = dataclasses.replace(read_config(folder)[0], joined=joined)
    stored = load_file(next(folder.glob("*.safetensors")))
    found = matrices_of(load.load_params(folder, config, keep_dtype=True))
    kept = {name: leaf for name, leaf in found.items() if isinstance(leaf, Int8Matrix)}
    # k_proj is not quantized, so what q, k and v are joined to is not either
    names = {name.split(".")[-2] for name in kept}
    parts = {"gate_up_proj"} if joined else {"q_proj", "v_proj", "gate_proj", "up_proj"}
    assert names == {*parts, "o_proj", "down_proj"}
    for name, matrix in kept.items():
        module = f"model.{name.removesuffix('.weight')}"
        pieces = [module]
        if "gate_up" in name:
            pieces = [module.replace("gate_up", part) for part in ("gate", "up")]
        for leaf, end in ((matrix.numbers, "weight"), (matrix.scales[:, None], "weight_scale")):
            wanted = np.concatenate([stored[f"{one}.{end}"].float().numpy() for one in pieces])
            np.testing.assert_array_equal(np.asarray(leaf, np.float32), wanted)


def test_int8_computes_what_the_unrounded_twin_does(pair, tmp_path, monkeypatch):
    monkeypatch.setattr("specjax.weights.int8.has_amx", lambda: False)
    folder = quantize(pair.target, tmp_path, "ct-int8")
    config, _ = read_config(folder)
    kept = load.load_params(folder, config, keep_dtype=True)

    def widened(leaf):
        if isinstance(leaf, Int8Matrix):
            return leaf.numbers.astype(jnp.float32) * leaf.scales[:, None]
        return leaf

    twin = jax.tree.map(widened, kept, is_leaf=lambda leaf: isinstance(leaf, Int8Matrix))
    run = jax.jit(causal_logits, static_argnums=0)
    tokens = jnp.asarray([[3, 1, 4, 1, 5, 9, 2, 6]], jnp.int32)
    ours, theirs = (run(build_target(config), params, tokens) for params in (kept, twin))
    np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())
    mutated = jax.tree.map(lambda x: x * 1.01 if x.ndim == 1 else x, kept)
    assert np.abs(run(build_target(config), mutated, tokens) - theirs).max() > 1e-3


def test_offsets_that_are_not_zero_are_dequantized(pair, tmp_path, monkeypatch):
    monkeypatch.setattr("specjax.weights.int8.has_amx", lambda: False)

    def offset(module, tensors):
        zeros = torch.zeros_like(tensors["weight_scale"])
        return {"weight_offset": zeros + ("up_proj" in module)}

    folder = quantize(pair.target, tmp_path, "ascend", more=offset)
    config, _ = read_config(folder)
    found = matrices_of(load.load_params(folder, config, keep_dtype=True))
    kept = {name.split(".")[-2] for name, leaf in found.items() if isinstance(leaf, Int8Matrix)}
    assert kept == {"q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"}


@pytest.mark.parametrize(
    "spec",
    [
        {"method": "ngram", "num_speculative_tokens": 3},
        {"method": "draft_model", "num_speculative_tokens": 2},
    ],
)
def test_drafting_keeps_the_text_of_an_int8_target(spec, pair, tmp_path, monkeypatch):
    monkeypatch.setattr("specjax.weights.int8.has_amx", lambda: False)
    folder = quantize(pair.target, tmp_path, "ct-int8")
    if spec["method"] == "draft_model":
        spec = {**spec, "model": str(folder)}  # int8 too
    sampling = [SamplingParams(temperature=t, seed=7, max_tokens=12) for t in (0.0, 0.8)]
    prompts = ["def f(", "x = 1"]
    plain, drafted = (
        [[output.outputs[0].token_ids for output in llm.generate(prompts, one)] for one in sampling]
        for llm in (LLM(folder), LLM(folder, speculative_config=spec))
    )
    assert plain == drafted


def test_it_is_saved_as_its_twin(pair, tmp_path):
    folder, saved = quantize(pair.target, tmp_path, "awq"), tmp_path / "saved"
    config, _ = read_config(folder)
    save_as(saved, folder, config, load.load_params(folder, config))
    theirs, ours = (load_file(one / "model.safetensors") for one in (tmp_path / "twin", saved))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert "quantization_config" not in json.loads((saved / "config.json").read_text())


def test_the_text_of_a_quantized_checkpoint_is_its_twins(pair, tmp_path):
    folder = quantize(pair.target, tmp_path, "gptq")
    sampling = SamplingParams(temperature=0.8, seed=7, max_tokens=12)
    ids = [LLM(f).generate("def f(", sampling)[0].outputs[0].token_ids
           for f in (folder, tmp_path / "twin", pair.target)]  # fmt: skip
    assert ids[0] == ids[1] != ids[2]  # quantization changes this text


def test_biases_that_the_model_lacks_have_to_be_zero(pair, tmp_path):
    quantized = quantize(pair.target, tmp_path, "gptq") / "model.safetensors"
    tensors = load_file(quantized)
    name = next(name for name in tensors if name.endswith("down_proj.bias"))
    save_file(tensors | {name: tensors[name] + 1}, quantized)
    with pytest.raises(ValueError, match=rf"{name} is not zero, .* no such bias"):
        load.load_params(quantized.parent, read_config(quantized.parent)[0])


def test_a_static_bias_that_only_undoes_the_offset_is_none(pair, tmp_path):
    def static(module, tensors):
        none = torch.zeros(len(tensors["weight"]))
        return packers.static_bias(tensors["weight"], tensors["weight_scale"], none)[0]

    folder = quantize(pair.target, tmp_path, "ascend", more=static)
    config, _ = read_config(folder)
    jax.tree.map(
        np.testing.assert_array_equal,
        load.load_params(folder, config),
        load.load_params(tmp_path / "twin", config),
    )


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method = 'bitsandbytes' .*known are fp8, "),
        (fp8(fmt="e5m2"), "fmt = 'e5m2'"),
        (fp8(weight_block_size=[128]), r"weight_block_size = \[128\]"),
        (AWQ | {"version": "gemv"}, "version = 'gemv'"),
        (AWQ | {"bits": 3}, "bits = 3"),
        (AWQ | {"zero_point": False}, "zero_point = False"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format = 'marlin'"),
        (GPTQ | {"bits": 2}, "bits = 2"),
        (GPTQ | {"group_size": None}, "group_size = None"),
        (compressed("marlin-24", **INT4), "format = 'marlin-24'"),
        (compressed("nvfp4-pack-quantized", num_bits=4, type="float"), "nvfp4"),
        (compressed("float-quantized", num_bits=4, type="float"), "num_bits = 4"),
        (compressed("pack-quantized", **INT4) | {"config_groups": {}}, "config_groups = {}"),
        (
            compressed("int-quantized", **INT8)
            | {"sparsity_config": {"format": "sparse-24-bitmask"}},
            "sparsity_config.format",
        ),
        (
            compressed("int-quantized", **INT8)
            | {"transform_config": {"config_groups": {"R1": {}}}},
            "transform_config = 'R1'",
        ),
    ],
    ids=str,
)
def test_other_methods_and_variants_are_refused_in_one_sentence(facts, message, pair, tmp_path):
    folder = shutil.copytree(pair.target, tmp_path, dirs_exist_ok=True)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"quantization_config": facts}))
    with pytest.raises(ValueError, match=f"{message}.*use the unquantized checkpoint"):
        read_config(folder)


def test_other_types_of_modelslim_are_refused(tmp_path):
    write(tmp_path, "W4A8_DYNAMIC", {f"{NAME}.weight": torch.zeros(2, 2).to(torch.int8)})
    with pytest.raises(ValueError, match=f"{NAME}.weight = 'W4A8_DYNAMIC' is not implemented"):
        load.find_tensors(tmp_path, lambda name: name)


@pytest.mark.parametrize("case", sorted(CASES.keys() - {"awq-one-group", "ascend-symmetric"}))
def test_a_missing_or_misshapen_companion_is_an_error(case, tmp_path):
    facts, (tensors, _) = CASES[case]
    named = {f"{NAME}.{end}": value for end, value in tensors.items()}
    scales = next(name for name in named if "scale" in name and "input" not in name)
    write(tmp_path, facts, {name: value for name, value in named.items() if name != scales})
    with pytest.raises(ValueError, match=rf"{NAME}.* (has no|lacks) {NAME}\.\w*scale"):
        load.find_tensors(tmp_path, lambda name: name)
    wrong = torch.ones(7, 5, dtype=named[scales].dtype)
    write(tmp_path, facts, named | {scales: wrong})
    with pytest.raises(ValueError, match=rf"{NAME}.*\[7, 5\]"):
        load.find_tensors(tmp_path, lambda name: name)


@pytest.mark.parametrize("case", ["ct-int8-asymmetric", "ct-packed", "awq", "gptq", "ascend"])
def test_misshapen_zero_points_are_an_error(case, tmp_path):
    facts, (tensors, _) = CASES[case]
    named = {f"{NAME}.{end}": value for end, value in tensors.items()}
    zeros = next(name for name in named if "zero" in name or "offset" in name)
    write(tmp_path, facts, named | {zeros: torch.ones(7, 5, dtype=named[zeros].dtype)})
    with pytest.raises(ValueError, match=rf"{NAME}.*\[7, 5\]"):
        load.find_tensors(tmp_path, lambda name: name)


@pytest.mark.parametrize("byte", [0x7F, 0xFF])
def test_a_value_that_is_no_number_is_an_error(byte, tmp_path):
    tensors, _ = packers.fp8_tensor(draw(8, 8))
    tensors["weight"].view(torch.uint8)[3, 3] = byte
    write(tmp_path, fp8(), {f"{NAME}.{end}": value for end, value in tensors.items()})
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        matrix_of(tmp_path)


def test_every_method_has_a_case():
    tried = {facts["quant_method"] for facts, _ in CASES.values() if isinstance(facts, dict)}
    assert tried | {"mxfp4"} == set(METHODS)

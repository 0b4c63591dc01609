"""Hugging Face's tensor names and our parameter paths, as one table per architecture.

A path is a tuple of keys into the nested dict of weights, e.g.
``("layers", 0, "self_attn", "q_proj", "weight")``; ``weight`` and ``bias`` are appended to
the modules below, and ``{}`` is the layer. Matrices are [out, in] on both sides, so a
tensor travels either way unchanged.
"""

import re
from collections.abc import Container
from typing import NamedTuple

from specjax.models.config import ModelConfig
from specjax.weights.reader import Part

Route = tuple[str | int, ...]
Table = dict[str, str]  # our module -> Hugging Face's module

LLAMA: Table = {  # and its descendants, which have some of these
    "embed_tokens": "model.embed_tokens",
    "layers.{}.input_layernorm": "model.layers.{}.input_layernorm",
    "layers.{}.self_attn": "model.layers.{}.self_attn",
    "layers.{}.self_attn.q_proj": "model.layers.{}.self_attn.q_proj",
    "layers.{}.self_attn.k_proj": "model.layers.{}.self_attn.k_proj",
    "layers.{}.self_attn.v_proj": "model.layers.{}.self_attn.v_proj",
    "layers.{}.self_attn.o_proj": "model.layers.{}.self_attn.o_proj",
    "layers.{}.self_attn.q_norm": "model.layers.{}.self_attn.q_norm",
    "layers.{}.self_attn.k_norm": "model.layers.{}.self_attn.k_norm",
    "layers.{}.self_attn.q_a_proj": "model.layers.{}.self_attn.q_a_proj",
    "layers.{}.self_attn.q_a_layernorm": "model.layers.{}.self_attn.q_a_layernorm",
    "layers.{}.self_attn.q_b_proj": "model.layers.{}.self_attn.q_b_proj",
    "layers.{}.self_attn.kv_a_proj_with_mqa": "model.layers.{}.self_attn.kv_a_proj_with_mqa",
    "layers.{}.self_attn.kv_a_layernorm": "model.layers.{}.self_attn.kv_a_layernorm",
    "layers.{}.self_attn.kv_b_proj": "model.layers.{}.self_attn.kv_b_proj",
    **{
        f"layers.{{}}.self_attn.indexer.{part}": f"model.layers.{{}}.self_attn.indexer.{part}"
        for part in ("wq_b", "wk", "k_norm", "weights_proj")
    },
    "layers.{}.post_attention_layernorm": "model.layers.{}.post_attention_layernorm",
    "layers.{}.mlp.gate_proj": "model.layers.{}.mlp.gate_proj",
    "layers.{}.mlp.up_proj": "model.layers.{}.mlp.up_proj",
    "layers.{}.mlp.down_proj": "model.layers.{}.mlp.down_proj",
    "layers.{}.mlp.gate": "model.layers.{}.mlp.gate",
    "layers.{}.mlp.experts.{}.gate_proj": "model.layers.{}.mlp.experts.{}.gate_proj",
    "layers.{}.mlp.experts.{}.up_proj": "model.layers.{}.mlp.experts.{}.up_proj",
    "layers.{}.mlp.experts.{}.down_proj": "model.layers.{}.mlp.experts.{}.down_proj",
    "layers.{}.mlp.shared_experts.gate_proj": "model.layers.{}.mlp.shared_experts.gate_proj",
    "layers.{}.mlp.shared_experts.up_proj": "model.layers.{}.mlp.shared_experts.up_proj",
    "layers.{}.mlp.shared_experts.down_proj": "model.layers.{}.mlp.shared_experts.down_proj",
    "norm": "model.norm",
    "lm_head": "lm_head",
}

OPT: Table = {
    "embed_tokens": "model.decoder.embed_tokens",
    "embed_positions": "model.decoder.embed_positions",
    "layers.{}.input_layernorm": "model.decoder.layers.{}.self_attn_layer_norm",
    "layers.{}.self_attn.q_proj": "model.decoder.layers.{}.self_attn.q_proj",
    "layers.{}.self_attn.k_proj": "model.decoder.layers.{}.self_attn.k_proj",
    "layers.{}.self_attn.v_proj": "model.decoder.layers.{}.self_attn.v_proj",
    "layers.{}.self_attn.o_proj": "model.decoder.layers.{}.self_attn.out_proj",
    "layers.{}.post_attention_layernorm": "model.decoder.layers.{}.final_layer_norm",
    "layers.{}.mlp.up_proj": "model.decoder.layers.{}.fc1",
    "layers.{}.mlp.down_proj": "model.decoder.layers.{}.fc2",
    "norm": "model.decoder.final_layer_norm",
    "lm_head": "lm_head",
}

MIXTRAL: Table = LLAMA | {
    "layers.{}.mlp.gate": "model.layers.{}.block_sparse_moe.gate",
    "layers.{}.mlp.experts.{}.gate_proj": "model.layers.{}.block_sparse_moe.experts.{}.w1",
    "layers.{}.mlp.experts.{}.up_proj": "model.layers.{}.block_sparse_moe.experts.{}.w3",
    "layers.{}.mlp.experts.{}.down_proj": "model.layers.{}.block_sparse_moe.experts.{}.w2",
}
GPT_OSS: Table = LLAMA | {"layers.{}.mlp.gate": "model.layers.{}.mlp.router"}
GLM4: Table = LLAMA | {
    "layers.{}.attention_norm": "model.layers.{}.post_self_attn_layernorm",
    "layers.{}.mlp_norm": "model.layers.{}.post_mlp_layernorm",
}
GEMMA3: Table = LLAMA | {  # here the name of Llama's norm before the MLP is that after attention
    "layers.{}.attention_norm": "model.layers.{}.post_attention_layernorm",
    "layers.{}.post_attention_layernorm": "model.layers.{}.pre_feedforward_layernorm",
    "layers.{}.mlp_norm": "model.layers.{}.post_feedforward_layernorm",
}
LLAMA4: Table = {
    ours: theirs.replace(".mlp.", ".feed_forward.").replace("shared_experts", "shared_expert")
    for ours, theirs in LLAMA.items()
} | {"layers.{}.mlp.gate": "model.layers.{}.feed_forward.router"}
HUNYUAN: Table = LLAMA | {
    "layers.{}.self_attn.q_norm": "model.layers.{}.self_attn.query_layernorm",
    "layers.{}.self_attn.k_norm": "model.layers.{}.self_attn.key_layernorm",
}
QWEN3_NEXT: Table = LLAMA | {
    **{
        f"layers.{{}}.linear_attn{part}": f"model.layers.{{}}.linear_attn{part}"
        for part in (
            *("", ".in_proj_qkvz", ".in_proj_ba", ".conv1d", ".norm", ".out_proj"),
            *(".in_proj_qkv", ".in_proj_z", ".in_proj_b", ".in_proj_a"),
        )
    },
    **{
        f"layers.{{}}.mlp.shared_experts.{part}": f"model.layers.{{}}.mlp.shared_expert.{part}"
        for part in ("gate_proj", "up_proj", "down_proj")
    },
    "layers.{}.mlp.shared_expert_gate": "model.layers.{}.mlp.shared_expert_gate",
}
TABLES = {  # ``ModelConfig.names``
    "llama": LLAMA,
    "opt": OPT,
    "mixtral": MIXTRAL,
    "gpt_oss": GPT_OSS,
    "glm4": GLM4,
    "gemma3": GEMMA3,
    "llama4": LLAMA4,
    "hunyuan": HUNYUAN,
    "qwen3_next": QWEN3_NEXT,
}


class Fused(NamedTuple):
    """A tensor that holds several of our matrices, or a stack of them; it has no ``.weight``."""

    name: str  # within its layer
    pieces: tuple[str, ...]  # our modules, in order
    interleaved: bool = False  # their outputs take turns; otherwise one is behind the other
    input_first: bool = False  # matrices [in, out]


QKV = ("q_proj", "k_proj", "v_proj")
GATE_UP, DOWN = ("gate_proj", "up_proj"), ("down_proj",)
# A file has these tensors, or one for each matrix: its header decides.
PROJECTIONS = (  # Phi-3, GLM-4
    Fused("self_attn.qkv_proj.weight", QKV),
    Fused("mlp.gate_up_proj.weight", GATE_UP),
)
STACKS = (Fused("mlp.experts.gate_up_proj", GATE_UP), Fused("mlp.experts.down_proj", DOWN))
FUSED: dict[str, tuple[Fused, ...]] = {  # by table
    "llama": PROJECTIONS + STACKS,
    "glm4": PROJECTIONS,
    "qwen3_next": STACKS,
    "llama4": (
        Fused("feed_forward.experts.gate_up_proj", GATE_UP, input_first=True),
        Fused("feed_forward.experts.down_proj", DOWN, input_first=True),
    ),
    "gpt_oss": (
        Fused("mlp.experts.gate_up_proj", GATE_UP, interleaved=True, input_first=True),
        Fused("mlp.experts.gate_up_proj_bias", GATE_UP, interleaved=True),
        Fused("mlp.experts.down_proj", DOWN, input_first=True),
        Fused("mlp.experts.down_proj_bias", DOWN),
    ),
}

# Buffers that old exporters wrote beside the weights (they follow from the config), and MTP
# layers, which ``weights.heads`` loads.
IGNORED = (
    re.compile(r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq"),
    re.compile(r"(model\.)?rotary_emb\.inv_freq"),
    re.compile(r"model\.mtp_layers\.\d+\..*"),
    re.compile(r"(model\.)?mtp\..*"),
)

TOWERS = (
    *("model.vision_tower.", "vision_tower.", "model.visual.", "visual.", "vision_model."),
    *("model.multi_modal_projector.", "multi_modal_projector."),
)
WRAPPED = re.compile(r"^(?:model\.)?language_model\.")
LAYER = re.compile(r"(?:model\.)?layers\.(\d+)\.")
HEAD = "lm_head.weight"  # with tied embeddings a checkpoint may hold it, as an equal copy
BARE = "model."  # a prefix that is missing in checkpoints saved without the LM head


def table(config: ModelConfig) -> Table:
    """Return the table of a model's architecture."""
    return TABLES[config.names]


def tensor_name(path: Route, names: Table) -> str:
    """Return Hugging Face's name of a parameter.

    Raises:
        KeyError: the architecture has no such module.
    """
    module = ".".join("{}" if isinstance(key, int) else key for key in path[:-1])
    layer = [key for key in path if isinstance(key, int)]
    return names[module].format(*layer) + f".{path[-1]}"


JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def members(
    path: Route, shape: tuple[int, ...], config: ModelConfig | None
) -> list[tuple[Route, tuple[int, ...]]]:
    """Return the tensors (path, shape) that a parameter is stored as, along its first axis.

    Those are the experts' matrices of a stack, the matrices that ``config.joined`` merges, or the
    parameter itself.
    """
    if "experts" in path:
        at = path.index("experts") + 1
        return [((*path[:at], expert, *path[at:]), shape[1:]) for expert in range(shape[0])]
    parts = JOINED.get(str(path[-2:][0]))
    if parts is None or config is None:
        return [(path, shape)]
    narrow = config.num_kv_heads * config.head_dim
    rows = (shape[0] - 2 * narrow, narrow, narrow) if len(parts) == 3 else (shape[0] // 2,) * 2
    return [
        ((*path[:-2], part, path[-1]), (size, *shape[1:]))
        for part, size in zip(parts, rows, strict=True)
    ]


def stored_as(
    path: Route, shape: tuple[int, ...], config: ModelConfig, found: Container[str]
) -> list[tuple[Part, tuple[int, ...]]]:
    """Return the parts that a parameter is read from, and the shapes of their whole tensors.

    Args:
        path: of the parameter.
        shape: of the parameter.
        config: of the decoder.
        found: the names of a checkpoint's tensors.
    """
    layer = f"model.layers.{path[1]}."
    whole = fused_part(layer, path[2:], shape, config, found) if "experts" in path else None
    if whole is not None:
        return [whole]
    parts = []
    for one, size in members(path, shape, config):
        plain = Part(tensor_name(one, table(config)))
        parts.append(fused_part(layer, one[2:], size, config, found) or (plain, size))
    return parts


def fused_part(
    layer: str, path: Route, shape: tuple[int, ...], config: ModelConfig, found: Container[str]
) -> tuple[Part, tuple[int, ...]] | None:
    """Return where a parameter lies in a tensor with others, and that tensor's shape, or None.

    ``layer`` begins the names of a layer's tensors, and ``path`` is the parameter's within it.
    """
    if len(path) < 2:
        return None
    parent, module, bias = path[-3:-2], str(path[-2]), path[-1] == "bias"
    for fused in FUSED.get(config.names, ()):
        name = layer + fused.name
        stem = name.removesuffix(".weight").removesuffix("_bias").rpartition(".")[0]
        if module not in fused.pieces or name not in found or parent != (stem.split(".")[-1],):
            continue
        if bias != fused.name.endswith("_bias"):
            continue
        axis = len(shape) - (1 if bias else 2)  # of the outputs
        narrow = config.num_kv_heads * config.head_dim
        wide = config.num_heads * config.head_dim
        sizes = (
            (wide, narrow, narrow) if fused.pieces == QKV else (shape[axis],) * len(fused.pieces)
        )
        number, total = fused.pieces.index(module), sum(sizes)
        start, stop, step = sum(sizes[:number]), sum(sizes[: number + 1]), 1
        if fused.interleaved:
            start, stop, step = number, total, len(fused.pieces)
        stored = [*shape[:axis], total, *shape[axis + 1 :]]
        if fused.input_first:
            axis, stored[-2:] = len(shape) - 1, stored[:-3:-1]
        return Part(name, axis, start, stop, step, fused.input_first), tuple(stored)
    return None


def full_name(name: str) -> str:
    """Return a tensor's name with ``model.``, which checkpoints without the LM head leave out."""
    return name if name.startswith((BARE, "lm_head.")) else BARE + name


def decoder_name(name: str, config: ModelConfig) -> str | None:
    """Return a decoder tensor's full name; None for a known buffer and for MTP layers.

    DeepSeek's MTP layers are numbered after the decoder's. Of a multimodal model the language
    model's name is that of a text-only one; the towers are left out.
    """
    if name.startswith(TOWERS):
        return None
    name = WRAPPED.sub("", name)
    if any(pattern.fullmatch(name) for pattern in IGNORED):
        return None
    layer = LAYER.match(name)
    if config.experts is not None and layer and int(layer[1]) >= config.num_layers:
        return None
    return full_name(name)


MEDUSA = re.compile(r"(?:medusa_heads\.)?\d+\.\d+\.(?:linear\.)?(?:weight|bias)")  # its authors'
HEAD_NAMES = {  # per kind of head: (a checkpoint's prefix, our path); the first match is used
    "eagle": ((r"", ""),),
    "eagle3": ((r"layers\.0\.", "midlayer."), (r"", "")),
    "peagle": ((r"layers\.0\.", "midlayer."), (r"", "")),
    "mtp": (
        (r"model\.mtp_layers\.0\.token_layernorm\.", "enorm."),
        (r"model\.mtp_layers\.0\.hidden_layernorm\.", "hnorm."),
        (r"model\.mtp_layers\.0\.input_proj\.", "eh_proj."),
        (r"model\.mtp_layers\.0\.final_layernorm\.", "norm."),
        (r"model\.mtp_layers\.0\.shared_head\.norm\.", "norm."),
        (r"model\.mtp_layers\.0\.shared_head\.head\.", "lm_head."),
        (r"model\.mtp_layers\.0\.(enorm|hnorm|eh_proj|embed_tokens)\.", r"\1."),
        (r"model\.mtp_layers\.0\.", "block."),
        (r"(?:model\.)?mtp\.pre_fc_norm_embedding\.", "enorm."),  # Qwen3-Next
        (r"(?:model\.)?mtp\.pre_fc_norm_hidden\.", "hnorm."),
        (r"(?:model\.)?mtp\.fc\.", "eh_proj."),
        (r"(?:model\.)?mtp\.norm\.", "norm."),
        (r"(?:model\.)?mtp\.layers\.0\.mlp\.shared_expert\.", "block.mlp.shared_experts."),
        (r"(?:model\.)?mtp\.layers\.0\.", "block."),
    ),
    "medusa": (
        (r"(?:medusa_heads\.)?(\d+)\.(\d+)\.linear\.", r"blocks.\1.layers.\2."),
        (r"(?:medusa_heads\.)?(\d+)\.\d+\.", r"lm_heads.\1."),
        (r"lm_head\.", "lm_heads.0."),
        (r"(?:medusa_heads\.)?", ""),
    ),
    "dflash": ((r"(?:model\.)?midlayer\.", "layers.0."), (r"(?:model\.)?", "")),
    "dspark": ((r"(?:model\.)?", ""),),
    "mlp_speculator": ((r"(?:speculator\.)?(emb|proj|head|ln)\.(\d+)\.", r"stages.\2.\1."),),
    "lstm_speculator": (  # copies of what stages share are not read
        (r"(?:speculator\.)?(forget|input|output|cell)_proj\.([01])\.", r"proj.\1.\2."),
        (r"(?:speculator\.)?forget_emb\.0\.", "emb."),
        (r"(?:speculator\.)?(cell_ln|state_ln|head)\.0\.", r"\1."),
    ),
}


def head_name(kind: str, num_layers: int, name: str) -> str | None:
    """Return our path of a head's tensor, or None if such a head has no such tensor.

    DeepSeek's MTP layer is stored as layer ``num_layers`` of the target.
    """
    name = name.replace(f"model.layers.{num_layers}.", "model.mtp_layers.0.")
    for pattern, path in HEAD_NAMES[kind]:
        found = re.match(pattern, name)
        if found:
            return found.expand(path) + name[found.end() :]
    return None


WRITTEN = {  # the reverse of ``HEAD_NAMES``, where a checkpoint's names are not our paths
    "mtp": (
        (r"enorm\.", "model.mtp_layers.0.token_layernorm."),
        (r"hnorm\.", "model.mtp_layers.0.hidden_layernorm."),
        (r"eh_proj\.", "model.mtp_layers.0.input_proj."),
        (r"norm\.", "model.mtp_layers.0.final_layernorm."),
        (r"block\.", "model.mtp_layers.0."),
    ),
    "mlp_speculator": ((r"stages\.(\d+)\.(\w+)\.", r"speculator.\2.\1."),),
}


def stored_name(kind: str, path: str) -> str:
    """Return vLLM's name of a head's tensor."""
    for pattern, name in WRITTEN.get(kind, ()):
        found = re.match(pattern, path)
        if found:
            return found.expand(name) + path[found.end() :]
    return path

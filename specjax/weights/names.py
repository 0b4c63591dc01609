"""Hugging Face's tensor names and our parameter paths, as one table per architecture.

A path is a tuple of keys into the nested dict of weights, e.g.
``("layers", 0, "self_attn", "q_proj", "weight")``; ``weight`` and ``bias`` are appended to
the modules below, and ``{}`` is the layer. Matrices are [out, in] on both sides, so a
tensor travels either way unchanged.
"""

import re

from specjax.config import ModelConfig

Route = tuple[str | int, ...]
Table = dict[str, str]  # our module -> Hugging Face's module

LLAMA: Table = {  # and its descendants, which have some of these
    "embed_tokens": "model.embed_tokens",
    "layers.{}.input_layernorm": "model.layers.{}.input_layernorm",
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

# Buffers that old exporters wrote beside the weights (the config already says what they say),
# and layers for drafting, which ``weights.heads`` loads.
IGNORED = (
    re.compile(r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq"),
    re.compile(r"(model\.)?rotary_emb\.inv_freq"),
    re.compile(r"model\.mtp_layers\.\d+\..*"),
)

LAYER = re.compile(r"(?:model\.)?layers\.(\d+)\.")
HEAD = "lm_head.weight"  # with tied embeddings a checkpoint may hold it, as an equal copy
BARE = "model."  # what names lack in a checkpoint saved without its language-model head


def table(config: ModelConfig) -> Table:
    """Return the names a model's checkpoint uses: only OPT learns its positions."""
    return OPT if config.positions == "learned" else LLAMA


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
    """List what a checkpoint stores of a parameter, in order along its first axis.

    Each expert's matrix of a stack, each of the matrices that ``config.joined`` joins, or itself.
    """
    if "experts" in path:
        at = path.index("experts") + 1
        return [((*path[:at], expert, *path[at:]), shape[1:]) for expert in range(shape[0])]
    parts = JOINED.get(str(path[-2]))
    if parts is None or config is None:
        return [(path, shape)]
    narrow = config.num_kv_heads * config.head_dim
    rows = (shape[0] - 2 * narrow, narrow, narrow) if len(parts) == 3 else (shape[0] // 2,) * 2
    return [
        ((*path[:-2], part, path[-1]), (size, *shape[1:]))
        for part, size in zip(parts, rows, strict=True)
    ]


def full_name(name: str) -> str:
    """Return a tensor's name with the ``model.`` that headless checkpoints leave out."""
    return name if name.startswith((BARE, "lm_head.")) else BARE + name


def decoder_name(name: str, config: ModelConfig) -> str | None:
    """Return a decoder tensor's full name; None for a known buffer and for MTP layers.

    DeepSeek's MTP layers are numbered on after the decoder's own.
    """
    if any(pattern.fullmatch(name) for pattern in IGNORED):
        return None
    layer = LAYER.match(name)
    if config.latent is not None and layer and int(layer[1]) >= config.num_layers:
        return None
    return full_name(name)


MEDUSA = re.compile(r"(?:medusa_heads\.)?\d+\.\d+\.(?:linear\.)?(?:weight|bias)")  # its authors'
HEAD_NAMES = {  # of each kind of head: (what checkpoints write, our path), the first that fits
    "eagle": ((r"", ""),),
    "eagle3": ((r"layers\.0\.", "midlayer."), (r"", "")),
    "mtp": (
        (r"model\.mtp_layers\.0\.token_layernorm\.", "enorm."),
        (r"model\.mtp_layers\.0\.hidden_layernorm\.", "hnorm."),
        (r"model\.mtp_layers\.0\.input_proj\.", "eh_proj."),
        (r"model\.mtp_layers\.0\.final_layernorm\.", "norm."),
        (r"model\.mtp_layers\.0\.shared_head\.norm\.", "norm."),
        (r"model\.mtp_layers\.0\.shared_head\.head\.", "lm_head."),
        (r"model\.mtp_layers\.0\.(enorm|hnorm|eh_proj|embed_tokens)\.", r"\1."),
        (r"model\.mtp_layers\.0\.", "block."),
    ),
    "medusa": (
        (r"(?:medusa_heads\.)?(\d+)\.(\d+)\.linear\.", r"blocks.\1.layers.\2."),
        (r"(?:medusa_heads\.)?(\d+)\.\d+\.", r"lm_heads.\1."),
        (r"lm_head\.", "lm_heads.0."),
        (r"(?:medusa_heads\.)?", ""),
    ),
    "mlp_speculator": ((r"(?:speculator\.)?(emb|proj|head|ln)\.(\d+)\.", r"stages.\2.\1."),),
}


def head_name(kind: str, num_layers: int, name: str) -> str | None:
    """Return our path of a head's tensor, or None where it is no part of such a head.

    DeepSeek's MTP layer is stored as one more than the target's ``num_layers`` layers.
    """
    name = name.replace(f"model.layers.{num_layers}.", "model.mtp_layers.0.")
    for pattern, path in HEAD_NAMES[kind]:
        found = re.match(pattern, name)
        if found:
            return found.expand(path) + name[found.end() :]
    return None


WRITTEN = {  # what ``head_name`` undoes, where a checkpoint's names are not our paths
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
    """Return the name that vLLM reads a head's tensor by."""
    for pattern, name in WRITTEN.get(kind, ()):
        found = re.match(pattern, path)
        if found:
            return found.expand(name) + path[found.end() :]
    return path

"""A target's MTP layer computes what transformers' own layers, put together, do."""

import inspect

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from specjax.core.topology import causal
from specjax.models.build import build_feature_head
from specjax.weights.head_configs import read_head_config
from specjax.weights.heads import load_head
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params
from tests.weights import tiny
from tests.weights.test_parity import CLEARLY, TOLERANCE, error

MODULES = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "layers.0")  # Qwen3-Next's
AS_LAYER = {  # DeepSeek's and GLM's names, inside the layer behind the target's last
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head.norm",
    "layers.0": "",
}


class Reference(torch.nn.Module):
    """An MTP layer of transformers' modules, which loads no such layer itself."""

    def __init__(self, model):
        super().__init__()
        config, source = model.config, inspect.getmodule(type(model))
        name = type(model).__name__.removesuffix("ForCausalLM")
        self.first_masked = not name.startswith("Qwen")  # the embedding at position 0 is zeros
        norm, layer = (getattr(source, name + part) for part in ("RMSNorm", "DecoderLayer"))
        attends = config.num_hidden_layers - 1
        if not self.first_masked:
            attends = config.layer_types.index("full_attention")
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = (
            norm(config.hidden_size, eps=config.rms_norm_eps) for _ in range(3)
        )
        self.fc = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layers = torch.nn.ModuleList([layer(config, attends)])
        draw = torch.Generator().manual_seed(2)
        for value in [*self.parameters(), *self.buffers()]:
            scale = 0.5 if value.ndim == 1 else 1.5 * value.shape[1] ** -0.5
            value.data = torch.randn(value.shape, generator=draw) * scale

    @torch.no_grad()
    def logits(self, model, tokens):
        """Read the pairs of each hidden state and the token after it."""
        hidden = model.model(tokens).last_hidden_state[:, :-1]
        embedding = model.get_input_embeddings()(tokens[:, 1:])
        if self.first_masked:
            embedding[:, 0] = 0
        pair = self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)
        x = self.fc(torch.cat(pair, dim=-1))
        count = x.shape[1]
        where = torch.arange(count)[None].expand(len(x), -1)
        hides = torch.full((count, count), torch.finfo(x.dtype).min).triu(1)[None, None]
        angles = model.model.rotary_emb(x, where)
        x = self.layers[0](x, position_embeddings=angles, attention_mask=hides, position_ids=where)
        return model.lm_head(self.norm(x)).numpy(), hidden.numpy()


def our_logits(folder, hidden):
    """Read the same pairs with the head as ``method="mtp"`` loads it."""
    target, _ = read_config(folder)
    config = read_head_config(folder, "mtp", target)
    params = load_head(folder, "mtp", config, load_params(folder, target))
    head, (rows, count, _) = build_feature_head(config), hidden.shape
    positions = jnp.broadcast_to(jnp.arange(count), (rows, count))
    tokens, cache = jnp.asarray(tiny.tokens()[:, 1:]), head.init_cache(rows, count)
    features, _ = head.forward(
        params, tokens, jnp.asarray(hidden), positions, causal(count), cache, count
    )
    return np.asarray(head.logits(params, features))


def write_tensors(folder, tensors):
    """Add tensors to a checkpoint, or replace its own."""
    path = folder / "model.safetensors"
    save_file(load_file(path) | tensors, path, metadata={"format": "pt"})


def stored_name(model, layer, name):
    """Return the name of one of an MTP layer's tensors in a published checkpoint."""
    if not layer.first_masked:
        return f"mtp.{name}"
    part = next(part for part in MODULES if name.startswith(f"{part}."))
    inside = AS_LAYER[part] and f"{AS_LAYER[part]}."
    return f"model.layers.{model.config.num_hidden_layers}.{inside}{name.removeprefix(part + '.')}"


def add_layer(folder, model, *, stacked=True):
    """Add an MTP layer to a checkpoint; return it and its tensors as they are stored."""
    layer = Reference(model)
    own = {
        stored_name(model, layer, name): value.contiguous()
        for name, value in layer.state_dict().items()
    }
    for name, value in list(own.items()):
        if stacked or value.ndim < 3:
            continue
        stem, halves = name.rpartition(".")[0], name.endswith("gate_up_proj")
        for expert, matrix in enumerate(own.pop(name)):
            parts = ("gate_proj", "up_proj") if halves else ("down_proj",)
            for part, one in zip(parts, matrix.chunk(len(parts)), strict=True):
                own[f"{stem}.{expert}.{part}.weight"] = one.contiguous()
    write_tensors(folder, own)
    return layer, own


@pytest.mark.parametrize(
    "variant", ["qwen3-next", "qwen3-5", "qwen3-5-moe", "glm4-moe", "deepseek", "deepseek-v32"]
)
def test_logits_are_those_of_transformers_layers(variant, tmp_path):
    model, _ = tiny.reference(variant)
    folder = tiny.save(model, tmp_path)
    tiny.edit_config(folder, num_nextn_predict_layers=1)
    layer, own = add_layer(folder, model, stacked=variant.startswith("qwen3-5"))
    expected, hidden = layer.logits(model, torch.from_numpy(tiny.tokens()).long())
    assert error(our_logits(folder, hidden), expected) < TOLERANCE
    for name in MODULES:  # each part of it matters
        stem = stored_name(model, layer, f"{name}.")
        one = next(key for key in own if key.startswith(stem) and "experts" not in key)
        write_tensors(folder, {one: own[one].roll(1, 0)})
        assert error(our_logits(folder, hidden), expected) > CLEARLY, one
        write_tensors(folder, {one: own[one]})

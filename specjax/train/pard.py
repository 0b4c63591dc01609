"""PARD (arXiv:2504.18583): a draft model learns to draft K tokens in one pass over masks.

It stays an ordinary language model; its folder says which token stands for one to be drafted.
"""

import shutil
from pathlib import Path

import jax.numpy as jnp

from specjax.bundled import resolve
from specjax.core.types import PyTree
from specjax.host.files import read_json_object, write_json
from specjax.models.build import build_target
from specjax.models.config import ModelConfig
from specjax.train.head_init import Flat
from specjax.train.head_options import HeadTrainConfig
from specjax.train.learner import Learner
from specjax.train.unrolled import masked_text
from specjax.weights.heads import name, paths
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params, place
from specjax.weights.save import save_as

BESIDE = ("generation_config.json", "tokenizer.json", "tokenizer_config.json")


def parallel_draft_model(config: HeadTrainConfig, target: ModelConfig) -> Learner:
    """Return the draft model of ``config.start`` as what is trained.

    Raises:
        ValueError: it has another vocabulary than the target, or ``mask_token_id`` is none of it.
    """
    folder = resolve(config.start or "")
    facts, _ = read_config(folder, dtype="float32")
    if facts.vocab_size != target.vocab_size:
        raise ValueError(
            f"{folder} has a vocabulary of {facts.vocab_size} tokens, the target "
            f"{target.vocab_size}: PARD needs the same"
        )
    if not 0 <= config.mask_token_id < facts.vocab_size:
        raise ValueError(f"mask_token_id={config.mask_token_id} is no token of {folder}")
    loaded = paths(load_params(folder, facts))
    routes = {name(path): path for path in loaded}

    def first() -> Flat:
        return {name(path): jnp.copy(value) for path, value in loaded.items()}

    def assemble(own: Flat, target: PyTree) -> PyTree:
        params: PyTree = {}
        for stored, value in own.items():
            place(params, routes[stored], value)
        return params

    def save(out: Path, own: Flat) -> None:
        save_as(out, folder, facts, assemble(own, None))
        described = read_json_object(out / "config.json")
        write_json(out / "config.json", {**described, "pard_token": config.mask_token_id})
        for file in BESIDE:
            if (folder / file).is_file():
                shutil.copyfile(folder / file, out / file)

    draft = masked_text(build_target(facts), config.mask_token_id, config.unroll)
    return Learner(first, assemble, draft, save)

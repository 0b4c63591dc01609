"""From folders and options to an ``Engine`` and its ``Params``."""

from pathlib import Path
from typing import NamedTuple

from jax.sharding import Mesh

from specjax.bundled import resolve
from specjax.config import ModelConfig
from specjax.drafters.draft_model import draft_model
from specjax.drafters.ngram import ngram
from specjax.drafters.none import none
from specjax.engine.device import shard
from specjax.engine.speculative import SpeculativeConfig
from specjax.engine.tokenizer import Tokenizer, load_tokenizer
from specjax.models.build import build_target
from specjax.types import Engine, Params, PyTree
from specjax.verify.rejection import rejection
from specjax.verify.walk import walk
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params


class Model(NamedTuple):
    """A checkpoint, described but not yet loaded."""

    folder: Path
    config: ModelConfig
    tokenizer: Tokenizer


def describe(model: str | Path, dtype: str, max_model_len: int | None = None) -> Model:
    """Read everything about a checkpoint but its weights, refusing what is not implemented."""
    folder = resolve(model)
    config, _ = read_config(folder, dtype=dtype, max_model_len=max_model_len)
    return Model(folder, config, load_tokenizer(folder))


def check_pair(target: Model, draft: Model) -> None:
    """Make sure that both read the same token ids.

    Raises ValueError naming the first difference.
    """
    if target.config.vocab_size != draft.config.vocab_size:
        raise ValueError(
            f"target and draft model must have the same vocabulary: {target.folder} has "
            f"{target.config.vocab_size} tokens, {draft.folder} has {draft.config.vocab_size}."
        )
    ours, theirs = (m.tokenizer.backend.get_vocab() for m in (target, draft))
    for word in sorted(ours.keys() | theirs.keys(), key=lambda w: ours.get(w, theirs.get(w, 0))):
        if ours.get(word) != theirs.get(word):
            raise ValueError(
                f"target and draft model must have the same vocabulary: token {word!r} is "
                f"{ours.get(word)} in {target.folder} and {theirs.get(word)} in {draft.folder}."
            )


def build_engine(target: Model, draft: Model | None, config: SpeculativeConfig | None) -> Engine:
    """Choose drafter and rule. A draft with a law of its own needs rejection; others walk."""
    model = build_target(target.config)
    if config is None:
        return Engine(model, none, walk, window=0)
    depth = config.num_speculative_tokens
    if draft is None:
        longest, shortest = config.prompt_lookup_max or 0, config.prompt_lookup_min or 0
        return Engine(model, ngram(depth, longest, shortest), walk, window=0)
    reach = min(draft.config.max_position_embeddings, config.max_model_len or 2**30)
    method = config.draft_sample_method
    drafter = draft_model(build_target(draft.config), depth, method, reach)
    return Engine(model, drafter, rejection if method == "probabilistic" else walk, window=0)


def load(target: Model, draft: Model | None, mesh: Mesh) -> Params:
    """Read the weights, after everything that can be refused has been."""

    def read(model: Model) -> PyTree:
        params = load_params(model.folder, model.config, mesh.devices.flat[0])
        return params if mesh.size == 1 else shard(params, mesh)

    return Params(read(target), None if draft is None else read(draft))

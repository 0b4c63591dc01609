"""From folders and options to an ``Engine`` and its ``Params``."""

import warnings
from pathlib import Path
from typing import NamedTuple

from jax.sharding import Mesh

from specjax.bundled import resolve
from specjax.config import ModelConfig
from specjax.drafters.draft_model import draft_model
from specjax.drafters.ngram import ngram
from specjax.drafters.none import none
from specjax.drafters.suffix import suffix
from specjax.drafters.translated import Bilingual, Dictionary, translated
from specjax.engine.corpus import Corpus
from specjax.engine.device import shard
from specjax.engine.rule_options import LOSSY
from specjax.engine.speculative import SpeculativeConfig
from specjax.engine.tokenizer import Tokenizer, load_tokenizer
from specjax.engine.vocabulary import Vocabulary, check_same, find_shared
from specjax.models.build import build_target
from specjax.types import Drafter, Engine, Params, PyTree, Rule
from specjax.verify.block import block
from specjax.verify.entropy import entropy
from specjax.verify.rejection import rejection
from specjax.verify.rejection_tree import rejection_tree
from specjax.verify.synthetic import synthetic, to_conditional
from specjax.verify.typical import typical
from specjax.verify.walk import walk
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params


class Model(NamedTuple):
    """A checkpoint, described but not yet loaded."""

    folder: Path
    config: ModelConfig
    tokenizer: Tokenizer
    dictionary: Dictionary | None = None  # of a draft model that has its own vocabulary


def describe(model: str | Path, dtype: str, max_model_len: int | None = None) -> Model:
    """Read everything about a checkpoint but its weights, refusing what is not implemented."""
    folder = resolve(model)
    config, _ = read_config(folder, dtype=dtype, max_model_len=max_model_len)
    return Model(folder, config, load_tokenizer(folder))


def match(target: Model, draft: Model, *, heterogeneous: bool) -> Model:
    """Return the draft model, with a dictionary if it may have a vocabulary of its own.

    Raises ValueError when the vocabularies do not fit.
    """
    ours, theirs = (
        Vocabulary(model.tokenizer, model.config.vocab_size, model.folder)
        for model in (target, draft)
    )
    if heterogeneous:
        return draft._replace(dictionary=find_shared(ours, theirs))
    check_same(ours, theirs)
    return draft


def build_engine(target: Model, draft: Model | None, config: SpeculativeConfig | None) -> Engine:
    """Choose drafter and rule."""
    model = build_target(target.config)
    if config is None:
        return Engine(model, none, walk, window=0)
    depth = config.num_speculative_tokens
    if config.method == "suffix":
        drafter = suffix(
            depth,
            config.suffix_decoding_max_tree_depth,
            config.suffix_decoding_max_spec_factor,
            config.suffix_decoding_min_token_prob,
            config.suffix_decoding_max_spec_offset,
        )
    elif draft is None:
        longest, shortest = config.prompt_lookup_max or 0, config.prompt_lookup_min or 0
        drafter = ngram(depth, longest, shortest)
    else:
        reach = min(draft.config.max_position_embeddings, config.max_model_len or 2**30)
        own = build_target(draft.config)
        if draft.dictionary is not None:
            own = translated(own, model.vocab_size)
        drafter = draft_model(own, depth, config.draft_sample_method, reach)
    return Engine(model, drafter, choose_rule(config, drafter), window=0)


def build_corpus(config: SpeculativeConfig | None) -> Corpus | None:
    """Make room for the responses that suffix decoding shares, unless none are to be kept."""
    if config is None or config.method != "suffix":
        return None
    most = config.suffix_decoding_max_cached_requests
    return Corpus(config.suffix_decoding_max_tree_depth, most) if most else None


def choose_rule(config: SpeculativeConfig, drafter: Drafter) -> Rule:
    """Choose how drafts are verified; one warning if that changes the target's law.

    "standard" walks, unless the draft has a law of its own: then it needs rejection, and a
    tree that of siblings.

    Raises:
        ValueError: the rule is for chains and the drafter makes trees.
    """
    method = config.rejection_sample_method
    is_chain = drafter.nodes == drafter.depth + 1
    if not is_chain and method not in ("standard", "typical"):
        raise ValueError(
            f"rejection_sample_method={method!r} verifies chains, and this drafter makes trees: "
            "use 'standard' or 'typical'."
        )
    if method in LOSSY:
        warnings.warn(
            f"rejection_sample_method={method!r} is lossy, the text does not follow the target's "
            f"law: {LOSSY[method]}.",
            stacklevel=4,  # whoever made the LLM
        )
    threshold, alpha = config.posterior_threshold, config.posterior_alpha
    if method == "typical":
        return typical(threshold, alpha)
    if method == "entropy":
        return entropy(threshold, alpha)
    if method == "synthetic":
        return synthetic(to_conditional(config.synthetic_acceptance_rates or ()))
    if method == "block":
        return block
    if config.method == "draft_model" and config.draft_sample_method == "probabilistic":
        return rejection if is_chain else rejection_tree
    return walk


def load(target: Model, draft: Model | None, mesh: Mesh) -> Params:
    """Read the weights, after everything that can be refused has been."""

    def read(model: Model) -> PyTree:
        params = load_params(model.folder, model.config, mesh.devices.flat[0])
        params = params if mesh.size == 1 else shard(params, mesh)
        return params if model.dictionary is None else Bilingual(params, model.dictionary)

    return Params(read(target), None if draft is None else read(draft))

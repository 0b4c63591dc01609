"""From folders and options to an ``Engine`` and its ``Params``."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from specjax.bundled import resolve
from specjax.config import FeatureConfig, MedusaConfig, ModelConfig, SpeculatorConfig
from specjax.drafters.draft_model import draft_model
from specjax.drafters.feature import feature
from specjax.drafters.hidden_states import hidden_states
from specjax.drafters.ngram import ngram
from specjax.drafters.none import none, silent
from specjax.drafters.stages import staged
from specjax.drafters.suffix import suffix
from specjax.drafters.translated import Bilingual, Dictionary, translated
from specjax.drafters.tree import Tree
from specjax.engine import extraction
from specjax.engine.corpus import Corpus
from specjax.engine.corpus_file import load as load_corpus
from specjax.engine.device import shard
from specjax.engine.rule_options import LOSSY
from specjax.engine.speculative import MODEL_FREE, SpeculativeConfig, predicted
from specjax.engine.tokenizer import Tokenizer, has_tokenizer, load_tokenizer
from specjax.engine.vocabulary import Vocabulary, check_same, find_shared
from specjax.models.build import HeadConfig, build_feature_head, build_stages, build_target
from specjax.types import Drafter, Engine, Params, PyTree, Rule, Target
from specjax.verify.block import block
from specjax.verify.entropy import entropy
from specjax.verify.rejection import rejection
from specjax.verify.rejection_tree import rejection_tree
from specjax.verify.synthetic import synthetic, to_conditional
from specjax.verify.typical import typical
from specjax.verify.walk import walk
from specjax.weights.heads import load_head, read_head_config
from specjax.weights.hf_config import read_config
from specjax.weights.load import check_headers, load_params


class Head(NamedTuple):
    """A drafting head, described but not yet loaded."""

    folder: Path
    config: HeadConfig
    method: str


class Model(NamedTuple):
    """A checkpoint, described but not yet loaded."""

    folder: Path
    config: ModelConfig
    tokenizer: Tokenizer
    dictionary: Dictionary | None = None  # of a draft model that has its own vocabulary


def describe(
    model: str | Path,
    dtype: str,
    max_model_len: int | None = None,
    tokenizer: str | Path | None = None,
    form: Callable[[ModelConfig], ModelConfig] = lambda config: config,
) -> Model:
    """Read everything about a checkpoint but its weights, refusing what is not implemented.

    ``tokenizer`` is a folder that has one, by default the checkpoint's own; ``form`` says how the
    weights will be laid out.
    """
    folder = resolve(model)
    config, _ = read_config(folder, dtype=dtype, max_model_len=max_model_len)
    return Model(folder, form(config), load_tokenizer(resolve(tokenizer or folder), folder))


def describe_draft(
    target: Model,
    model: str | Path,
    dtype: str,
    max_model_len: int | None = None,
    *,
    form: Callable[[ModelConfig], ModelConfig] = lambda config: config,
    heterogeneous: bool,
) -> Model:
    """Describe a draft model; one whose folder has no tokenizer reads the target's tokens.

    Raises ValueError when the vocabularies do not fit.
    """
    folder = resolve(model)
    if has_tokenizer(folder):
        draft = describe(folder, dtype, max_model_len, form=form)
        return match(target, draft, heterogeneous=heterogeneous)
    config, _ = read_config(folder, dtype=dtype, max_model_len=max_model_len)
    if heterogeneous:
        raise ValueError(
            f"use_heterogeneous_vocab needs the draft model's own tokenizer, and there is none in "
            f"{folder}: add its tokenizer.json."
        )
    if config.vocab_size != target.config.vocab_size:
        raise ValueError(
            f"no tokenizer in {folder}, and the target's does not fit: {target.folder} has "
            f"{target.config.vocab_size} tokens, the draft model {config.vocab_size}. Add its "
            "tokenizer.json, or use a draft model of the same vocabulary."
        )
    return Model(folder, form(config), target.tokenizer)


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


def describe_head(target: Model, config: SpeculativeConfig) -> Head:
    """Read what a head is; an MTP layer is part of the target's own checkpoint by default.

    A feature head is used again for tokens beyond those it was trained to predict, each time
    for all of them (vLLM's rule).

    Raises ValueError when it is no head of this kind, or of another target, when it has fewer
    stages than tokens are to be drafted, or when these are no multiple of what it predicts.
    """
    method, depth = str(config.method), config.depth
    folder = target.folder if config.model is None else resolve(config.model)
    head = Head(folder, read_head_config(folder, method, target.config), method)
    stages = depth
    if isinstance(head.config, MedusaConfig):
        stages = head.config.num_heads
    elif isinstance(head.config, SpeculatorConfig):
        stages = head.config.num_stages
    if depth > stages:
        raise ValueError(
            f"{config.name_depth()} is more than the {stages} tokens that {folder} can draft: "
            f"use at most {stages}."
        )
    own = predicted(str(folder), method)
    if own is not None and depth > own and depth % own:
        raise ValueError(
            f"num_speculative_tokens={depth} must be divisible by the {own} tokens that {folder} "
            f"predicts: use {depth - depth % own}."
        )
    return head


def build_engine(
    target: Model, draft: Model | Head | None, config: SpeculativeConfig | None
) -> Engine:
    """Choose drafter and rule."""
    if config is None:
        return Engine(build_target(target.config), none, walk, window=0)
    taps = config.layers
    if taps:
        size, dtype = target.config.hidden_size, target.config.dtype
        extraction.check_layers(taps, target.config.num_layers)
        drafter = hidden_states(len(taps), size, dtype)
        return Engine(build_target(target.config, taps), drafter, walk, window=0)
    if isinstance(draft, Head) and isinstance(draft.config, FeatureConfig):
        taps = draft.config.taps
    model = build_target(target.config, taps)
    drafter = choose_drafter(model, draft, config, config.num_speculative_tokens)
    return Engine(model, drafter, choose_rule(config, drafter), window=0)


def build_schedule(
    engine: Engine, draft: Model | Head | None, config: SpeculativeConfig | None
) -> tuple[Engine, ...]:
    """Build the engine for each number of running requests: 1, 2, ..., the last one also for more.

    They differ in how much they draft (num_speculative_tokens_per_batch_size; where its ranges
    leave a gap, the range before it goes on) and share one state: while nothing is drafted, the
    drafter still follows the text.
    """
    ranges = config and config.num_speculative_tokens_per_batch_size
    if config is None or not ranges or not engine.drafter.depth:
        return (engine,)
    depths: list[int] = []
    for low, high, depth in ranges:
        depths += depths[-1:] * (low - 1 - len(depths))
        depths += [depth] * (high + 1 - low)

    def at(depth: int) -> Engine:
        if depth == engine.drafter.depth:
            return engine
        if depth == 0:
            return engine._replace(drafter=silent(engine.drafter))
        return engine._replace(drafter=choose_drafter(engine.target, draft, config, depth))

    return tuple(map(at, depths))


def choose_drafter(
    model: Target, draft: Model | Head | None, config: SpeculativeConfig, depth: int
) -> Drafter:
    """Build the drafter that a config asks for, to draft ``depth`` tokens."""
    method, vocab_size = config.draft_sample_method, model.vocab_size
    shape = config.shape if depth == config.num_speculative_tokens else depth
    if isinstance(shape, Tree) and shape.top_k > vocab_size:
        raise ValueError(
            f"a node of the draft tree has up to {shape.top_k} children, and the vocabulary "
            f"{vocab_size} tokens: ask for fewer."
        )
    reach = config.max_model_len or 2**30
    if config.method == "suffix":
        return suffix(
            depth,
            config.suffix_decoding_max_tree_depth,
            config.suffix_decoding_max_spec_factor,
            config.suffix_decoding_min_token_prob,
            config.suffix_decoding_max_spec_offset,
            config.suffix_decoding_use_tree_spec,
        )
    if draft is None:
        return ngram(depth, config.prompt_lookup_max or 0, config.prompt_lookup_min or 0)
    if isinstance(draft, Model):
        reach = min(draft.config.max_position_embeddings, reach)
        own = build_target(draft.config)
        if draft.dictionary is not None:
            own = translated(own, vocab_size)
        return draft_model(own, shape, method, reach)
    if isinstance(draft.config, FeatureConfig):
        head = build_feature_head(draft.config)
        return feature(head, shape, method, reach)
    return staged(build_stages(draft.config), shape, method, reach)


def build_corpus(config: SpeculativeConfig | None, tokenizer: Tokenizer) -> Corpus | None:
    """Make room for the responses that suffix decoding shares, or None if there are none.

    Raises ValueError when a saved corpus is of another tokenizer.
    """
    if config is None or config.method != "suffix":
        return None
    path, most = config.suffix_decoding_corpus, config.suffix_decoding_max_cached_requests
    saved = [] if path is None else load_corpus(Path(path), tokenizer)
    capacity = config.suffix_decoding_max_cached_tokens
    if not most:  # nothing is learned, so nothing has to go
        most, capacity = len(saved), sum(map(len, saved))
    return Corpus(config.suffix_decoding_max_tree_depth, most, capacity, saved) if most else None


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
    if config.method not in MODEL_FREE and config.draft_sample_method == "probabilistic":
        return rejection if is_chain else rejection_tree
    return walk


def load(
    target: Model, draft: Model | Head | None, mesh: Mesh, *, keep_dtype: bool = False
) -> Params:
    """Read the weights, after everything that can be refused has been: a draft model's too.

    A head is small and lies whole on each device. ``keep_dtype`` is that of ``load_params``.
    """

    def read(model: Model) -> PyTree:
        device = mesh.devices.flat[0]
        params = load_params(model.folder, model.config, device, keep_dtype=keep_dtype)
        params = params if mesh.size == 1 else shard(params, mesh)
        return params if model.dictionary is None else Bilingual(params, model.dictionary)

    if isinstance(draft, Model):
        check_headers(draft.folder, draft.config)
    weights = read(target)
    if isinstance(draft, Head):
        place = mesh.devices.flat[0] if mesh.size == 1 else NamedSharding(mesh, PartitionSpec())
        facts = draft.folder, draft.method, draft.config, weights, place
        own = load_head(*facts, keep_dtype=keep_dtype)
        return Params(weights, own)
    return Params(weights, None if draft is None else read(draft))

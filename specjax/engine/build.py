"""Build an ``Engine`` and load its ``Params`` from checkpoint folders and options."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from specjax.bundled import resolve
from specjax.core.types import (
    Drafter,
    DrafterFactory,
    Engine,
    LoadDraft,
    Params,
    PyTree,
    Rule,
    Target,
)
from specjax.drafters.adaptive import adaptive as adapt
from specjax.drafters.block import block_drafter
from specjax.drafters.catch_up import catch_up, rest
from specjax.drafters.custom import build_custom
from specjax.drafters.draft_model import draft_model
from specjax.drafters.fallback import Both, fallback
from specjax.drafters.feature import feature
from specjax.drafters.hidden_states import hidden_states
from specjax.drafters.hierarchical import hierarchical
from specjax.drafters.mapped_vocab import MappedVocabParams, VocabMapping, with_mapped_vocab
from specjax.drafters.ngram import ngram
from specjax.drafters.none import none, observe_only
from specjax.drafters.stages import staged
from specjax.drafters.suffix import suffix
from specjax.drafters.tree import Tree, chain_of
from specjax.engine.adaptive import Adaptive
from specjax.engine.corpus import Corpus
from specjax.engine.corpus_file import load as load_corpus
from specjax.engine.device import head_sharding, sharding
from specjax.engine.options import custom, extraction
from specjax.engine.options.adaptive import OF_BATCH
from specjax.engine.options.methods import MODEL_FREE, read_n_predict
from specjax.engine.options.rules import LOSSY
from specjax.engine.options.speculative import SpeculativeConfig
from specjax.engine.progress import bar, say
from specjax.engine.text.tokenizer import Tokenizer, has_tokenizer, load_tokenizer
from specjax.engine.text.vocabulary import Vocabulary, check_same, find_shared
from specjax.host.files import read_json_object
from specjax.models.build import (
    HeadConfig,
    build_block_head,
    build_feature_head,
    build_stages,
    build_target,
    most_drafted,
)
from specjax.models.config import (
    WITH_LAYERS,
    BlockConfig,
    FeatureConfig,
    ModelConfig,
    check_mask,
)
from specjax.verify.block import block
from specjax.verify.entropy import entropy
from specjax.verify.rejection import rejection
from specjax.verify.rejection_tree import rejection_tree
from specjax.verify.synthetic import synthetic, to_conditional
from specjax.verify.typical import typical
from specjax.verify.walk import walk
from specjax.weights.footprint import measure
from specjax.weights.head_configs import read_head_config, read_mask
from specjax.weights.heads import load_head
from specjax.weights.hf_config import read_config
from specjax.weights.load import check_headers, load_params

LARGE = 1 << 30  # bytes of weight files whose reading is shown


class Head(NamedTuple):
    """A drafting head: its folder and config, without its weights."""

    folder: Path
    config: HeadConfig
    method: str


class Model(NamedTuple):
    """A checkpoint: its folder, config and tokenizer, without its weights."""

    folder: Path
    config: ModelConfig
    tokenizer: Tokenizer
    vocab_mapping: VocabMapping | None = None  # of a draft model that has its own vocabulary
    mask_token_id: int | None = None  # of a draft model that drafts in parallel


class Custom(NamedTuple):
    """A drafter of the user's own: the function that builds it, without its weights."""

    factory: DrafterFactory
    target: Target


class Parts(NamedTuple):
    """The sources of two drafters: one and its fallback, or a draft model and its own drafter."""

    first: "Source"
    second: "Source"


Source = Model | Head | Custom | Parts | None  # what a drafter is built from; None: its config


def describe(
    model: str | Path,
    dtype: str,
    max_model_len: int | None = None,
    tokenizer: str | Path | None = None,
    form: Callable[[ModelConfig], ModelConfig] = lambda config: config,
) -> Model:
    """Return a checkpoint's config and tokenizer, without reading its weights.

    Args:
        tokenizer: a folder that has one, by default the checkpoint's own.
        form: returns the config with the weights' layout in memory.

    Raises:
        ValueError: the model or its tokenizer cannot be read, or is not implemented.
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
    parallel: bool = False,
) -> Model:
    """Return a draft model's config and tokenizer, the target's where its folder has none.

    Raises:
        ValueError: the vocabularies do not fit, it has a recurrent state, or it is to draft in
            parallel (PARD) and has no mask token of its vocabulary.
    """
    folder = resolve(model)
    if parallel:
        mask, rest = read_mask(read_json_object(folder / "config.json")), (dtype, max_model_len)
        draft = describe_draft(target, model, *rest, form=form, heterogeneous=heterogeneous)
        check_mask(mask, draft.config.vocab_size)
        return draft._replace(mask_token_id=mask)
    config, _ = read_config(folder, dtype=dtype, max_model_len=max_model_len)
    if config.recurrent:
        raise ValueError(
            f"{folder} has layers with a recurrent state (gated delta nets), which a draft model "
            "cannot take back when its tokens are rejected: use a draft model that has only "
            "attention, or method 'ngram' or 'suffix'."
        )
    if has_tokenizer(folder):
        draft = describe(folder, dtype, max_model_len, form=form)
        return match(target, draft, heterogeneous=heterogeneous)
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
    """Return the draft model, with a VocabMapping if ``heterogeneous``.

    Raises:
        ValueError: the vocabularies do not fit.
    """
    ours, theirs = (
        Vocabulary(model.tokenizer, model.config.vocab_size, model.folder)
        for model in (target, draft)
    )
    if heterogeneous:
        return draft._replace(vocab_mapping=find_shared(ours, theirs))
    check_same(ours, theirs)
    return draft


def describe_head(target: Model, config: SpeculativeConfig) -> Head:
    """Return a head's folder and config; an MTP layer is by default in the target's checkpoint.

    A head trained to predict n tokens may draft a multiple of n (vLLM's rule).

    Raises:
        ValueError: it is no head of this kind, or of another target, it has fewer stages than
            tokens are to be drafted, or these are no multiple of the tokens it predicts.
    """
    method, depth = config.head_kind, config.depth
    folder = target.folder if config.model is None else resolve(config.model)
    head = Head(folder, read_head_config(folder, method, target.config), method)
    stages = most_drafted(head.config)
    if stages is not None and depth > stages:
        raise ValueError(
            f"{config.name_depth()} is more than the {stages} tokens that {folder} can draft: "
            f"use at most {stages}."
        )
    own = read_n_predict(str(folder), str(config.method))
    if own is not None and depth > own and depth % own:
        raise ValueError(
            f"num_speculative_tokens={depth} must be divisible by the {own} tokens that {folder} "
            f"predicts: use {depth - depth % own}."
        )
    return head


def describe_source(
    target: Model,
    config: SpeculativeConfig | None,
    dtype: str,
    max_model_len: int | None = None,
    form: Callable[[ModelConfig], ModelConfig] = lambda config: config,
) -> Source:
    """Return what a config's drafter is built from, without its weights.

    Raises:
        ValueError: it cannot be read, or does not fit the target.
    """
    facts = dtype, max_model_len, form
    if config is None:
        return None
    if config.fallback is not None:
        first = describe_source(target, config.alone, *facts)
        return Parts(first, describe_source(target, config.fallback, *facts))
    if config.method in MODEL_FREE:
        return None
    if config.method == custom.METHOD:
        return Custom(custom.find_factory(str(config.model)), build_target(target.config))
    if config.method != "draft_model":
        return describe_head(target, config)
    draft = describe_draft(
        target, str(config.model), dtype, max_model_len, form=form,
        heterogeneous=config.use_heterogeneous_vocab, parallel=config.parallel_drafting,
    )  # fmt: skip
    if config.speculative_config is None:
        return draft
    return Parts(draft, describe_source(draft, config.speculative_config, *facts))


def models_of(source: Source) -> list[Model]:
    """Return the draft models of a source."""
    if isinstance(source, Parts):
        return [*models_of(source.first), *models_of(source.second)]
    return [source] if isinstance(source, Model) else []


def taps_of(source: Source, config: SpeculativeConfig, num_layers: int) -> tuple[int, ...]:
    """Return the layers of the target that a drafter reads, or two of them together.

    Raises:
        ValueError: the target has no such layer.
    """
    if isinstance(source, Head) and isinstance(source.config, WITH_LAYERS):
        return source.config.taps
    if isinstance(source, Custom):
        taps = build_source(source, config, config.num_speculative_tokens)[0].taps
        if any(not 1 <= layer <= num_layers for layer in taps):
            raise ValueError(
                f"{config.model} reads the layers {taps}, and the target has 1 to {num_layers}."
            )
        return taps
    if not isinstance(source, Parts) or config.fallback is None:
        return ()  # a draft model's own drafter reads the draft model
    taps = taps_of(source.first, config.alone, num_layers)
    others = taps_of(source.second, config.fallback, num_layers)
    return tuple(sorted({*taps, *others}))


def build_source(
    source: Custom, config: SpeculativeConfig, depth: int
) -> tuple[Drafter, LoadDraft]:
    """Return the user's drafter for K = ``depth``, and the function that loads its weights."""
    return build_custom(source.factory, source.target, depth, config.drafter_options or {})


def build_engine(target: Model, draft: Source, config: SpeculativeConfig | None) -> Engine:
    """Return the engine of a config: target, drafter and verification rule."""
    if config is None:
        return Engine(build_target(target.config), none, walk, window=0)
    taps = config.layers
    if taps:
        size, dtype = target.config.hidden_size, target.config.dtype
        extraction.check_layers(taps, target.config.num_layers)
        drafter = hidden_states(len(taps), size, dtype)
        return Engine(build_target(target.config, taps), drafter, walk, window=0)
    model = build_target(target.config, taps_of(draft, config, target.config.num_layers))
    drafter = choose_drafter(model, draft, config, config.num_speculative_tokens)
    if may_rest(draft, config):
        drafter = catch_up(drafter)
    if config.adaptive is not None and config.adaptive.strategy == "request":
        drafter = adapt(drafter, config.adaptive.ema_alpha or 0.2)
    return Engine(model, drafter, choose_rule(config, drafter), window=0)


def build_schedule(
    engine: Engine, draft: Source, config: SpeculativeConfig | None
) -> tuple[Engine, ...]:
    """Return the engine for each number of running requests: 1, 2, ..., the last also for more.

    They differ in K (num_speculative_tokens_per_batch_size; where its ranges leave a gap, the
    range before it goes on) and share one state: while K is 0, a head still reads the target's
    hidden states; a draft model rests, and catches up later.
    """
    ranges = config and config.num_speculative_tokens_per_batch_size
    if config is None or not ranges or not engine.drafter.depth:
        return (engine,)
    depths: list[int] = []
    for low, high, depth in ranges:
        depths += depths[-1:] * (low - 1 - len(depths))
        depths += [depth] * (high + 1 - low)
    return tuple(engine_of_depth(engine, draft, config, depth) for depth in depths)


def build_adaptive(
    engine: Engine, draft: Source, config: SpeculativeConfig | None, max_num_seqs: int
) -> Adaptive | None:
    """Return what chooses K for the batch; None if nothing does."""
    if config is None or config.adaptive is None or config.adaptive.strategy not in OF_BATCH:
        return None
    if config.adaptive.strategy == "throughput_aware" and jax.process_count() > 1:
        raise ValueError(
            "adaptive: each process would measure other times, and choose another K: with several "
            "processes use strategy 'ema' or 'request'."
        )
    policy = config.adaptive.policy(config.num_speculative_tokens, max_num_seqs)
    steps = policy.candidate_steps
    return Adaptive(policy, {k: engine_of_depth(engine, draft, config, k) for k in steps})


def engine_of_depth(engine: Engine, draft: Source, config: SpeculativeConfig, depth: int) -> Engine:
    """Return the engine that drafts ``depth`` tokens, with the same state as ``engine``."""
    if depth == config.num_speculative_tokens:
        return engine
    rests = may_rest(draft, config)
    if depth == 0:
        drafter = rest(engine.drafter) if rests else observe_only(engine.drafter)
        return engine._replace(drafter=drafter)
    drafter = choose_drafter(engine.target, draft, config, depth)
    return engine._replace(drafter=catch_up(drafter) if rests else drafter)


def may_rest(draft: Source, config: SpeculativeConfig) -> bool:
    """Return whether K may be 0 for a while, and the drafter is a draft model, which catches up."""
    schedule = [depth for *_, depth in config.num_speculative_tokens_per_batch_size or ()]
    if config.adaptive is not None and config.adaptive.strategy in OF_BATCH:
        schedule += config.adaptive.policy(config.num_speculative_tokens, 1).candidate_steps
    return isinstance(draft, Model) and 0 in schedule


def choose_drafter(model: Target, draft: Source, config: SpeculativeConfig, depth: int) -> Drafter:
    """Return the drafter of a config, for drafts of at most ``depth`` tokens."""
    depth = min(depth, config.num_speculative_tokens)
    method, vocab_size = config.draft_sample_method, model.vocab_size
    if isinstance(draft, Parts) and config.fallback is not None:
        first = choose_drafter(model, draft.first, config.alone, depth)
        return fallback(first, choose_drafter(model, draft.second, config.fallback, depth))
    if isinstance(draft, Custom):
        return build_source(draft, config, depth)[0]
    shape = config.shape if depth == config.num_speculative_tokens else depth
    if isinstance(shape, Tree) and shape.top_k > vocab_size:
        raise ValueError(
            f"a node of the draft tree has up to {shape.top_k} children, and the vocabulary "
            f"{vocab_size} tokens: ask for fewer."
        )
    if config.draft_confidence_threshold:
        shape = replace(chain_of(shape), min_confidence=config.draft_confidence_threshold)
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
    if isinstance(draft, Parts):
        own_config, one = config.speculative_config, draft.first
        assert isinstance(one, Model)
        engine = build_engine(one, draft.second, own_config)
        return hierarchical(engine, depth, min(one.config.max_position_embeddings, reach))
    if isinstance(draft, Model):
        reach = min(draft.config.max_position_embeddings, reach)
        check_windows(draft.config, depth)
        own = build_target(draft.config)
        if draft.vocab_mapping is not None:
            own = with_mapped_vocab(own, vocab_size)
        return draft_model(own, shape, method, reach, draft.mask_token_id)
    if isinstance(draft.config, FeatureConfig):
        check_windows(draft.config.block, depth)
        head = build_feature_head(draft.config)
        return feature(head, shape, method, reach)._replace(taps=draft.config.taps)
    if isinstance(draft.config, BlockConfig):
        head = build_block_head(draft.config)
        drafter = block_drafter(head, shape, method, reach, config.dspark_draft_topk)
        return drafter._replace(taps=draft.config.taps)
    return staged(build_stages(draft.config), shape, method, reach)


def read_drafter(
    target: Model, draft: Source, config: SpeculativeConfig | None, weights: Params,
    folder: str | Path, *, keep_dtype: bool = False,
) -> PyTree:  # fmt: skip
    """Return other weights for the drafter in use, on its device, from a head's folder.

    Its programs take them without being compiled again.

    Raises:
        ValueError: the drafter is no head, or the folder holds a head of another shape.
    """
    if config is None or not isinstance(draft, Head):
        method = None if config is None else config.method
        raise ValueError(
            f"only a drafting head's weights can be exchanged, and method is {method!r}."
        )
    found = describe_head(target, replace(config, model=str(folder)))
    if found.config != draft.config:
        raise ValueError(f"{folder} is another head: {found.config}, in use {draft.config}.")
    leaf = jax.tree.leaves(weights.target)[0]
    facts = found.folder, found.method, found.config, weights.target, leaf.sharding
    fresh = load_head(*facts, keep_dtype=keep_dtype)
    kinds = [
        [(one.shape, one.dtype) for one in jax.tree.leaves(each)] for each in (fresh, weights.draft)
    ]
    if kinds[0] != kinds[1]:
        raise ValueError(f"{folder} stores weights of other shapes or types than those in use.")
    return fresh


def build_corpus(config: SpeculativeConfig | None, tokenizer: Tokenizer | None) -> Corpus | None:
    """Return the corpus of responses that suffix decoding shares; None if it shares none.

    Raises:
        ValueError: a saved corpus is of another tokenizer.
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
    """Return the verification rule of a config; warns if it changes the target's distribution.

    "standard" is ``walk``, unless draft tokens are sampled: then it is ``rejection``, for a tree
    ``rejection_tree``.

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
            f"distribution: {LOSSY[method]}.",
            stacklevel=5,  # the caller of LLM()
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
    if config.samples:
        return rejection if is_chain else rejection_tree
    return walk


def check_windows(config: ModelConfig, depth: int) -> None:
    """Raise ValueError if a draft reaches out of a drafter's sliding window.

    While it is grown, its nodes' positions are known as numbers of slots only (``sliding_mask``).
    """
    narrow = min((kind.window for kind in config.layers if kind.window), default=None)
    if narrow is not None and narrow <= depth:
        raise ValueError(
            f"num_speculative_tokens={depth} reaches out of the drafter's sliding window of "
            f"{narrow}: use at most {narrow - 1}."
        )


def load(
    target: Model,
    draft: Source,
    config: SpeculativeConfig | None,
    mesh: Mesh,
    *,
    keep_dtype: bool = False,
) -> Params:
    """Return the weights of target and drafter, read from their folders.

    Draft models' files are checked before the target's weights are read. A head is small and
    copied to each device, its experts aside if they are dealt out; of several devices each is
    given its part of the target only.
    ``keep_dtype`` leaves weights in the checkpoint's dtype where that is exact (``load_params``).
    """

    def read(model: Model) -> PyTree:
        where = mesh.devices.flat[0] if mesh.size == 1 else partial(sharding, mesh, model.config)
        size = measure(model.folder, model.config, keep_dtype=keep_dtype)
        if size.method is not None:
            say(f"{model.folder.name}: {size}")
        facts = model.folder, model.config, where
        if size.stored < LARGE:
            params = load_params(*facts, keep_dtype=keep_dtype)
        else:
            with bar(f"weights of {model.folder.name}, MB") as shown:
                params = load_params(
                    *facts,
                    keep_dtype=keep_dtype,
                    progress=lambda done, total: shown(done // 10**6, total // 10**6),
                )
        mapping = model.vocab_mapping
        return params if mapping is None else MappedVocabParams(params, mapping)

    def read_source(source: Source, config: SpeculativeConfig | None, weights: PyTree) -> PyTree:
        if source is None or config is None:
            return None
        if isinstance(source, Parts) and config.fallback is not None:
            first = read_source(source.first, config.alone, weights)
            return Both(first, read_source(source.second, config.fallback, weights))
        if isinstance(source, Parts):
            assert isinstance(source.first, Model)
            own = read(source.first)
            return Params(own, read_source(source.second, config.speculative_config, own))
        if isinstance(source, Custom):
            return build_source(source, config, config.num_speculative_tokens)[1](weights)
        if isinstance(source, Model):
            return read(source)
        block = getattr(source.config, "block", None)
        place = mesh.devices.flat[0] if mesh.size == 1 else partial(head_sharding, mesh, block)
        facts = source.folder, source.method, source.config, weights, place
        return load_head(*facts, keep_dtype=keep_dtype)

    for model in models_of(draft):
        check_headers(model.folder, model.config)
    weights = read(target)
    return Params(weights, read_source(draft, config, weights))

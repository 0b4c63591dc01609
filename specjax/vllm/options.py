"""Read which drafter vLLM is to use, and build it: those that draft from text alone.

vLLM gives a custom class the tokens of its rows and takes tokens back, no more. So there are no
hidden states for heads, no trees, and no probabilities for a rule: greedy chains.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from specjax.bundled import resolve
from specjax.core.types import Drafter, Observation, PyTree, Sampling, Target, Text
from specjax.drafters.custom import build_custom
from specjax.engine.build import build_corpus, choose_drafter, describe, load
from specjax.engine.corpus import Corpus
from specjax.engine.device import (
    choose_devices,
    choose_dtype,
    has_inference_layout,
    inference_layout,
)
from specjax.engine.options.custom import find_factory
from specjax.engine.options.mappings import read_mapping
from specjax.engine.options.speculative import SpeculativeConfig
from specjax.engine.text.tokenizer import has_tokenizer, load_tokenizer
from specjax.engine.text.vocabulary import Vocabulary, check_same

KEY = "specjax"  # in vLLM's additional_config
METHODS = ("ngram", "suffix", "draft_model", "custom_class")
OWN = (  # options that these methods have; of others only the defaults are possible
    *("method", "model", "num_speculative_tokens", "max_model_len"),
    *("prompt_lookup_max", "prompt_lookup_min", "drafter_options"),
    *("suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests"),
    *("suffix_decoding_max_spec_factor", "suffix_decoding_max_spec_offset"),
    *("suffix_decoding_min_token_prob", "suffix_decoding_max_cached_tokens"),
)
HEADS = "vLLM runs heads itself, in specjax's formats: method 'eagle3', 'medusa', ..."


class Facts(NamedTuple):
    """What vLLM's config says of the target."""

    folder: str
    vocab_size: int
    hidden_size: int
    max_model_len: int
    num_speculative_tokens: int


class Wanted(NamedTuple):
    """A drafter, what loads its weights, and the responses that it learns from."""

    drafter: Drafter
    load: Callable[[], PyTree]
    corpus: Corpus | None
    learns: bool  # from the responses of this server


def read_facts(vllm_config: Any) -> Facts:
    """Return what is needed of a ``vllm.config.VllmConfig``."""
    model = vllm_config.model_config
    return Facts(
        folder=str(model.model),
        vocab_size=model.get_vocab_size(),
        hidden_size=model.get_hidden_size(),
        max_model_len=model.max_model_len,
        num_speculative_tokens=vllm_config.speculative_config.num_speculative_tokens,
    )


def read_options(vllm_config: Any) -> tuple[SpeculativeConfig, str]:
    """Return the speculative_config under "specjax" in vLLM's additional_config, and its device.

    Raises:
        ValueError: there is none, an option is unknown or wrong, or vLLM's custom class cannot
            have it.
    """
    extra = getattr(vllm_config, "additional_config", None)
    given = extra.get(KEY) if isinstance(extra, Mapping) else None
    if given is None:
        raise ValueError(
            "specjax.vllm.Proposer needs vLLM's additional_config, which says what drafts: "
            'additional_config={"specjax": {"method": "ngram"}}, on the command line '
            '--additional-config \'{"specjax": {"method": "ngram"}}\'.'
        )
    options = dict(read_mapping(f"additional_config[{KEY!r}]", given))
    device = str(options.pop("device", "cpu"))
    depth = vllm_config.speculative_config.num_speculative_tokens
    own = options.setdefault("num_speculative_tokens", depth)
    config = SpeculativeConfig.from_dict(options)
    if config.num_speculative_tokens != depth:
        raise ValueError(
            f"num_speculative_tokens={own} in additional_config, and vLLM's speculative_config has "
            f"{depth}: leave it out of additional_config."
        )
    if config.method not in METHODS:
        raise ValueError(f"specjax.vllm drafts by {METHODS}, got {config.method!r}. {HEADS}.")
    for one in fields(SpeculativeConfig):
        value = getattr(config, one.name)
        if one.name not in OWN and value != one.default:
            raise ValueError(
                f"{one.name}={value!r}: vLLM takes greedy chains from a custom class, and verifies "
                "them by its own rule. Remove it."
            )
    return config, device


def build(facts: Facts, config: SpeculativeConfig, device: str) -> Wanted:
    """Return the drafter of a config.

    Raises:
        ValueError: the device is not there; the draft model cannot be read or has another
            vocabulary; or the user's drafter needs what vLLM does not give.
    """
    mesh = choose_devices(device, 1)
    if config.method == "draft_model":
        return build_model(facts, config, mesh, device)
    if config.method == "custom_class":
        return build_own(facts, config)
    target = Target(refuse, refuse, refuse, facts.vocab_size, facts.hidden_size)
    drafter = choose_drafter(target, None, config, config.num_speculative_tokens)
    corpus = build_corpus(config, None)
    learns = bool(config.suffix_decoding_max_cached_requests)
    return Wanted(drafter, lambda: None, corpus, learns)


def build_model(facts: Facts, config: SpeculativeConfig, mesh: Mesh, device: str) -> Wanted:
    """Return the drafter of a draft model, once its files are checked."""
    target, own = Path(facts.folder), resolve(str(config.model))
    tokenizer = target if has_tokenizer(target) and not has_tokenizer(own) else None

    def form(config):
        return inference_layout(config, mesh, device)

    dtype = choose_dtype("auto", mesh, device)
    model = describe(own, dtype, config.max_model_len, tokenizer, form)
    if model.config.recurrent:
        raise ValueError(f"{model.folder} has a recurrent state: no draft model can.")
    theirs = Vocabulary(model.tokenizer, model.config.vocab_size, model.folder)
    if has_tokenizer(target):
        ours = Vocabulary(load_tokenizer(target), facts.vocab_size, target)
        check_same(ours, theirs)
    elif facts.vocab_size != theirs.size:
        raise ValueError(
            f"the target has {facts.vocab_size} tokens, {model.folder} {theirs.size}: use a draft "
            "model of the same vocabulary."
        )
    stand_in = Target(refuse, refuse, refuse, facts.vocab_size, facts.hidden_size)
    drafter = choose_drafter(stand_in, model, config, config.num_speculative_tokens)
    keep = has_inference_layout(mesh, device)

    def read():
        return load(model, None, None, mesh, keep_dtype=keep).target

    return Wanted(drafter, read, None, False)


def build_own(facts: Facts, config: SpeculativeConfig) -> Wanted:
    """Return the drafter of the user's own factory, once it is known to need text alone."""
    target = Target(refuse, refuse, refuse, facts.vocab_size, facts.hidden_size)
    factory, depth = find_factory(str(config.model)), config.num_speculative_tokens
    drafter, read = build_custom(factory, target, depth, config.drafter_options or {})
    if drafter.nodes != drafter.depth + 1:
        raise ValueError(f"{config.model} drafts trees, and vLLM takes chains.")
    if drafter.reads_hidden or drafter.taps:
        raise ValueError(f"{config.model} reads hidden states, which vLLM does not give. {HEADS}.")
    return Wanted(drafter, lambda: read({}), None, False)


def check_reads_text(drafter: Drafter, params: PyTree) -> None:
    """Raise ValueError unless a drafter's functions run on text, and return no probabilities."""

    def once(params):
        tokens, one = jnp.zeros((1, 64), jnp.int32), jnp.ones(1, jnp.int32)
        text = Text(tokens, one, one + 1, one * 64, one * 0)
        state = drafter.init(params, 1, 64)
        state = drafter.observe(params, state, text, observation(text, one * 0, one, 1), 64)
        sampling, keys = greedy(1, drafter.depth), jax.random.split(jax.random.key(0), 1)
        return drafter.propose(params, state, text, sampling, keys, 64)[0]

    try:
        draft = jax.eval_shape(once, params)
    except Exception as error:
        raise ValueError(
            f"this drafter does not run on text alone, which is all that vLLM gives: {error}. "
            f"{HEADS}."
        ) from error
    if draft.probs is not None:
        raise ValueError("this drafter samples its tokens, and vLLM takes greedy ones only.")


def observation(text: Text, start: jax.Array, count: jax.Array, width: int) -> Observation:
    """Return what a drafter may read of the next tokens; hidden states have no size."""
    size = text.tokens.shape[0], width
    index = start[:, None] + 1 + jnp.arange(width)[None]
    tokens = jnp.take_along_axis(text.tokens, jnp.minimum(index, text.tokens.shape[1] - 1), axis=1)
    return Observation(tokens, jnp.zeros((*size, 0)), jnp.zeros((*size, 0, 0)), start, count)


def greedy(num_rows: int, depth: int) -> Sampling:
    """Return the sampling parameters that greedy drafters are given."""
    return Sampling(
        temperature=jnp.zeros(num_rows),
        max_draft=jnp.full(num_rows, depth, jnp.int32),
        stop_ids=jnp.zeros((num_rows, 0), jnp.int32),
    )


def refuse(*arguments: Any) -> Any:
    """Raise ValueError: a drafter called the target."""
    raise ValueError("inside vLLM the target is vLLM's, and no drafter can run it")

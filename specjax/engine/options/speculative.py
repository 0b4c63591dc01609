"""vLLM's `speculative_config`: which drafter, how many tokens, which verification rule."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, no_type_check

from specjax.drafters.tree import Tree
from specjax.engine.options import custom, extraction
from specjax.engine.options.adaptive import OF_BATCH, THROUGHPUT, AdaptiveConfig
from specjax.engine.options.mappings import kind_of, parse_value, read_mapping, suggest, warn_inert
from specjax.engine.options.methods import (
    METHODS,
    MODEL_FREE,
    drafts_in_parallel,
    read_n_predict,
    resolve_method,
)
from specjax.engine.options.rules import RULES, posterior, synthetic_rates
from specjax.engine.options.trees import read_paths, read_sizes, to_text
from specjax.models.config import HEAD_METHODS

CHOICES = {
    "rejection_sample_method": RULES,
    "draft_sample_method": ("greedy", "probabilistic", "coupled"),
}
AT_LEAST = {  # smallest value of each number that has one
    "draft_tensor_parallel_size": 1, "max_model_len": 1, "prompt_lookup_max": 1,
    "prompt_lookup_min": 1, "dspark_draft_topk": 1, "suffix_decoding_max_tree_depth": 1,
    "suffix_decoding_max_cached_requests": 0, "suffix_decoding_max_spec_factor": 0,
    "suffix_decoding_max_cached_tokens": 1,
    "suffix_decoding_min_token_prob": 0, "posterior_alpha": 0, "draft_confidence_threshold": 0,
}  # fmt: skip

PARALLEL = ("eagle3", "draft_model")  # methods of P-EAGLE and PARD
AT_ONCE = ("dflash", "dspark")  # that draft in parallel whatever is said, as vLLM's printed config

# Options of a speculative_config that cannot change what specjax does.
INERT = (
    "disable_padded_drafter_batch", "enforce_eager", "use_local_argmax_reduction", "moe_backend",
    "attention_backend", "revision", "code_revision", "draft_load_config",
    "disable_eagle_block_drop", "disable_lookahead_block_hashes", "index_share_for_mtp_iteration",
)  # fmt: skip
# Options that would change it, with the values that leave them off. Those of "fly" come after
# the rule itself, which is refused by its name.
ONLY_OFF = {
    "quantization": (None,),
    "kv_cache_dtype": (None, "auto"),
    "draft_lm_head_quantization": (None,),
    "xpress_topc": (None,),
    "fly_window_size": (None,),
    "fly_entropy_threshold": (None, 0.3),
    "fly_entropy_top_k": (None, 3),
    "target_model_config": (None,),
    "target_parallel_config": (None,),
    "draft_parallel_config": (None,),
}

PER_ENGINE = {  # options that an engine has once, with their defaults
    "num_speculative_tokens_per_batch_size": None,
    "rejection_sample_method": "standard",
    "suffix_decoding_corpus": None,
    "adaptive": None,
    "enable_adaptive_verification": False,
}


@no_type_check  # it checks its values itself, with better messages
@dataclass(frozen=True, kw_only=True)
class SpeculativeConfig:
    """Which drafter and verification rule to use. Names, defaults and values are vLLM's.

    Values may be strings, as on a command line ("3", "False"). They are normalized: ``method`` is
    always set (inferred from ``model`` if absent) and n-gram bounds are filled in (5 and 5, or
    one equal to the other), as is num_speculative_tokens for "suffix" (its tree's depth).

    Beyond vLLM's options:

    - ``suffix_decoding_max_spec_offset`` and ``suffix_decoding_use_tree_spec`` are Arctic's;
      ``suffix_decoding_max_cached_tokens`` and ``suffix_decoding_corpus``, a file of responses to
      start from, are specjax's. With ``suffix_decoding_max_cached_requests`` 0 requests share
      nothing but that file.
    - ``draft_sample_method`` "coupled": the draft model samples with the target's noise, so the
      text cannot change. ``use_heterogeneous_vocab`` works with every draft_sample_method, in
      vLLM with "greedy" only.
    - ``rejection_sample_method`` "typical" (older vLLM, with its names and defaults of
      ``posterior_threshold`` and ``posterior_alpha``) and "entropy" (vllm-ascend, likewise).
    - ``tree``, {"depth", "top_k", "num_nodes"}: the likeliest nodes of each round (EAGLE-2).
      With a tree num_speculative_tokens counts its nodes, as in vLLM, and need not be given.
    - ``draft_confidence_threshold``: draft tokens are not verified whose path is less likely, by
      the drafter's probabilities or DSpark's confidence head. ``adaptive``: K by what past rounds
      have shown (`AdaptiveConfig`). vLLM's ``enable_adaptive_verification``, how much of a batch's
      drafts to verify by measured costs, is ``adaptive`` "throughput_aware" here.
    - ``method`` "custom_class" with ``model`` "package.module:factory", or the name of an entry
      point in the group "specjax.drafters": a drafter of your own, built by that function
      (``core.types.DrafterFactory``). ``drafter_options`` are its further arguments.
    - ``fallback``, a speculative_config: what drafts in rows where this one finds nothing.
    - ``speculative_config``, of a draft model: how it speculates itself, to draft faster.

    Raises:
        ValueError: a value is wrong, contradicts another one, or is not supported.

    >>> config = SpeculativeConfig.from_dict({"method": "ngram", "num_speculative_tokens": "3"})
    >>> config.num_speculative_tokens, config.prompt_lookup_max
    (3, 5)
    """

    num_speculative_tokens: int
    model: str | None = None
    method: str | None = None
    draft_tensor_parallel_size: int | None = None
    max_model_len: int | None = None
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    use_heterogeneous_vocab: bool = False
    num_speculative_tokens_per_batch_size: Sequence[Sequence[int]] | None = None
    suffix_decoding_max_tree_depth: int = 24
    suffix_decoding_max_cached_requests: int = 10000
    suffix_decoding_max_spec_factor: float = 1.0
    suffix_decoding_max_spec_offset: float = 0.0
    suffix_decoding_min_token_prob: float = 0.1
    suffix_decoding_use_tree_spec: bool = False
    suffix_decoding_max_cached_tokens: int = 65536
    suffix_decoding_corpus: str | None = None
    rejection_sample_method: str = "standard"
    synthetic_acceptance_rates: Sequence[float] | None = None
    synthetic_acceptance_length: float | None = None
    posterior_threshold: float | None = None
    posterior_alpha: float | None = None
    draft_sample_method: str = "greedy"
    parallel_drafting: bool = False
    dspark_draft_topk: int | None = None
    draft_confidence_threshold: float = 0.0
    adaptive: Any = None  # kept as an AdaptiveConfig
    enable_adaptive_verification: bool = False
    speculative_token_tree: Any = None  # the text, or the list it means; kept as vLLM's text
    tree: Any = None  # kept as a Tree
    disable_padded_drafter_batch: bool = False
    draft_model_config: Mapping[str, Any] | None = field(default=None, hash=False)
    drafter_options: Mapping[str, Any] | None = field(default=None, hash=False)
    fallback: Any = None  # kept as a SpeculativeConfig, as is the next
    speculative_config: Any = None

    def __post_init__(self):
        for one in fields(self):
            value = getattr(self, one.name)
            if value is None and one.default is not MISSING:
                value = one.default
            if value is not None:
                value = parse_value(one.name, kind_of(one.type), value)
            object.__setattr__(self, one.name, value)
        self._find_entry_point()
        object.__setattr__(self, "method", resolve_method(self.method, self.model))
        if self.method == custom.METHOD:
            custom.check_path(self.model)
        if self.method == "eagle3" and drafts_in_parallel(self.model):
            object.__setattr__(self, "parallel_drafting", True)
        self._complete_tree()
        if self.method == "suffix":
            self._complete_suffix()
        elif self.num_speculative_tokens is None and self.model is not None:
            depth = read_n_predict(self.model, self.method)
            object.__setattr__(self, "num_speculative_tokens", depth)
        self._check_numbers()
        if self.method == "ngram":
            self._complete_ngram()
        elif self.method == extraction.METHOD:
            self._complete_extraction()
        elif self.model is None and self.method != "mtp":  # whose layers are the target's
            what = "draft model" if self.method == "draft_model" else "head"
            raise ValueError(
                "num_speculative_tokens was provided but without speculative model: "
                f"method={self.method!r} needs model=, the folder of the {what}."
            )
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {choices}, got {getattr(self, name)!r}.")
        self._check_schedule()
        self._complete_rule()
        self._check_method()
        self._complete_adaptive()
        self._complete_parts()

    @classmethod
    def from_dict(
        cls,
        config: "Mapping[str, Any] | str | SpeculativeConfig",
        target: Path | None = None,
    ) -> "SpeculativeConfig":
        """Return the config of a mapping or its JSON text; a `SpeculativeConfig` as it is.

        Options without effect here (`INERT`) are accepted with one UserWarning. Where
        num_speculative_tokens is missing it is read from the head's config.json; MTP layers
        without ``model`` are in the folder ``target``.

        Raises:
            ValueError: not JSON, not a mapping, an unknown key (the message names the nearest
                valid one), or a wrong value.
        """
        if isinstance(config, cls):
            return config
        config = read_mapping("speculative_config", config)
        known = [one.name for one in fields(cls)]
        if config.get("tensor_parallel_size") is not None:
            raise ValueError(
                "'tensor_parallel_size' is not a valid argument in the speculative_config. "
                "Please pass 'draft_tensor_parallel_size' instead."
            )
        valid = (*known, *INERT, *ONLY_OFF, "tensor_parallel_size")
        for key in config:
            if key not in valid:
                raise ValueError(f"unknown speculative_config key {key!r}.{suggest(key, valid)}")
        given = {key: value for key, value in config.items() if key in known}
        depth = given.get("num_speculative_tokens")
        if depth is None and given.get("model") is None and target is not None:
            depth = read_n_predict(str(target), given.get("method"))
        result = cls(**{**given, "num_speculative_tokens": depth})
        for key, off in ONLY_OFF.items():
            if config.get(key) not in off:
                raise ValueError(
                    f"speculative_config option {key}={config[key]!r} is not in this version of "
                    "specjax: remove it."
                )
        warn_inert("speculative_config options", [key for key in config if key in INERT])
        return result

    @property
    def head_kind(self) -> str:
        """Return the kind of head: the method, but for P-EAGLE, an EAGLE-3 head that vLLM's
        ``parallel_drafting`` marks.
        """
        at_once = self.method == "eagle3" and self.parallel_drafting
        return "peagle" if at_once else str(self.method)

    @property
    def layers(self) -> tuple[int, ...]:
        """Return the layers that "extract_hidden_states" saves, ascending; () for any other."""
        given = self.draft_model_config
        return () if given is None else extraction.read_layers(given)

    def check_tensor_parallel(self, tensor_parallel_size: int) -> None:
        """Check the draft's tensor parallelism against the target's.

        Raises:
            ValueError: it is neither 1 nor ``tensor_parallel_size``.
        """
        size = self.draft_tensor_parallel_size
        if size not in (None, 1, tensor_parallel_size):
            raise ValueError(
                f"draft_tensor_parallel_size={size} cannot be other value than 1 or target model "
                f"tensor_parallel_size ({tensor_parallel_size}): set it to 1."
            )

    def _check_numbers(self):
        if self.num_speculative_tokens is None:
            raise ValueError(
                "num_speculative_tokens must be provided with speculative model unless its "
                "config.json has n_predict: add it to the speculative_config."
            )
        if self.num_speculative_tokens <= 0:
            raise ValueError(
                "Expected num_speculative_tokens to be greater than zero "
                f"({self.num_speculative_tokens})."
            )
        for name, least in AT_LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ValueError(f"{name}={value} must be >= {least}.")
        if self.suffix_decoding_min_token_prob > 1:
            raise ValueError(
                f"suffix_decoding_min_token_prob={self.suffix_decoding_min_token_prob} "
                "must be in [0, 1]."
            )
        if self.draft_confidence_threshold >= 1:
            raise ValueError(
                f"draft_confidence_threshold={self.draft_confidence_threshold} must be below 1."
            )

    def _complete_ngram(self):
        if self.model not in (None, "ngram", "[ngram]"):
            raise ValueError(
                f"method='ngram' takes no draft model, got model={self.model!r}: "
                "remove it, or use method='draft_model'."
            )
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        low, high = low or high or 5, high or low or 5
        if low > high:
            raise ValueError(f"prompt_lookup_min={low} must be <= prompt_lookup_max={high}.")
        for name, value in (("prompt_lookup_min", low), ("prompt_lookup_max", high)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "model", "ngram")

    def _complete_suffix(self):
        if self.model not in (None, "suffix"):
            raise ValueError(
                f"method='suffix' takes no draft model, got model={self.model!r}: "
                "remove it, or use method='draft_model'."
            )
        object.__setattr__(self, "model", "suffix")
        if self.num_speculative_tokens is None:
            depth = self.suffix_decoding_max_tree_depth
            object.__setattr__(self, "num_speculative_tokens", depth)

    def _complete_tree(self):
        """Read the draft tree, if there is one, and count its nodes."""
        given = {
            name: getattr(self, name)
            for name in ("speculative_token_tree", "tree")
            if getattr(self, name) is not None
        }
        if not given:
            return
        if len(given) > 1:
            raise ValueError("speculative_token_tree and tree are two trees: remove one.")
        ((name, value),) = given.items()
        if self.method in (*MODEL_FREE, custom.METHOD):
            why = "drafts no trees" if self.method in MODEL_FREE else "shapes its drafts itself"
            raise ValueError(
                f"method={self.method!r} {why}: remove {name}, or use one of "
                f"{('draft_model', *HEAD_METHODS)}."
            )
        tree = read_sizes(value) if name == "tree" else read_paths(value)
        object.__setattr__(self, name, tree if name == "tree" else to_text(tree))
        if self.num_speculative_tokens not in (None, tree.num_nodes):
            raise ValueError(
                f"num_speculative_tokens={self.num_speculative_tokens}, but {name} has "
                f"{tree.num_nodes} nodes: leave it out."
            )
        object.__setattr__(self, "num_speculative_tokens", tree.num_nodes)

    @property
    def shape(self) -> Tree | int:
        """Return the shape of a draft: a tree, or K for a chain."""
        if self.speculative_token_tree is not None:
            return read_paths(self.speculative_token_tree)
        return self.num_speculative_tokens if self.tree is None else self.tree

    @property
    def depth(self) -> int:
        """Return K, the most tokens that one round can accept."""
        own = self.shape if isinstance(self.shape, int) else self.shape.depth
        return own if self.fallback is None else max(own, self.fallback.depth)

    @property
    def name(self) -> str:
        """Return the method, and the one of its fallback."""
        own = str(self.method)
        return own if self.fallback is None else f"{own}, then {self.fallback.name}"

    @property
    def alone(self) -> "SpeculativeConfig":
        """Return the config without its fallback."""
        config = copy(self)
        object.__setattr__(config, "fallback", None)
        return config

    @property
    def samples(self) -> bool:
        """Return whether draft tokens are sampled, so that a ratio rule verifies them."""
        own = self.method not in MODEL_FREE and self.draft_sample_method == "probabilistic"
        return own or (self.fallback is not None and self.fallback.samples)

    def name_depth(self) -> str:
        """Return the depth and the option that sets it, for a message."""
        is_chain = isinstance(self.shape, int)
        what = "num_speculative_tokens" if is_chain else "the depth of the draft tree"
        return f"{what}={self.depth}"

    def _complete_extraction(self):
        if self.model not in (None, extraction.METHOD):
            raise ValueError(
                f"method={extraction.METHOD!r} takes no draft model, got model={self.model!r}: "
                "remove it."
            )
        object.__setattr__(self, "model", extraction.METHOD)
        extraction.check_options(
            self.num_speculative_tokens, self.draft_sample_method, self.rejection_sample_method
        )
        if self.disable_padded_drafter_batch:
            raise ValueError(
                f"disable_padded_drafter_batch is not supported with {extraction.METHOD} method."
            )
        layers = extraction.read_layers(self.draft_model_config)
        object.__setattr__(self, "draft_model_config", {"hf_config": {extraction.IDS: layers}})

    def _check_schedule(self):
        """Check [[low, high, k], ...]: batch sizes low .. high draft k tokens."""
        schedule, previous = self.num_speculative_tokens_per_batch_size, 0
        if schedule is not None and isinstance(self.shape, Tree):
            raise ValueError(
                "num_speculative_tokens_per_batch_size cuts chains, and a draft tree is given: "
                "remove one of them."
            )
        for entry in schedule or ():
            good = len(entry) == 3 and previous < entry[0] <= entry[1]
            if not good or not 0 <= entry[2] <= self.num_speculative_tokens:
                raise ValueError(
                    "num_speculative_tokens_per_batch_size needs [low, high, k] entries with "
                    f"increasing batch sizes 1 <= low <= high and "
                    f"0 <= k <= num_speculative_tokens={self.num_speculative_tokens}, "
                    f"got {list(entry)}."
                )
            previous = entry[1]
        if schedule is not None and (not schedule or schedule[0][0] != 1):
            raise ValueError(
                "num_speculative_tokens_per_batch_size must not be empty, and its first range "
                f"must start at 1, got {[list(entry) for entry in schedule]}."
            )

    def _complete_rule(self):
        """Check the options of the verification rule and fill them in."""
        rule, rates = self.rejection_sample_method, self.synthetic_acceptance_rates
        length, depth = self.synthetic_acceptance_length, self.num_speculative_tokens
        threshold, alpha = posterior(rule, self.posterior_threshold, self.posterior_alpha)
        for name, value in (
            ("synthetic_acceptance_rates", synthetic_rates(rule, rates, length, depth)),
            ("synthetic_acceptance_length", None),
            ("posterior_threshold", threshold),
            ("posterior_alpha", alpha),
        ):
            object.__setattr__(self, name, value)

    def _check_method(self):
        if self.parallel_drafting and self.method not in (*PARALLEL, *AT_ONCE):
            raise ValueError(
                f"parallel_drafting works with method {' or '.join(map(repr, PARALLEL))}, got "
                f"{self.method!r}: remove it."
            )
        if self.parallel_drafting and self.use_heterogeneous_vocab:
            raise ValueError(
                "parallel_drafting needs the mask token of a draft model of the target's "
                "vocabulary, and use_heterogeneous_vocab is given: remove one of them."
            )
        if self.dspark_draft_topk is not None and self.method != "dspark":
            raise ValueError("dspark_draft_topk only works with method='dspark': remove it.")
        if self.use_heterogeneous_vocab and self.method != "draft_model":
            raise ValueError("use_heterogeneous_vocab only works with method='draft_model'.")
        if self.draft_model_config is not None and self.method != extraction.METHOD:
            raise ValueError(
                f"draft_model_config only works with method={extraction.METHOD!r}, got "
                f"{dict(self.draft_model_config)!r}: remove it."
            )
        if self.drafter_options is not None and self.method != custom.METHOD:
            raise ValueError(
                f"drafter_options only works with method={custom.METHOD!r}, got "
                f"{dict(self.drafter_options)!r}: remove it."
            )

    def _complete_adaptive(self):
        """Read the adaptive policy, and check it against the other options."""
        if self.draft_confidence_threshold and self.method in (*MODEL_FREE, custom.METHOD):
            raise ValueError(
                f"draft_confidence_threshold needs the probabilities of a draft model or head, and "
                f"method={self.method!r} has none: remove it."
            )
        if self.enable_adaptive_verification:
            if self.method in (*MODEL_FREE, custom.METHOD):
                raise ValueError(
                    "enable_adaptive_verification needs a draft model or head, as in vLLM, got "
                    f"method={self.method!r}: set adaptive='throughput_aware', which does the same."
                )
            given = AdaptiveConfig.read(self.adaptive or THROUGHPUT)
            if given.strategy != THROUGHPUT:
                raise ValueError(
                    f"enable_adaptive_verification is adaptive={THROUGHPUT!r}, and strategy "
                    f"{given.strategy!r} is given: remove one."
                )
            object.__setattr__(self, "adaptive", given)
        if self.adaptive is None:
            return
        adaptive = AdaptiveConfig.read(self.adaptive)
        object.__setattr__(self, "adaptive", adaptive)
        if self.method == extraction.METHOD:
            raise ValueError(f"adaptive does not go with method={self.method!r}: remove it.")
        if self.num_speculative_tokens_per_batch_size is not None:
            raise ValueError(
                "num_speculative_tokens_per_batch_size and adaptive both choose K: remove one."
            )
        if adaptive.strategy in OF_BATCH:
            if isinstance(self.shape, Tree):
                raise ValueError(
                    f"adaptive: strategy {adaptive.strategy!r} cuts chains, and a draft tree is "
                    "given: remove one of them, or use strategy 'request'."
                )
            adaptive.policy(self.num_speculative_tokens, 1)

    def _find_entry_point(self):
        """Replace a method that an installed package adds by its import path."""
        path = None if self.method in (None, *METHODS) else custom.entry_point_path(self.method)
        if path is None:
            return
        if self.model is not None:
            raise ValueError(
                f"method={self.method!r} is the entry point {path}, and takes no model, got "
                f"{self.model!r}: remove it, or set drafter_options."
            )
        object.__setattr__(self, "method", custom.METHOD)
        object.__setattr__(self, "model", path)

    def _complete_parts(self):
        """Read the configs of further drafters: the fallback, and a draft model's own."""
        for name in ("fallback", "speculative_config"):
            given = getattr(self, name)
            if given is None:
                continue
            part = SpeculativeConfig.from_dict(given)
            for option in PER_ENGINE:
                if getattr(part, option) != PER_ENGINE[option]:
                    raise ValueError(
                        f"{option}={getattr(part, option)!r} inside {name}: it belongs to the "
                        "speculative_config around it."
                    )
            if part.method == extraction.METHOD or self.method == extraction.METHOD:
                raise ValueError(f"{name} does not go with method={extraction.METHOD!r}.")
            object.__setattr__(self, name, part)
        if self.fallback is not None and self.fallback.method == "suffix":
            raise ValueError(
                "method='suffix' shares responses, and only the first drafter can: put it first, "
                "with the other one as its fallback."
            )
        if self.fallback is not None and self.rejection_sample_method == "synthetic":
            raise ValueError(
                "rejection_sample_method='synthetic' accepts at the rates of one drafter, and "
                "there is a fallback: remove one of them."
            )
        if self.speculative_config is not None:
            if self.draft_confidence_threshold:
                raise ValueError(
                    "draft_confidence_threshold does not go with a draft model that itself "
                    "speculates: remove one of them."
                )
            self._check_hierarchical(self.speculative_config)

    def _check_hierarchical(self, own: "SpeculativeConfig"):
        """Check the config of a draft model that itself speculates."""
        if self.method != "draft_model" or self.use_heterogeneous_vocab:
            raise ValueError(
                "speculative_config inside a speculative_config is how the draft model speculates: "
                f"it needs method='draft_model' of the target's vocabulary, got {self.method!r}."
            )
        if isinstance(self.shape, Tree) or self.draft_sample_method != "greedy":
            raise ValueError(
                "a draft model that itself speculates drafts a greedy chain: remove the tree, and "
                f"draft_sample_method={self.draft_sample_method!r}."
            )
        if own.samples or (own.method == "suffix" and own.suffix_decoding_max_cached_requests):
            raise ValueError(
                "a draft model's own drafter neither samples nor shares responses: set "
                "draft_sample_method='greedy' and suffix_decoding_max_cached_requests=0 there."
            )

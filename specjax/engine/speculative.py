"""What the user asks of speculation: vLLM's `speculative_config`."""

import difflib
import json
import math
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, no_type_check

from specjax.bundled import BUNDLED
from specjax.config import HEAD_METHODS
from specjax.drafters.tree import Tree
from specjax.engine import extraction
from specjax.engine.rule_options import RULES, posterior, synthetic_rates
from specjax.engine.tree_options import read_paths, read_sizes, to_text
from specjax.files import read_json_object

MODEL_FREE = ("ngram", "suffix", extraction.METHOD)
METHODS = (*MODEL_FREE, "draft_model", *HEAD_METHODS)
LATER_METHODS = ("custom_class", "ngram_gpu")  # known by name, refused in this version
CHOICES = {
    "rejection_sample_method": RULES,
    "draft_sample_method": ("greedy", "probabilistic", "coupled"),
}
AT_LEAST = {  # smallest value of each number that has one
    "draft_tensor_parallel_size": 1, "max_model_len": 1, "prompt_lookup_max": 1,
    "prompt_lookup_min": 1, "suffix_decoding_max_tree_depth": 1,
    "suffix_decoding_max_cached_requests": 0, "suffix_decoding_max_spec_factor": 0,
    "suffix_decoding_max_cached_tokens": 1,
    "suffix_decoding_min_token_prob": 0, "posterior_alpha": 0,
}  # fmt: skip

# Options of a speculative_config that cannot change what specjax does.
INERT = (
    "disable_padded_drafter_batch", "enforce_eager", "use_local_argmax_reduction", "moe_backend",
    "attention_backend", "revision", "code_revision", "draft_load_config",
)  # fmt: skip
# Options that would change it, with the values that ask for nothing.
ONLY_OFF = {
    "quantization": (None,),
    "parallel_drafting": (None, False),
    "kv_cache_dtype": (None, "auto"),
    "enable_adaptive_verification": (None, False),
}


@no_type_check  # it checks its values itself, and says what is wrong with them
@dataclass(frozen=True, kw_only=True)
class SpeculativeConfig:
    """Choose the drafter and the verification rule. Names, defaults and words are vLLM's.

    Values may be strings, as a command line gives them ("3", "False"). What is read back is
    normalized: ``method`` is always set (inferred from ``model`` if absent) and n-gram bounds
    are filled in (5 and 5, or one equal to the other), as is num_speculative_tokens for "suffix"
    (its tree's depth). ``suffix_decoding_max_spec_offset`` and ``..._use_tree_spec`` are Arctic's,
    not vLLM's; ``..._max_cached_tokens`` and ``..._corpus``, a file to start from, are specjax's
    own. ``..._max_cached_requests`` 0 keeps requests apart: then such a file is all they share.
    ``draft_sample_method`` "coupled" is specjax's own: the draft model samples with the
    target's noise, so the text cannot change.
    ``use_heterogeneous_vocab`` goes with each of them, where vLLM's is for "greedy" only.
    So are the rejection_sample_methods "typical" (older vLLM's, with its names and defaults of
    ``posterior_threshold`` and ``posterior_alpha``) and "entropy" (vllm-ascend's, likewise),
    and ``tree``, {"depth", "top_k", "num_nodes"}: the likeliest nodes of each round (EAGLE-2).
    With a tree num_speculative_tokens counts its nodes, as in vLLM, and need not be given.

    Raises:
        ValueError: a value is wrong, contradicts another one, or is not in this version.
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
    speculative_token_tree: Any = None  # the text, or the list it means; kept as vLLM's text
    tree: Any = None  # kept as a Tree
    disable_padded_drafter_batch: bool = False
    draft_model_config: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self):
        for one in fields(self):
            value = getattr(self, one.name)
            if value is None and one.default is not MISSING:
                value = one.default
            if value is not None:
                value = _parse(one.name, _kind(one.type), value)
            object.__setattr__(self, one.name, value)
        object.__setattr__(self, "method", _resolve_method(self.method, self.model))
        self._complete_tree()
        if self.method == "suffix":
            self._complete_suffix()
        elif self.num_speculative_tokens is None and self.model is not None:
            depth = predicted(self.model, self.method)
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
        self._refuse_what_is_missing()

    @classmethod
    def from_dict(
        cls,
        config: "Mapping[str, Any] | str | SpeculativeConfig",
        target: Path | None = None,
    ) -> "SpeculativeConfig":
        """Read a `speculative_config`: a mapping, its JSON text, or the thing itself.

        Options without effect here (`INERT`) are accepted with one UserWarning. Where
        num_speculative_tokens is missing it is what the head's config.json says it predicts;
        MTP layers that come without a model are part of the ``target``, a folder.

        Raises:
            ValueError: not JSON, not a mapping, an unknown key (the message names the nearest
                valid one), or whatever the constructor finds.
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
            depth = predicted(str(target), given.get("method"))
        result = cls(**{**given, "num_speculative_tokens": depth})
        for key, off in ONLY_OFF.items():
            if config.get(key) not in off:
                raise ValueError(
                    f"speculative_config option {key}={config[key]!r} is not in this version of "
                    f"specjax: remove it."
                )
        warn_inert("speculative_config options", [key for key in config if key in INERT])
        return result

    @property
    def layers(self) -> tuple[int, ...]:
        """Return the layers that "extract_hidden_states" saves, ascending; () for any other."""
        said = self.draft_model_config
        return () if said is None else extraction.read_layers(said)

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
        if self.method in MODEL_FREE:
            raise ValueError(
                f"method={self.method!r} drafts no trees: remove {name}, or use one of "
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
        """What is drafted: a tree, or K for a chain."""
        if self.speculative_token_tree is not None:
            return read_paths(self.speculative_token_tree)
        return self.num_speculative_tokens if self.tree is None else self.tree

    @property
    def depth(self) -> int:
        """K, the most tokens that one round can accept."""
        return self.shape if isinstance(self.shape, int) else self.shape.depth

    def name_depth(self) -> str:
        """Say, for a message, where the depth comes from."""
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

    def _refuse_what_is_missing(self):
        if self.use_heterogeneous_vocab and self.method != "draft_model":
            raise ValueError("use_heterogeneous_vocab only works with method='draft_model'.")
        if self.draft_model_config is not None and self.method != extraction.METHOD:
            raise ValueError(
                f"draft_model_config only works with method={extraction.METHOD!r}, got "
                f"{dict(self.draft_model_config)!r}: remove it."
            )


def draft_facts(model: str) -> dict[str, Any]:
    """Return a draft folder's config.json; nothing if ``model`` is no folder with one."""
    path = Path(BUNDLED.get(model, model)) / "config.json"
    return read_json_object(path) if path.is_file() else {}


def read_mapping(what: str, config: Any) -> Mapping[str, Any]:
    """Return options given as a mapping or as its JSON text.

    Raises ValueError, naming ``what`` they are, if they are neither.
    """
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except json.JSONDecodeError as error:
            raise ValueError(f"{what} is not valid JSON: {error}.") from None
    if not isinstance(config, Mapping):
        raise ValueError(f"{what} must be a mapping of options, got {config!r}.")
    return config


def infer_method(model: str) -> str:
    """Infer the method from a draft folder: its config.json first, then vLLM's naming rule.

    A `model` that is no folder, or whose config.json says nothing special, is a draft model.
    """
    config = draft_facts(model)
    kind = str(config.get("model_type") or "")
    architectures = " ".join(str(name) for name in config.get("architectures") or ())
    if kind == "medusa" or "Medusa" in architectures:
        return "medusa"
    if kind == "mlp_speculator" or "MLPSpeculator" in architectures:
        return "mlp_speculator"
    if kind == "eagle3" or "Eagle3" in architectures:
        return "eagle3"
    if kind == "eagle" or "Eagle" in architectures:
        return "eagle"
    if kind.endswith("mtp") or "MTP" in architectures or config.get("num_nextn_predict_layers"):
        return "mtp"
    name = Path(model).name.lower()
    if "eagle3" in name:
        return "eagle3"
    return "eagle" if "eagle-" in name else "draft_model"


def predicted(model: str, method: str | None) -> int | None:
    """Return how many tokens a head was trained to predict, if its config.json says so.

    It is `n_predict`, or the number of MTP layers.
    """
    kind = method or infer_method(model)
    key = "num_nextn_predict_layers" if kind.endswith("mtp") else "n_predict"
    value = draft_facts(model).get(key) if kind.endswith(HEAD_METHODS) else None
    return value if isinstance(value, int) and value > 0 else None


def suggest(word: Any, valid: Collection[str]) -> str:
    """Say which valid word is nearest to a wrong one, or which words there are."""
    close = difflib.get_close_matches(str(word), valid, n=1)
    return f" Did you mean {close[0]!r}?" if close else f" Valid: {', '.join(valid)}."


def warn_inert(what: str, names: Sequence[str]) -> None:
    """Name what has no effect in one UserWarning, for the caller of the caller's caller."""
    if names:
        warnings.warn(f"{what} without effect in specjax: {', '.join(names)}", stacklevel=4)


def _resolve_method(method: str | None, model: str | None) -> str:
    if method is None and model is None:
        raise ValueError(
            "num_speculative_tokens was provided but without speculative model: "
            f"set method to one of {METHODS}, or model to a draft model."
        )
    if method is None:
        method = "ngram" if model in ("ngram", "[ngram]") else infer_method(str(model))
    method = "ngram" if method == "[ngram]" else method
    method = "mtp" if method.endswith("_mtp") else method
    if method in LATER_METHODS:
        raise ValueError(
            f"speculative method {method!r} is not in this version of specjax: "
            f"use one of {METHODS}."
        )
    if method not in METHODS:
        nearest = suggest(method, METHODS)
        raise ValueError(f"Unsupported speculative method: {method!r}.{nearest}")
    return method


KINDS = {
    "int": "an integer",
    "float": "a number",
    "bool": "True or False",
    "str": "a string",
    "Sequence[float]": "a list of numbers",
    "Sequence[Sequence[int]]": "a list of [low, high, num_speculative_tokens]",
    "Mapping[str, Any]": "a mapping",
}


def _kind(annotation: Any) -> str:
    """Name a field's type without its None: "int", "Sequence[float]", ..."""
    name = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return name.replace("collections.abc.", "").removesuffix(" | None")


def _parse(name: str, kind: str, value: Any) -> Any:
    """Bring a value, perhaps a command line's string, to one of `KINDS`."""
    if kind == "Any":
        return value
    try:
        if kind.startswith("Sequence"):
            items = json.loads(value) if isinstance(value, str) else value
            item_kind = kind.removeprefix("Sequence[")[:-1]
            return tuple(_parse(name, item_kind, item) for item in items)
        if kind.startswith("Mapping"):
            return dict(read_mapping(name, value))
        if kind == "bool":
            return {"true": True, "1": True, "false": False, "0": False}[str(value).lower()]
        if kind == "str":
            return str(os.fspath(value))
        if kind in ("int", "float") and not isinstance(value, bool):
            number = float(value)
            if kind == "float" and math.isfinite(number):
                return number
            if kind == "int" and number == int(number):
                return int(number)
    except (TypeError, ValueError, OverflowError, KeyError):
        pass
    raise ValueError(f"{name} must be {KINDS[kind]}, got {value!r}.")

"""vLLM's sampling parameters, validated once."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Integral, Real
from typing import Any, no_type_check

from specjax.engine.options.structured_outputs import StructuredOutputsParams

GREEDY_BELOW = 1e-5  # temperatures under this are greedy, as in vLLM
EXTREME = 1e6  # beyond it float32 arithmetic would let forbidden tokens through
MAX_LOGPROBS = 20  # vLLM's default max_logprobs
MAX_LOGPROB_TOKEN_IDS = 128  # vLLM's
MAX_N = 16384  # vLLM's default VLLM_MAX_N_SEQUENCES


@no_type_check  # it checks its values itself, with better messages
@dataclass(frozen=True)
class SamplingParams:
    """How one request is sampled and when it stops. Names and defaults are vLLM's.

    Values are normalized: ``temperature`` under 1e-5 is 0.0 (greedy, which also
    switches ``top_p``, ``top_k`` and ``min_p`` off), ``top_k`` -1 is 0, sequences are tuples
    (``stop``, ``stop_token_ids`` and ``bad_words`` never None), and a negative ``seed`` is its
    64-bit two's complement, so it lies in 0 .. 2**64 - 1. Sample i of ``n`` uses seed + i.

    ``min_tokens`` counts tokens before an EOS, a stop token or a stop string may end the text.
    ``structured_outputs`` gives the text a form, which it has unless ``max_tokens`` or a stop
    string cuts it; where the form leaves nothing but the end, ``min_tokens`` does not delay it.
    ``logprobs`` and ``prompt_logprobs`` -1 ask for the whole vocabulary, where the engine's
    ``max_logprobs`` allows it. ``logprob_token_ids`` asks for the log probabilities of these
    tokens, and of the token itself, in place of the ``logprobs`` likeliest. ``max_tokens`` None
    means as many as the context holds. ``extra_args`` may hold ``num_speculative_tokens``, the most
    tokens that a round drafts for this request (0: none, plain decoding), and
    ``kv_transfer_params`` for extract_hidden_states (``engine.connector``).

    Raises:
        ValueError: a value is of the wrong type or outside its range; the message has both.

    >>> SamplingParams(temperature=0.0, top_p=0.9, stop="END").top_p
    1.0
    """

    n: int = 1
    _: KW_ONLY
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: Sequence[str] | None = None  # one string or several
    stop_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: Sequence[int] | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    allowed_token_ids: Sequence[int] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    extra_args: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self):
        self._normalize()
        _require(1 <= self.n <= MAX_N, f"n must be at least 1 and at most {MAX_N}, got {self.n}.")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(-2.0 <= value <= 2.0, f"{name} must be in [-2, 2], got {value}.")
        _require(
            self.repetition_penalty > 0.0,
            f"repetition_penalty must be greater than zero, got {self.repetition_penalty}.",
        )
        _require(
            self.temperature >= 0.0, f"temperature must be non-negative, got {self.temperature}."
        )
        for name in ("temperature", "repetition_penalty"):
            value = getattr(self, name)
            _require(value <= EXTREME, f"{name} must be at most {EXTREME:g}, got {value:g}.")
        _require(
            self.repetition_penalty >= 1 / EXTREME,
            f"repetition_penalty must be at least {1 / EXTREME:g}, got {self.repetition_penalty}.",
        )
        for token, bias in (self.logit_bias or {}).items():
            good = abs(bias) <= EXTREME
            _require(good, f"logit_bias[{token}] must be within {EXTREME:g} of 0, got {bias:g}.")
        _require(0.0 < self.top_p <= 1.0, f"top_p must be in (0, 1], got {self.top_p}.")
        _require(self.top_k >= -1, f"top_k must be 0 (disable), or at least 1, got {self.top_k}.")
        _require(0.0 <= self.min_p <= 1.0, f"min_p must be in [0, 1], got {self.min_p}.")
        _require(
            self.max_tokens is None or self.max_tokens >= 1,
            f"max_tokens must be at least 1, got {self.max_tokens}.",
        )
        _require(
            self.min_tokens >= 0,
            f"min_tokens must be greater than or equal to 0, got {self.min_tokens}.",
        )
        _require(
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            f"min_tokens must be less than or equal to max_tokens={self.max_tokens}, "
            f"got {self.min_tokens}.",
        )
        _require(
            self.seed is None or -(2**63) <= self.seed < 2**64,
            f"seed must fit 64 bits (-2**63 .. 2**64 - 1), got {self.seed}.",
        )
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            good = value is None or value >= -1
            _require(good, f"{name} must be non-negative or -1, got {value}.")
        _require(
            len(self.logprob_token_ids or ()) <= MAX_LOGPROB_TOKEN_IDS,
            f"Requested logprob_token_ids of length {len(self.logprob_token_ids or ())}, which is "
            f"greater than max allowed: {MAX_LOGPROB_TOKEN_IDS}",
        )
        _require("" not in (self.stop or ()), "stop cannot contain an empty string.")
        _require(
            self.detokenize or not self.stop,
            "stop strings are only supported when detokenize is True. "
            "Set detokenize=True to use stop.",
        )
        _require(
            "" not in (self.bad_words or ()),
            f"bad_words cannot contain an empty string. Got bad_words={list(self.bad_words or ())}",
        )
        _require(
            self.allowed_token_ids is None or len(self.allowed_token_ids) > 0,
            "allowed_token_ids is not None and empty: no token could be sampled. "
            "Use None to allow every token.",
        )
        self._canonicalize()

    @property
    def num_speculative_tokens(self) -> int | None:
        """Return the most tokens that a round drafts for this request; None: the engine's K."""
        return (self.extra_args or {}).get("num_speculative_tokens")

    @property
    def num_logprobs(self) -> int | None:
        """Return how many likeliest tokens are scored; 0: the token itself, None: not even that."""
        return 0 if self.logprobs is None and self.logprob_token_ids else self.logprobs

    def check_vocab(self, vocab_size: int) -> None:
        """Check every token id against the vocabulary; JAX would clamp a wrong one silently.

        Raises:
            ValueError: naming the field, the first offending id and ``vocab_size``.
        """
        for name in ("stop_token_ids", "logit_bias", "allowed_token_ids", "logprob_token_ids"):
            for token_id in getattr(self, name) or ():
                if not 0 <= token_id < vocab_size:
                    raise ValueError(
                        f"{name} contains out-of-vocab token id {token_id}: "
                        f"the vocabulary has {vocab_size} tokens, 0 to {vocab_size - 1}."
                    )

    def limit_logprobs(self, vocab_size: int, max_logprobs: int) -> "SamplingParams":
        """Return the parameters with the vocabulary's size in place of -1 in logprobs.

        Raises:
            ValueError: they ask for more log probabilities than ``max_logprobs``.
        """
        found = {}
        for name, kind in (("logprobs", "sample"), ("prompt_logprobs", "prompt")):
            value = getattr(self, name)
            wanted = vocab_size if value == -1 else value or 0
            _require(
                wanted <= max_logprobs,
                f"Requested {kind} logprobs of {wanted}, which is greater than max allowed: "
                f"{max_logprobs}",
            )
            if value == -1:
                found[name] = vocab_size
        return replace(self, **found) if found else self

    def _normalize(self):
        """Convert every field to its plain Python type."""
        for name in ("n", "top_k", "min_tokens"):
            self._set(name, _integer(name, getattr(self, name)))
        for name in ("seed", "max_tokens", "logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            self._set(name, value if value is None else _integer(name, value))
        for name in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
            self._set(name, _number(name, getattr(self, name)))
        for name in ("temperature", "top_p", "min_p"):
            self._set(name, _number(name, getattr(self, name)))
        for name in ("include_stop_str_in_output", "ignore_eos", "detokenize"):
            _boolean(name, getattr(self, name))
        for name in ("skip_special_tokens", "spaces_between_special_tokens"):
            _boolean(name, getattr(self, name))
        self._set(
            "stop", (self.stop,) if isinstance(self.stop, str) else _strings("stop", self.stop)
        )
        self._set("bad_words", _unique(_strings("bad_words", self.bad_words)))
        self._set("stop_token_ids", _unique(_token_ids("stop_token_ids", self.stop_token_ids)))
        for name in ("allowed_token_ids", "logprob_token_ids"):
            if getattr(self, name) is not None:
                self._set(name, _unique(_token_ids(name, getattr(self, name))))
        self._set("logprob_token_ids", self.logprob_token_ids or None)  # [] asks for none
        form = self.structured_outputs
        if form is not None and not isinstance(form, StructuredOutputsParams):
            raise ValueError(
                f"structured_outputs must be StructuredOutputsParams(...), got {form!r}."
            )
        if self.extra_args is not None and not isinstance(self.extra_args, Mapping):
            raise ValueError(f"extra_args must be a mapping, got {self.extra_args!r}.")
        most = self.num_speculative_tokens
        if most is not None:
            good = _integer("num_speculative_tokens", most) >= 0
            _require(good, f"num_speculative_tokens must be at least 0, got {most}.")
        if self.logit_bias is not None:
            self._set("logit_bias", _bias(self.logit_bias))

    def _canonicalize(self):
        """Set equivalent values to the same one, after all have been checked."""
        self._set("top_k", max(self.top_k, 0))
        if self.seed is not None:
            self._set("seed", self.seed % 2**64)
        if self.temperature < GREEDY_BELOW:
            _require(self.n == 1, f"n must be 1 when using greedy sampling, got {self.n}.")
            for name, value in (("temperature", 0.0), ("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
                self._set(name, value)

    def _set(self, name: str, value: Any):
        object.__setattr__(self, name, value)


def _require(fact: bool, message: str):
    if not fact:
        raise ValueError(message)


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name} must be an integer, got {value!r} ({type(value).__name__}).")
    return int(value)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name} must be a number, got {value!r} ({type(value).__name__}).")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    _require(math.isfinite(number), f"{name} must be a finite number, got {value}.")
    return number


def _boolean(name: str, value: Any):
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}.")


def _items(name: str, value: Any, what: str) -> tuple:
    if value is None:
        return ()
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        raise ValueError(f"{name} must be a list of {what}, got {value!r}.")
    return tuple(value)


def _strings(name: str, value: Any) -> tuple[str, ...]:
    items = _items(name, value, "strings")
    for item in items:
        _require(isinstance(item, str), f"{name} must contain only strings, got {item!r}.")
    return items


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    items = _items(name, value, "token ids")
    for item in items:
        wrong = isinstance(item, bool) or not isinstance(item, Integral)
        _require(not wrong, f"{name} must contain only integers, got {item!r}.")
    return tuple(int(item) for item in items)


def _bias(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise ValueError(f"logit_bias must map token ids to numbers, got {value!r}.")
    ids = _token_ids("logit_bias", value.keys())
    return {
        i: _number(f"logit_bias[{i}]", bias) for i, bias in zip(ids, value.values(), strict=True)
    }


def _unique(items: tuple) -> tuple:
    return tuple(dict.fromkeys(items))

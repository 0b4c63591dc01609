"""Check prompts and sampling parameters, once, and turn them into requests."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from specjax.engine.grammar import GrammarCompiler
from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.rows import Request
from specjax.engine.text.tokenizer import Tokenizer

Prompt = str | Mapping[str, Any]


def pair(
    prompts: Any, sampling_params: SamplingParams | Sequence[SamplingParams]
) -> list[tuple[Prompt, SamplingParams]]:
    """Match one or many prompts with one or many parameters.

    Raises ValueError when there are many of both, and not equally many.
    """
    one = isinstance(prompts, str | Mapping) or not hasattr(prompts, "__iter__")
    several = [prompts] if one else list(prompts)
    if isinstance(sampling_params, Mapping | str):
        raise ValueError(f"sampling_params must be SamplingParams, got {sampling_params!r}.")
    if isinstance(sampling_params, SamplingParams):
        sampling_params = [sampling_params] * len(several)
    if len(sampling_params) != len(several):
        raise ValueError(
            f"got {len(several)} prompts and {len(sampling_params)} SamplingParams: "
            "give one for all, or one for each."
        )
    return list(zip(several, sampling_params, strict=True))


@dataclass(frozen=True, kw_only=True, eq=False)
class InputProcessor:
    """Turns a prompt and its parameters into requests that fit the model.

    Args:
        max_logprobs: the most log probabilities that a request may ask for per token.
        seed: from which requests without a seed of their own derive theirs.
        grammars: compiles ``structured_outputs``.
    """

    tokenizer: Tokenizer
    vocab_size: int
    max_model_len: int
    eos_ids: tuple[int, ...]
    max_logprobs: int
    seed: int
    grammars: GrammarCompiler

    def process(self, ids: Sequence[int], params: SamplingParams, number: int) -> list[Request]:
        """Return one request per sample; sample i of n uses seed + i.

        Args:
            ids: the prompt, as ``prompt_ids`` returned it.
            number: the request's number, from which its seed is derived if it brings none.

        Raises:
            ValueError: the prompt is too long, or the parameters contradict it, each other or the
                model.
        """
        params.check_vocab(self.vocab_size)
        params = params.limit_logprobs(self.vocab_size, self.max_logprobs)
        room = self.max_model_len - len(ids)
        if room < 1:
            raise ValueError(
                f"the prompt has {len(ids)} tokens and max_model_len is {self.max_model_len}: "
                "no room for one output token. Shorten it or raise max_model_len."
            )
        eos = () if params.ignore_eos else self.eos_ids
        stop_ids = tuple(dict.fromkeys((*eos, *(params.stop_token_ids or ()))))
        allowed = params.allowed_token_ids
        if params.min_tokens and allowed is not None and set(allowed) <= set(stop_ids):
            raise ValueError(
                f"min_tokens={params.min_tokens} forbids every one of allowed_token_ids={allowed}: "
                "they all stop the text. Allow another token, or set min_tokens=0."
            )
        form = params.structured_outputs
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        seed = params.seed
        if seed is None:
            name = f"{self.seed}/{number}".encode()
            seed = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")
        request = Request(
            prompt=tuple(ids),
            params=params,
            seed=seed,
            limit=len(ids) + max_tokens,
            stop_ids=stop_ids,
            bad_words=bad_word_ids(self.tokenizer, params.bad_words or ()),
            grammar=None if form is None else self.grammars.compile(form),
        )
        return [request._replace(seed=(seed + i) % 2**64) for i in range(params.n)]

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Return a prompt's token ids.

        Raises:
            ValueError: there are none, or one is outside the vocabulary (JAX would clamp it).
        """
        if isinstance(prompt, Mapping) and "prompt_token_ids" in prompt:
            ids = prompt["prompt_token_ids"]
            if isinstance(ids, str | Mapping) or not hasattr(ids, "__iter__"):
                raise ValueError(f"prompt_token_ids must be a list of token ids, got {ids!r}.")
            ids = list(ids)
        else:
            text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
            if not isinstance(text, str):
                raise ValueError(
                    f"a prompt is a string or {{'prompt_token_ids': [...]}}, got {prompt!r}."
                )
            ids = self.tokenizer.encode(text)
        if not ids:
            raise ValueError("the decoder prompt cannot be empty: give at least one token.")
        for token in ids:
            whole = isinstance(token, Integral) and not isinstance(token, bool)
            if not whole or not 0 <= int(token) < self.vocab_size:
                raise ValueError(
                    f"prompt token id {token!r} is out of vocabulary: the model has "
                    f"{self.vocab_size} tokens, 0 to {self.vocab_size - 1}."
                )
        return [int(token) for token in ids]


def bad_word_ids(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of bad words, as vLLM does.

    Each word is tokenized as it is, and after a space where that differs.
    """
    found = []
    for word in words:
        bare = word.lstrip() or word
        plain = tokenizer.encode(bare, add_special_tokens=False)
        spaced = tokenizer.encode(" " + bare, add_special_tokens=False)
        if not plain:
            raise ValueError(f"bad_words: {word!r} has no tokens.")
        found.append(tuple(plain))
        if spaced[0] != plain[0] and len(spaced) == len(plain):
            found.append(tuple(spaced))
    return tuple(found)

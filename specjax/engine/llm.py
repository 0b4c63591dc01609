"""``LLM``: the offline interface, with vLLM's names."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specjax.engine import loop
from specjax.engine.build import Model, build_engine, check_pair, describe, load
from specjax.engine.device import choose_devices
from specjax.engine.outputs import CompletionOutput, Logprob, RequestOutput, SpecDecodeMetrics
from specjax.engine.params import SamplingParams
from specjax.engine.rows import Request
from specjax.engine.speculative import SpeculativeConfig, drop_engine_only, translate_legacy
from specjax.engine.tokenizer import load_generation_config, load_tokenizer
from specjax.engine.transcript import Transcript
from specjax.metrics import Counter, SpecDecodeCounters, Vector

Prompt = str | Mapping[str, Any]


class LLM:
    """A target model and, if asked, a drafter, ready to complete prompts.

    Args:
        model: a Hugging Face checkpoint folder, or "bundled" (the shipped target).
        speculative_config: vLLM's options as a dict or JSON text; None decodes plainly.
        dtype: "auto" (float32 on CPU), "float32", "bfloat16" or "float16".
        max_model_len: prompt and output together; the model's own limit by default.
        max_num_seqs: how many requests run side by side.
        seed: makes requests without a seed of their own reproducible.
        tensor_parallel_size: devices that share the weights.
        device: "auto", or a jax platform: "cpu", "gpu", "tpu".

    The text never depends on the drafter (same seed, same text), unless
    ``draft_sample_method="probabilistic"`` asks for rejection sampling: then the law is the
    target's and the text is another sample of it.
    """

    def __init__(
        self,
        model: str | Path = "bundled",
        *,
        tokenizer: str | Path | None = None,
        speculative_config: Mapping[str, Any] | str | None = None,
        dtype: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int = 8,
        seed: int = 0,
        tensor_parallel_size: int = 1,
        device: str = "auto",
        quantization: str | None = None,
        **options: Any,
    ):
        legacy = translate_legacy(options)
        drop_engine_only(options, known=())
        if quantization is not None:
            raise ValueError(
                f"quantization={quantization!r} is not supported: pass an unquantized checkpoint."
            )
        if max_num_seqs < 1:
            raise ValueError(f"max_num_seqs must be at least 1, got {max_num_seqs}.")
        mesh = choose_devices(device, tensor_parallel_size)
        given = legacy or speculative_config
        self.speculative_config = None if given is None else SpeculativeConfig.from_dict(given)
        target, draft = self._describe(model, tokenizer, dtype, max_model_len)
        if self.speculative_config is not None:
            self.speculative_config.check_tensor_parallel(tensor_parallel_size)
        own = target.config.max_position_embeddings
        self.max_model_len = own if max_model_len is None else max_model_len
        if not 1 <= self.max_model_len <= own:
            raise ValueError(
                f"max_model_len must be between 1 and the model's {own}, got {max_model_len}."
            )
        self.model_config, self.tokenizer = target.config, target.tokenizer
        self.max_num_seqs, self.seed = max_num_seqs, seed
        self.defaults = load_generation_config(target.folder)
        self.engine = build_engine(target, draft, self.speculative_config)
        self.params = load(target, draft, mesh)
        self.counters = SpecDecodeCounters.zeros(self.engine.drafter.depth)
        self.num_requests = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[RequestOutput]:
        """Complete one or many prompts, in order.

        A prompt is a string or ``{"prompt_token_ids": [...]}``. ``on_progress`` is told
        (finished, all) samples. Raises ValueError for a bad prompt before any work starts.
        """
        number, batch = self.num_requests, self._read(prompts, sampling_params)
        samples: dict[int, tuple[loop.Progress, Transcript]] = {}
        total = sum(len(requests) for _, requests in batch)
        for progress, transcript in self._run([r for _, requests in batch for r in requests]):
            if progress.finish_reason is not None:
                samples[progress.index] = progress, transcript
                if on_progress:
                    on_progress(len(samples), total)
        outputs, first = [], 0
        for prompt, requests in batch:
            mine = [samples[first + i] for i in range(len(requests))]
            first += len(requests)
            outputs.append(self._output(number + len(outputs), prompt, mine))
        return outputs

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[tuple[loop.Progress, Transcript]]:
        """Complete one prompt round by round; yields the same two objects as they grow."""
        ((_, requests),) = self._read(prompt, sampling_params)
        yield from self._run(requests[:1], max_rounds=1)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, through the checkpoint's chat template."""
        if not messages:
            raise ValueError("messages must hold at least one message, got none.")
        several = messages if not isinstance(messages[0], Mapping) else [messages]
        rendered = [
            self.tokenizer.apply_chat_template(
                conversation,
                add_generation_prompt=add_generation_prompt,
                **(chat_template_kwargs or {}),
            )
            for conversation in several
        ]
        ids = [self.tokenizer.encode(text, add_special_tokens=False) for text in rendered]
        prompts = [
            {"prompt": text, "prompt_token_ids": tokens}
            for text, tokens in zip(rendered, ids, strict=True)
        ]
        return self.generate(prompts, sampling_params)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return what the checkpoint's generation_config.json asks for."""
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        return SamplingParams(**{k: self.defaults[k] for k in names if k in self.defaults})

    def get_metrics(self) -> list[Counter | Vector]:
        """Return the speculative counters of all requests so far, under vLLM's names."""
        return self.counters.to_metrics()

    def get_tokenizer(self):
        """Return the tokenizer."""
        return self.tokenizer

    def _describe(
        self, model, tokenizer, dtype: str, max_model_len: int | None
    ) -> tuple[Model, Model | None]:
        """Read what target and draft are, and check that they fit, before any weight."""
        target, draft = describe(model, dtype, max_model_len), None
        if tokenizer is not None:
            target = target._replace(tokenizer=load_tokenizer(tokenizer))
        if target.tokenizer.vocab_size > target.config.vocab_size:
            raise ValueError(
                f"the tokenizer has {target.tokenizer.vocab_size} tokens, the model only "
                f"{target.config.vocab_size}: they do not belong together."
            )
        config = self.speculative_config
        if config is not None and config.model is not None and config.method == "draft_model":
            draft = describe(config.model, dtype, max_model_len)
            check_pair(target, draft)
        return target, draft

    def _read(self, prompts, sampling_params) -> list[tuple[Prompt, list[Request]]]:
        """Validate prompts and parameters and make one request per sample."""
        one = isinstance(prompts, str | Mapping)
        several: list[Prompt] = [prompts] if one else list(prompts)
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        if isinstance(sampling_params, SamplingParams):
            sampling_params = [sampling_params] * len(several)
        if len(sampling_params) != len(several):
            raise ValueError(
                f"got {len(several)} prompts and {len(sampling_params)} SamplingParams: "
                "give one for all, or one for each."
            )
        pairs = zip(several, sampling_params, strict=True)
        batch = [
            (prompt, self._requests(prompt, params, self.num_requests + i))
            for i, (prompt, params) in enumerate(pairs)
        ]
        self.num_requests += len(batch)
        return batch

    def _requests(self, prompt: Prompt, params: SamplingParams, number: int) -> list[Request]:
        ids = self._prompt_ids(prompt)
        vocab_size, room = self.model_config.vocab_size, self.max_model_len - len(ids)
        params.check_vocab(vocab_size)
        if room < 1:
            raise ValueError(
                f"the prompt has {len(ids)} tokens and max_model_len is {self.max_model_len}: "
                "no room for one output token. Shorten it or raise max_model_len."
            )
        eos = () if params.ignore_eos else self._eos_ids()
        stop_ids = tuple(dict.fromkeys((*eos, *(params.stop_token_ids or ()))))
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        seed = params.seed
        if seed is None:
            seed = (self.seed << 40) + (number << 14)  # leaves room for n samples each
        request = Request(
            prompt=tuple(ids),
            params=params,
            seed=seed,
            limit=len(ids) + max_tokens,
            stop_ids=stop_ids,
            bad_words=bad_word_ids(self.tokenizer, params.bad_words or ()),
        )
        return [request._replace(seed=(seed + i) % 2**64) for i in range(params.n)]

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt)
        elif isinstance(prompt, Mapping) and "prompt_token_ids" in prompt:
            ids = list(prompt["prompt_token_ids"])
        elif isinstance(prompt, Mapping) and isinstance(prompt.get("prompt"), str):
            ids = self.tokenizer.encode(prompt["prompt"])
        else:
            raise ValueError(
                f"a prompt is a string or {{'prompt_token_ids': [...]}}, got {prompt!r}."
            )
        if not ids:
            raise ValueError("the prompt is empty: give at least one token.")
        vocab_size = self.model_config.vocab_size
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
                raise ValueError(
                    f"prompt token id {token!r} is out of range: the vocabulary has "
                    f"{vocab_size} tokens, 0 to {vocab_size - 1}."
                )
        return ids

    def _eos_ids(self) -> tuple[int, ...]:
        more = self.defaults.get("eos_token_id", ())
        return tuple(dict.fromkeys((*self.tokenizer.eos_ids, *more)))

    def _run(
        self, requests: list[Request], max_rounds: int = loop.HISTORY
    ) -> Iterator[tuple[loop.Progress, Transcript]]:
        """Drive the loop, keep each request's transcript, and count what was drafted."""
        engine = self.engine._replace(
            num_logprobs=most(request.params.logprobs for request in requests),
            num_prompt_logprobs=most(request.params.prompt_logprobs for request in requests),
        )
        transcripts: dict[int, Transcript] = {}

        def watch(progress: loop.Progress) -> int | None:
            if progress.index not in transcripts:
                transcripts[progress.index] = Transcript(self.tokenizer, progress)
            return transcripts[progress.index].follow(progress)

        if any(request.params.stop for request in requests):
            max_rounds = min(max_rounds, ROUNDS_PER_STOP_CHECK)
        for progress in loop.run(
            engine,
            self.params,
            requests,
            max_num_seqs=self.max_num_seqs,
            watch=watch,
            max_rounds=max_rounds,
        ):
            if progress.finish_reason is not None:
                self.counters = self.counters.add(*steps(progress))
            yield progress, transcripts[progress.index]

    def _output(
        self, request_id: int, prompt: Prompt, samples: list[tuple[loop.Progress, Transcript]]
    ) -> RequestOutput:
        first = samples[0][0]
        ids, num = list(first.request.prompt), first.request.params.prompt_logprobs
        prompt_logprobs = None
        if num is not None:
            prompt_logprobs = [None, *self._logprobs(first.prompt_logprobs, num)]
        return RequestOutput(
            request_id=str(request_id),
            prompt=prompt if isinstance(prompt, str) else prompt.get("prompt"),
            prompt_token_ids=ids,
            prompt_logprobs=prompt_logprobs,
            outputs=[self._completion(i, *sample) for i, sample in enumerate(samples)],
            finished=True,
        )

    def _completion(
        self, index: int, progress: loop.Progress, transcript: Transcript
    ) -> CompletionOutput:
        num = progress.request.params.logprobs
        logprobs = total = None
        if num is not None:
            scored = [token for one in progress.rounds for token in one.logprobs]
            logprobs = self._logprobs(scored, num)
            total = float(sum(values[0] for _, values, _ in scored))
        metrics = None
        if self.speculative_config is not None:
            metrics = SpecDecodeMetrics.from_steps(*steps(progress), self.engine.drafter.depth)
        return CompletionOutput(
            index=index,
            text=transcript.text,
            token_ids=progress.tokens,
            cumulative_logprob=total,
            logprobs=logprobs,
            finish_reason=progress.finish_reason,
            stop_reason=transcript.stop_reason,
            spec_decode_metrics=metrics,
        )

    def _logprobs(self, scored, num: int) -> list[dict[int, Logprob]]:
        """Turn (ids, values, rank) triples into vLLM's mappings: the token, then the best."""
        found = []
        for ids, values, rank in scored:
            ranks = [int(rank), *range(1, num + 1)]
            triples = zip(ids[: num + 1].tolist(), values.tolist(), ranks, strict=False)
            found.append(
                {i: Logprob(v, r, self.tokenizer.decode([i], False)) for i, v, r in triples}
            )
        return found


ROUNDS_PER_STOP_CHECK = 8  # a stop string is seen on the host: look often, waste little


def most(values) -> int | None:
    """Return the largest number that is not None."""
    return max((value for value in values if value is not None), default=None)


def steps(progress: loop.Progress) -> tuple[list[int], list[int]]:
    """Return drafted and accepted counts per speculative step; the first token had none."""
    rounds = progress.rounds[1:]
    return [r.num_drafted for r in rounds], [r.num_accepted for r in rounds]


def bad_word_ids(tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Tokenize bad words as vLLM does: as they are, and after a space where that differs."""
    found = []
    for word in words:
        plain = tokenizer.encode(word.lstrip(), add_special_tokens=False)
        spaced = tokenizer.encode(" " + word.lstrip(), add_special_tokens=False)
        found.append(tuple(plain))
        if spaced[0] != plain[0] and len(spaced) == len(plain):
            found.append(tuple(spaced))
    return tuple(found)

"""``LLM``: the offline interface, with vLLM's names."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from specjax.bundled import resolve
from specjax.engine import intake, loop
from specjax.engine.build import (
    Head,
    Model,
    build_corpus,
    build_engine,
    build_schedule,
    describe,
    describe_draft,
    describe_head,
    load,
)
from specjax.engine.connector import read_connector, transfer_params
from specjax.engine.corpus import follow
from specjax.engine.device import (
    check_divisible,
    choose_devices,
    choose_driver,
    choose_dtype,
    has_own_form,
    inference_form,
    name_platform,
)
from specjax.engine.intake import Prompt
from specjax.engine.invariance import check_batch_invariant
from specjax.engine.legacy import accept_engine_only, translate_legacy
from specjax.engine.outputs import RequestOutput
from specjax.engine.params import SamplingParams
from specjax.engine.plan import HISTORY
from specjax.engine.progress import bar
from specjax.engine.recorder import Recorder
from specjax.engine.report import Sample, request_output, steps
from specjax.engine.rounds import Progress
from specjax.engine.rows import Request
from specjax.engine.speculative import MODEL_FREE, SpeculativeConfig
from specjax.engine.tokenizer import load_generation_config
from specjax.engine.transcript import Transcript
from specjax.metrics import Counter, SpecDecodeCounters, Vector
from specjax.types import Params

ROUNDS_PER_STOP_CHECK = 8  # a stop string is seen on the host: look often, waste little


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
        device: "auto", or a jax platform: "cpu", "gpu", "tpu"; or, by npu_bridge, "npu" (Ascend)
            or "torch-cpu" (the same program in torch, on the CPU).
        kv_transfer_config: where method "extract_hidden_states" saves; each output's
            ``kv_transfer_params["hidden_states_path"]`` then names a file.
        batch_invariant: insist that a request's text and log probabilities are bitwise the same
            for any batch, and with any drafter whose draft_sample_method is not "probabilistic".
            On one CPU they are in any case, so this changes nothing; where they are not (other
            platforms, several devices, latent attention, experts) it is refused. vLLM's word is
            the environment variable ``VLLM_BATCH_INVARIANT=1``.

    The text never depends on the drafter (same seed, same text), unless
    ``draft_sample_method="probabilistic"`` asks for rejection sampling or
    ``rejection_sample_method="block"`` for block verification: then the law is the target's
    and the text is another sample of it. Rules that change the law warn when they are chosen.
    """

    def __init__(
        self,
        model: str | Path = "bundled",
        *,
        tokenizer: str | Path | None = None,
        speculative_config: Mapping[str, Any] | str | SpeculativeConfig | None = None,
        dtype: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int = 8,
        seed: int = 0,
        tensor_parallel_size: int = 1,
        device: str = "auto",
        quantization: str | None = None,
        kv_transfer_config: Mapping[str, Any] | str | None = None,
        batch_invariant: bool | None = None,
        **options: Any,
    ):
        legacy = translate_legacy(options, speculative_config)
        accept_engine_only(options)
        if quantization is not None:
            raise ValueError(
                f"quantization={quantization!r} is not supported: pass an unquantized checkpoint."
            )
        for name, value in (("max_num_seqs", max_num_seqs), ("max_model_len", max_model_len)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")
        if not isinstance(seed, int):
            raise ValueError(f"seed must be an integer, got {seed!r}.")
        mesh = choose_devices(device, tensor_parallel_size)
        given = legacy or speculative_config
        self.speculative_config = (
            None if given is None else SpeculativeConfig.from_dict(given, resolve(model))
        )
        self.connector = read_connector(kv_transfer_config, self.speculative_config)
        dtype = choose_dtype(dtype, mesh, device)
        form = partial(inference_form, mesh=mesh, device=device)
        target, draft = self._describe(model, tokenizer, dtype, max_model_len, form)
        for described in (target, draft):
            if isinstance(described, Model):
                check_divisible(described.config, mesh)
        if self.speculative_config is not None:
            self.speculative_config.check_tensor_parallel(tensor_parallel_size)
        own = target.config.max_position_embeddings
        self.max_model_len = own if max_model_len is None else max_model_len
        if not 1 <= self.max_model_len <= own:
            raise ValueError(
                f"max_model_len must be between 1 and the model's {own}, got {max_model_len}."
            )
        if self.speculative_config is not None:
            config = self.speculative_config
            if config.depth >= self.max_model_len:
                raise ValueError(
                    f"{config.name_depth()} must be less than max_model_len={self.max_model_len}: "
                    "3 to 8 is usual."
                )
        self.model_config, self.max_num_seqs = target.config, max_num_seqs
        self.defaults = load_generation_config(target.folder)
        eos_ids = (*target.tokenizer.eos_ids, *self.defaults.get("eos_token_id", ()))
        self.intake = intake.Intake(
            tokenizer=target.tokenizer,
            vocab_size=target.config.vocab_size,
            max_model_len=self.max_model_len,
            eos_ids=tuple(dict.fromkeys(eos_ids)),
            seed=seed,
        )
        self.engine = build_engine(target, draft, self.speculative_config)
        self.schedule = build_schedule(self.engine, draft, self.speculative_config)
        self.corpus = build_corpus(self.speculative_config, target.tokenizer)
        if batch_invariant:
            described = {"target": target} if draft is None else {"target": target, "draft": draft}
            configs = {name: one.config for name, one in described.items()}
            learns = self.corpus is not None
            platform = name_platform(device, mesh)
            check_batch_invariant(platform, mesh.size, configs, self.schedule, learns=learns)
        self.driver, self.params = choose_driver(
            device,
            load(target, draft, mesh, keep_dtype=has_own_form(mesh, device)),
            host_drafter=draft is None and not self.connector,
        )
        self.counters = SpecDecodeCounters.zeros(self.engine.drafter.depth)
        self.num_requests = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        on_progress: Callable[[int, int], None] | None = None,
        trace: str | Path | None = None,
    ) -> list[RequestOutput]:
        """Complete one or many prompts, in order.

        A prompt is a string or ``{"prompt_token_ids": [...]}``. ``on_progress`` is told
        (finished, all) samples; without it ``use_tqdm`` shows them on a terminal as a bar.
        ``trace`` names a file for the log of every round (``traces.events``), written when all
        are finished; each round then is a call of its own, so that its time is measured.
        Raises ValueError for a bad prompt before any work starts.
        """
        if use_tqdm and on_progress is None:
            with bar("prompts") as shown:
                return self.generate(prompts, sampling_params, on_progress=shown, trace=trace)
        number, batch = self.num_requests, self._read(prompts, sampling_params)
        samples: dict[int, Sample] = {}
        total = sum(len(requests) for _, requests in batch)
        recorder = None if trace is None else Recorder(Path(trace), number, batch)
        max_rounds = HISTORY if recorder is None else 1
        everything = [request for _, requests in batch for request in requests]
        for sample in self._run(everything, number, max_rounds):
            if recorder is not None:
                recorder.see(sample.progress)
            if sample.progress.finish_reason is not None:
                samples[sample.progress.index] = sample
                if on_progress:
                    on_progress(len(samples), total)
        if recorder is not None:
            recorder.write()
        in_order = iter(samples[i] for i in range(total))
        return [
            request_output(
                str(number + i),
                prompt,
                list(itertools.islice(in_order, len(requests))),
                self.intake.tokenizer,
                self.engine.drafter.depth,
            )
            for i, (prompt, requests) in enumerate(batch)
        ]

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[Sample]:
        """Complete one prompt round by round; yields the same ``Sample`` as it grows."""
        number, ((_, requests),) = self.num_requests, self._read(prompt, sampling_params)
        if len(requests) > 1:
            raise ValueError(f"stream completes one sample, got n={len(requests)}: use generate.")
        yield from self._run(requests, number, max_rounds=1)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, through the checkpoint's chat template."""
        if not messages:
            raise ValueError("messages must hold at least one message, got none.")
        several: Any = [messages] if isinstance(messages[0], Mapping) else messages
        rendered = [
            self.intake.tokenizer.apply_chat_template(
                conversation,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                **(chat_template_kwargs or {}),
            )
            for conversation in several
        ]
        ids = [self.intake.tokenizer.encode(text, add_special_tokens=False) for text in rendered]
        prompts = [
            {"prompt": text, "prompt_token_ids": tokens}
            for text, tokens in zip(rendered, ids, strict=True)
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return what the checkpoint's generation_config.json asks for."""
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        return SamplingParams(**{k: self.defaults[k] for k in names if k in self.defaults})

    def get_metrics(self) -> list[Counter | Vector]:
        """Return the speculative counters of all requests so far, under vLLM's names."""
        return self.counters.to_metrics()

    def get_tokenizer(self):
        """Return the tokenizer."""
        return self.intake.tokenizer

    def _describe(
        self, model, tokenizer, dtype: str, max_model_len: int | None, form
    ) -> tuple[Model, Model | Head | None]:
        """Read what target and draft are, and check that they fit, before any weight."""
        target = describe(model, dtype, max_model_len, tokenizer, form)
        if target.tokenizer.vocab_size > target.config.vocab_size:
            raise ValueError(
                f"the tokenizer has {target.tokenizer.vocab_size} tokens, the model only "
                f"{target.config.vocab_size}: they do not belong together."
            )
        config = self.speculative_config
        if config is None or config.method in MODEL_FREE:
            return target, None
        if config.method != "draft_model":
            return target, describe_head(target, config)
        heterogeneous = config.use_heterogeneous_vocab
        facts = target, str(config.model), dtype, max_model_len
        return target, describe_draft(*facts, form=form, heterogeneous=heterogeneous)

    def _read(self, prompts, sampling_params) -> list[tuple[Prompt, list[Request]]]:
        """Validate prompts and parameters and make one request per sample."""
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        pairs = intake.pair(prompts, sampling_params)
        for _, params in pairs:
            if self.connector is not None:
                self.connector.check(params)
            elif transfer_params(params):
                raise ValueError(f"extra_args={params.extra_args!r} needs kv_transfer_config.")
        batch = [
            (prompt, intake.requests(self.intake, prompt, params, self.num_requests + i))
            for i, (prompt, params) in enumerate(pairs)
        ]
        self.num_requests += len(batch)
        return batch

    def start_learning(self) -> tuple[Params, loop.Learn | None]:
        """Return the parameters and, where responses are shared, what teaches the drafter."""
        config = self.speculative_config
        if self.corpus is None or config is None:
            return self.params, None
        shares = config.suffix_decoding_max_cached_requests
        params = self.params._replace(draft=self.corpus.index)
        return params, follow(self.corpus) if shares else None

    def _run(
        self, requests: list[Request], number: int, max_rounds: int = HISTORY
    ) -> Iterator[Sample]:
        """Drive the loop, keep each request's transcript, and count what was drafted.

        ``number`` is the first request's, for the names of files.
        """
        transcripts: dict[int, Transcript] = {}

        def watch(progress: Progress) -> int | None:
            if progress.index not in transcripts:
                transcripts[progress.index] = Transcript(
                    self.intake.tokenizer, progress, self.intake.eos_ids
                )
            return transcripts[progress.index].follow(progress)

        if any(request.params.stop for request in requests):
            max_rounds = min(max_rounds, ROUNDS_PER_STOP_CHECK)
        params, learn = self.start_learning()
        for progress in loop.run(
            self.engine,
            params,
            requests,
            max_num_seqs=self.max_num_seqs,
            watch=watch,
            learn=learn,
            schedule=self.schedule,
            export=None if self.connector is None else partial(self.connector.save, number),
            max_rounds=max_rounds,
            driver=self.driver,
        ):
            if progress.finish_reason is not None:
                self.counters = self.counters.add(*steps(progress))
            yield Sample(progress, transcripts[progress.index])

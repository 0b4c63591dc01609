"""``LLM``: the offline interface, with vLLM's names."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specjax.bundled import resolve
from specjax.core.metrics import Counter, SpecDecodeCounters, Vector
from specjax.engine.core import build_core
from specjax.engine.input_processor import Prompt, pair
from specjax.engine.options.engine_args import EngineArgs
from specjax.engine.options.legacy import accept_engine_only, translate_legacy
from specjax.engine.options.methods import direct
from specjax.engine.options.sampling_params import MAX_LOGPROBS, SamplingParams
from specjax.engine.options.speculative import SpeculativeConfig
from specjax.engine.output_processor import Sample, request_output, steps
from specjax.engine.outputs import RequestOutput
from specjax.engine.plan import HISTORY
from specjax.engine.progress import bar
from specjax.engine.recorder import Recorder
from specjax.engine.rows import Request
from specjax.engine.text.tokenizer import Tokenizer
from specjax.host.group import check_same


class LLM:
    """A target model and optionally a drafter, ready to complete prompts.

    Args:
        model: a Hugging Face checkpoint folder, or "bundled" (the target model that ships). A
            drafting head in the speculators format is served with the target it names.
        tokenizer: a folder with the tokenizer; the checkpoint's by default.
        speculative_config: vLLM's options as a dict or JSON text; None is plain decoding.
        dtype: "auto" (float32 on CPU), "float32", "bfloat16" or "float16".
        max_model_len: prompt and output together; the model's own limit by default.
        max_num_seqs: the most requests that run at the same time.
        max_logprobs: the most log probabilities per token that a request may ask for; -1: the
            whole vocabulary.
        seed: makes requests without a seed of their own reproducible.
        tensor_parallel_size: devices that share the weights.
        enable_expert_parallel: each of these devices has some experts of every mixture whole,
            instead of a part of each expert.
        device: "auto", or a jax platform: "cpu", "gpu", "tpu"; or, by npu_bridge, "npu" (Ascend)
            or "torch-cpu" (the same program in torch, on the CPU).
        kv_transfer_config: where method "extract_hidden_states" saves; each output's
            ``kv_transfer_params["hidden_states_path"]`` then names a file.
        batch_invariant: require that a request's text and log probabilities are bitwise the same
            for any batch, and with any drafter whose draft_sample_method is not "probabilistic".
            On one CPU they always are, so this changes nothing there; elsewhere (other platforms,
            several devices) it raises ValueError. vLLM's equivalent is the environment variable
            ``VLLM_BATCH_INVARIANT=1``.

    The text never depends on the drafter (same seed, same text), unless
    ``draft_sample_method="probabilistic"`` selects rejection sampling or
    ``rejection_sample_method="block"`` block verification: then the text is another sample of the
    target's distribution. Rules that change the distribution warn when they are chosen.

    Raises:
        ValueError: an option is wrong, or the checkpoints cannot be read.
        TypeError: an unknown option.

    >>> ngram = {"method": "ngram", "num_speculative_tokens": 3}
    >>> llm = LLM("bundled", speculative_config=ngram)
    >>> params = SamplingParams(temperature=0.0, max_tokens=8)
    >>> (output,) = llm.generate("def add(a, b):", params)
    >>> len(output.outputs[0].token_ids)
    8
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
        max_logprobs: int = MAX_LOGPROBS,
        seed: int = 0,
        tensor_parallel_size: int = 1,
        enable_expert_parallel: bool = False,
        device: str = "auto",
        quantization: str | None = None,
        kv_transfer_config: Mapping[str, Any] | str | None = None,
        batch_invariant: bool | None = None,
        **options: Any,
    ):
        given = translate_legacy(options, speculative_config) or speculative_config
        model, given = direct(model, given)
        accept_engine_only(options)
        config = None if given is None else SpeculativeConfig.from_dict(given, resolve(model))
        args = EngineArgs(
            model=model,
            tokenizer=tokenizer,
            speculative_config=config,
            dtype=dtype,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_logprobs=max_logprobs,
            seed=seed,
            tensor_parallel_size=tensor_parallel_size,
            enable_expert_parallel=enable_expert_parallel,
            device=device,
            quantization=quantization,
            kv_transfer_config=kv_transfer_config,
            batch_invariant=batch_invariant,
        )
        self.core = build_core(args)
        self.counters = SpecDecodeCounters.zeros(self.core.depth)
        self.num_requests = 0

    def update_drafter(self, folder: str | Path) -> None:
        """Exchange the drafting head's weights for those of a folder, without compiling again.

        The folder holds a head of the same shape, such as one that ``specjax train --start`` has
        trained further on the requests so far. With ``walk`` the text stays; acceptance may rise.

        Raises:
            ValueError: there is no head, or the folder holds another one.
        """
        self.core.update_drafter(folder)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        on_progress: Callable[[int, int], None] | None = None,
        trace: str | Path | None = None,
    ) -> list[RequestOutput]:
        """Return the completions of one or many prompts, in order.

        Args:
            prompts: each a string or ``{"prompt_token_ids": [...]}``.
            use_tqdm: show a progress bar on a terminal, unless ``on_progress`` is given.
            on_progress: called with the numbers of finished and of all samples.
            trace: a file for the event log of every round (``traces.events``), written at the
                end; each round is then a call of its own, so that its time is measured.

        Raises:
            ValueError: a prompt or a parameter is wrong; nothing has been run then.
        """
        if use_tqdm and on_progress is None:
            with bar("prompts") as shown:
                return self.generate(prompts, sampling_params, on_progress=shown, trace=trace)
        number, batch = self.num_requests, self._process(prompts, sampling_params)
        samples: dict[int, Sample] = {}
        total = sum(len(requests) for _, requests in batch)
        recorder = None if trace is None else Recorder(Path(trace), number, batch)
        max_rounds = HISTORY if recorder is None else 1
        everything = [request for _, requests in batch for request in requests]
        for sample in self._run(everything, number, max_rounds):
            if recorder is not None:
                recorder.see(sample.request_state)
            if sample.request_state.finish_reason is not None:
                samples[sample.request_state.index] = sample
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
                self.core.tokenizer,
                self.core.depth,
            )
            for i, (prompt, requests) in enumerate(batch)
        ]

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[Sample]:
        """Complete one prompt round by round; yields the same ``Sample`` as it grows."""
        number, ((_, requests),) = self.num_requests, self._process(prompt, sampling_params)
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
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Return the next message of one conversation or several, by the chat template."""
        if not messages:
            raise ValueError("messages must hold at least one message, got none.")
        several: Any = [messages] if isinstance(messages[0], Mapping) else messages
        tokenizer = self.core.tokenizer
        rendered = [
            tokenizer.apply_chat_template(
                conversation,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **(chat_template_kwargs or {}),
            )
            for conversation in several
        ]
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in rendered]
        prompts = [
            {"prompt": text, "prompt_token_ids": tokens}
            for text, tokens in zip(rendered, ids, strict=True)
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the sampling parameters that the checkpoint's generation_config.json sets."""
        return self.core.default_params

    def get_metrics(self) -> list[Counter | Vector]:
        """Return the speculative counters of all requests so far, under vLLM's names."""
        return self.counters.to_metrics()

    def get_tokenizer(self) -> Tokenizer:
        """Return the tokenizer."""
        return self.core.tokenizer

    def _process(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[tuple[Prompt, list[Request]]]:
        """Return each prompt with its checked requests, one per sample.

        Raises ValueError as ``generate``, or if another process was given other requests.
        """
        if sampling_params is None:
            sampling_params = self.core.default_params
        number, prompt_ids = self.num_requests, self.core.input_processor.prompt_ids
        batch = [
            (prompt, self.core.process(prompt_ids(prompt), params, number + i))
            for i, (prompt, params) in enumerate(pair(prompts, sampling_params))
        ]
        self.num_requests += len(batch)
        wanted = [one._replace(grammar=None) for _, requests in batch for one in requests]
        check_same({"requests": [str(one) for one in wanted]})
        return batch

    def _run(self, requests: list[Request], number: int, max_rounds: int) -> Iterator[Sample]:
        """Complete requests, the first of them ``number``, and count what was drafted."""
        for sample in self.core.run(requests, max_rounds=max_rounds, first=number):
            if sample.request_state.finish_reason is not None:
                self.counters = self.counters.add(*steps(sample.request_state))
            yield sample

"""``EngineCore``: a loaded model and its drafter, as ``LLM`` and ``Service`` run them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax

from specjax import __version__
from specjax.bundled import resolve
from specjax.core.types import Engine, Params, PyTree
from specjax.drafters.fallback import with_first
from specjax.engine.adaptive import Adaptive
from specjax.engine.build import (
    Model,
    Source,
    build_adaptive,
    build_corpus,
    build_engine,
    build_schedule,
    describe,
    describe_source,
    load,
    models_of,
    read_drafter,
)
from specjax.engine.connector import Connector, read_connector, transfer_params
from specjax.engine.corpus import Corpus, follow
from specjax.engine.device import (
    check_divisible,
    check_experts,
    check_implemented,
    choose_devices,
    choose_driver,
    choose_dtype,
    has_inference_layout,
    inference_layout,
    name_platform,
)
from specjax.engine.driver import Driver, sharding_of
from specjax.engine.grammar import GrammarCompiler
from specjax.engine.input_processor import InputProcessor
from specjax.engine.invariance import check_batch_invariant
from specjax.engine.loop import Loop, Watch
from specjax.engine.options.engine_args import EngineArgs
from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.options.speculative import SpeculativeConfig
from specjax.engine.output_processor import Sample
from specjax.engine.plan import Plan, plan_offline, plan_serving
from specjax.engine.prefix_cache import PrefixCache
from specjax.engine.request_state import RequestState
from specjax.engine.rows import IDLE_REQUEST, Request, layout
from specjax.engine.scheduler import Scheduler
from specjax.engine.text.tokenizer import GENERATION_DEFAULTS, Tokenizer, load_generation_config
from specjax.engine.transcript import Transcript
from specjax.host.group import check_same
from specjax.host.threads import bind_threads
from specjax.models.config import ModelConfig
from specjax.weights.fingerprint import fingerprint
from specjax.weights.load import check_depth
from specjax.weights.quantization import read_scheme

ROUNDS_PER_STOP_CHECK = 8  # stop strings are found on the host: more rounds may be wasted


@dataclass(kw_only=True, eq=False)
class EngineCore:
    """A target, its drafter and their weights, ready to check requests and to run them.

    ``LLM`` runs requests in the caller's thread, ``Service`` on a thread of its own; only one loop
    may run at a time.

    Args:
        generation_config: what the checkpoint's generation_config.json sets.
        schedule: the engine for each number of running requests.
        adaptive: chooses the engine instead; it goes on learning from loop to loop.
        corpus: the responses that suffix decoding shares among requests.
        connector: saves the files of method "extract_hidden_states".
        read_drafter: given a head's folder, returns its weights (``build.read_drafter``); None
            where the weights in use cannot be exchanged.
    """

    input_processor: InputProcessor
    generation_config: Mapping[str, Any]
    model_config: ModelConfig
    speculative_config: SpeculativeConfig | None
    max_num_seqs: int
    engine: Engine
    schedule: tuple[Engine, ...]
    adaptive: Adaptive | None
    driver: Driver
    params: Params
    corpus: Corpus | None
    connector: Connector | None
    read_drafter: Callable[[Params, str | Path], PyTree] | None

    def update_drafter(self, folder: str | Path) -> Params:
        """Exchange the weights of the drafting head; return the parameters from now on.

        Raises:
            ValueError: there is no head, or the folder holds one of another shape.
        """
        if self.read_drafter is None:
            raise ValueError("the drafter's weights can be exchanged on one device of JAX only.")
        draft = self.read_drafter(self.params, resolve(str(folder)))
        self.params = self.params._replace(draft=draft)
        return self.params

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the target's tokenizer."""
        return self.input_processor.tokenizer

    @property
    def max_model_len(self) -> int:
        """Return the most tokens of a request, prompt and output together."""
        return self.input_processor.max_model_len

    @property
    def depth(self) -> int:
        """Return K, the most draft tokens that one round can accept; 0 in plain decoding."""
        return self.engine.drafter.depth

    @property
    def default_params(self) -> SamplingParams:
        """Return the sampling parameters that the checkpoint's generation_config.json sets."""
        given = self.generation_config
        return SamplingParams(**{k: v for k, v in given.items() if k in GENERATION_DEFAULTS})

    def process(self, ids: Sequence[int], params: SamplingParams, number: int) -> list[Request]:
        """Return one request per sample, as ``InputProcessor.process`` does.

        Raises:
            ValueError: as there, or ``extra_args`` are wrong.
        """
        if self.connector is not None:
            self.connector.check(params)
        elif transfer_params(params):
            raise ValueError(f"extra_args={params.extra_args!r} needs kv_transfer_config.")
        if params.structured_outputs is not None:
            self.check_structured()
        return self.input_processor.process(ids, params, number)

    def check_structured(self) -> None:
        """Raise ValueError unless this engine can hold a text to a grammar."""
        if self.driver.masked is None:
            raise ValueError("structured_outputs is not served by npu_bridge: use device='auto'.")
        config = self.speculative_config
        if config is not None and config.rejection_sample_method == "synthetic":
            raise ValueError(
                "structured_outputs with rejection_sample_method='synthetic': that accepts tokens "
                "at given rates, whatever the grammar allows. Leave one of them out."
            )

    def new_transcript(self, request_state: RequestState) -> Transcript:
        """Return the transcript that turns a request's tokens into text."""
        return Transcript(self.tokenizer, request_state, self.input_processor.eos_ids)

    def run(
        self, requests: Sequence[Request], *, max_rounds: int, first: int = 0
    ) -> Iterator[Sample]:
        """Complete requests; yield a request's sample whenever it has new tokens.

        Args:
            max_rounds: the most rounds between two samples of a request.
            first: the number of the first request, for the names of files.
        """
        if not requests:
            return
        transcripts: dict[int, Transcript] = {}

        def watch(request_state: RequestState) -> int | None:
            index = request_state.index
            if index not in transcripts:
                transcripts[index] = self.new_transcript(request_state)
            return transcripts[index].follow(request_state)

        if any(request.params.stop for request in requests):
            max_rounds = min(max_rounds, ROUNDS_PER_STOP_CHECK)
        drafter, vocab_size = self.engine.drafter, self.engine.target.vocab_size
        plan = plan_offline(requests, vocab_size, drafter.depth, drafter.room, self.max_num_seqs)
        scheduler = Scheduler(plan.sizes)
        scheduler.num_slots = plan.sizes[-1]
        scheduler.put([RequestState(i, request) for i, request in enumerate(requests)])
        loop = self.new_loop(plan, scheduler, watch, first=first)
        while len(scheduler):
            for request_state in loop.step(max_rounds):
                yield Sample(request_state, transcripts[request_state.index])

    def plan_serving(self, max_num_batched_tokens: int | None) -> Plan:
        """Return the plan of a service: the shapes for requests that are not known yet.

        Raises:
            ValueError: ``max_num_batched_tokens`` is less than the smallest prefill chunk.
        """
        drafter, vocab_size = self.engine.drafter, self.engine.target.vocab_size
        usual = IDLE_REQUEST._replace(
            params=self.default_params, stop_ids=self.input_processor.eos_ids
        )
        return plan_serving(
            layout([usual], vocab_size, drafter.depth),
            self.max_model_len,
            drafter.room,
            self.max_num_seqs,
            max_num_batched_tokens,
            min(self.input_processor.max_logprobs, vocab_size),
        )

    def new_loop(
        self,
        plan: Plan,
        scheduler: Scheduler,
        watch: Watch,
        *,
        first: int = 0,
        alternate: bool = False,
        prefixes: PrefixCache | None = None,
    ) -> Loop:
        """Return a loop over a scheduler's requests; the arguments are `Loop`'s and ``run``'s."""
        params, learn, config = self.params, None, self.speculative_config
        if self.corpus is not None and config is not None:
            params = params._replace(draft=with_first(params.draft, self.corpus.index))
            learn = follow(self.corpus) if config.suffix_decoding_max_cached_requests else None
        return Loop(
            self.engine,
            params,
            plan,
            schedule=self.schedule,
            adaptive=self.adaptive,
            watch=watch,
            learn=learn,
            export=None if self.connector is None else partial(self.connector.save, first),
            alternate=alternate,
            scheduler=scheduler,
            driver=self.driver,
            prefixes=prefixes,
        )

    def new_prefix_cache(self, most_bytes: int) -> PrefixCache | None:
        """Return what keeps the beginnings of prompts; None where they cannot be reused.

        That is on several devices and npu_bridge's, with hidden states that are saved, and with a
        drafter of one's own, whose state specjax does not know.
        """
        config = self.speculative_config
        own = config is not None and config.method == "custom_class"
        if most_bytes < 1 or own or self.driver.resume is None or self.connector is not None:
            return None
        return PrefixCache(most_bytes) if sharding_of(self.params) is not None else None


def build_core(args: EngineArgs) -> EngineCore:
    """Return an engine core with its weights loaded; all options are checked before that.

    Raises:
        ValueError: an option is wrong, or target, drafter and device do not fit each other.
    """
    config, device = args.speculative_config, args.device
    mesh = choose_devices(device, args.tensor_parallel_size)
    connector = read_connector(args.kv_transfer_config, config)
    deal = args.enable_expert_parallel
    form = partial(inference_layout, mesh=mesh, device=device, expert_parallel=deal)
    dtype = choose_dtype(args.dtype, mesh, device)
    target = describe(args.model, dtype, args.max_model_len, args.tokenizer, form)
    check_tokenizer(target)
    check_quantization(args.quantization, target.folder)
    check_experts(target.config, expert_parallel=deal)
    draft = describe_source(target, config, dtype, args.max_model_len, form)
    for one in (target, *models_of(draft)):
        check_implemented(one.config, device)
        check_divisible(one.config, mesh)
    if config is not None:
        config.check_tensor_parallel(args.tensor_parallel_size)
    max_model_len = check_length(args, target)
    generation_config = load_generation_config(target.folder)
    vocab_size = target.config.vocab_size
    eos_ids = (*target.tokenizer.eos_ids, *generation_config.get("eos_token_id", ()))
    eos_ids = tuple(dict.fromkeys(eos_ids))
    check_eos(eos_ids, target)
    for one in (target, *models_of(draft)):
        check_depth(one.folder, one.config)
    engine = build_engine(target, draft, config)
    schedule = build_schedule(engine, draft, config)
    adaptive = build_adaptive(engine, draft, config, args.max_num_seqs)
    corpus = build_corpus(config, target.tokenizer)
    platform = name_platform(device, mesh)
    if args.batch_invariant:
        learns = corpus is not None or adaptive is not None
        check_batch_invariant(platform, mesh.size, schedule, learns=learns)
    check_same(describe_run(args, target, draft))
    if platform == "cpu":
        bind_threads()

    def reader(weights: Params, folder: str | Path) -> PyTree:
        return read_drafter(target, draft, config, weights, folder, keep_dtype=True)

    weights = load(target, draft, config, mesh, keep_dtype=has_inference_layout(mesh, device))
    driver, params = choose_driver(
        device, mesh, weights, host_drafter=draft is None and connector is None
    )
    return EngineCore(
        input_processor=InputProcessor(
            tokenizer=target.tokenizer,
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            eos_ids=eos_ids,
            max_logprobs=vocab_size if args.max_logprobs == -1 else args.max_logprobs,
            seed=args.seed,
            grammars=GrammarCompiler(target.tokenizer, eos_ids, vocab_size),
        ),
        generation_config=generation_config,
        model_config=target.config,
        speculative_config=config,
        max_num_seqs=args.max_num_seqs,
        engine=engine,
        schedule=schedule,
        adaptive=adaptive,
        driver=driver,
        params=params,
        corpus=corpus,
        connector=connector,
        read_drafter=reader if has_inference_layout(mesh, device) else None,
    )


def describe_run(args: EngineArgs, target: Model, draft: Source) -> dict[str, Any]:
    """Return what several processes that run one model must have in common, by name."""
    paths = ("model", "tokenizer", "kv_transfer_config")  # each host may have its own
    options = {name: value for name, value in vars(args).items() if name not in paths}
    return {
        "version of specjax": __version__,
        "version of jax": jax.__version__,
        "set of options": options,
        "checkpoint": [fingerprint(one.folder) for one in (target, *models_of(draft))],
    }


def check_tokenizer(target: Model) -> None:
    """Raise ValueError if the tokenizer has tokens that the model lacks."""
    if target.tokenizer.vocab_size > target.config.vocab_size:
        raise ValueError(
            f"the tokenizer has {target.tokenizer.vocab_size} tokens, the model only "
            f"{target.config.vocab_size}: they do not belong together."
        )


def check_eos(eos_ids: Sequence[int], target: Model) -> None:
    """Raise ValueError if a token that ends a text is outside the vocabulary."""
    for token in eos_ids:
        if token >= target.config.vocab_size:
            raise ValueError(
                f"eos_token_id {token} in {target.folder} is outside the model's vocabulary of "
                f"{target.config.vocab_size}: correct generation_config.json or config.json."
            )


def check_quantization(quantization: str | None, folder: Path) -> None:
    """Raise ValueError unless an option names how the checkpoint is quantized, or nothing."""
    scheme = read_scheme(folder)
    found = "unquantized" if scheme is None else scheme.method
    if quantization not in (None, found):
        raise ValueError(
            f"quantization={quantization!r}, but {folder} is {found}: leave the option out, the "
            "checkpoint says how it is quantized."
        )


def check_length(args: EngineArgs, target: Model) -> int:
    """Return max_model_len, the model's own limit by default.

    Raises:
        ValueError: it is more than that, or leaves no room for a draft.
    """
    own, config = target.config.max_position_embeddings, args.speculative_config
    length = own if args.max_model_len is None else args.max_model_len
    if not 1 <= length <= own:
        raise ValueError(
            f"max_model_len must be between 1 and the model's {own}, got {args.max_model_len}."
        )
    if config is not None and config.depth >= length:
        raise ValueError(
            f"{config.name_depth()} must be less than max_model_len={length}: 3 to 8 is usual."
        )
    return length

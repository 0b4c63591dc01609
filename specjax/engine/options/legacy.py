"""Keywords of vLLM's `LLM`: legacy speculative ones, and those without effect here."""

import difflib
import warnings
from collections.abc import Mapping
from typing import Any

from specjax.engine.options.mappings import suggest, warn_inert
from specjax.engine.options.methods import infer_method

# Options of vLLM's LLM that have no meaning here: accepted with one warning.
ENGINE_ONLY = (
    "additional_config", "async_scheduling", "block_size", "compilation_config",
    "cpu_offload_gb", "cuda_graph_sizes", "cudagraph_capture_sizes", "data_parallel_size",
    "disable_async_output_proc", "disable_custom_all_reduce", "disable_log_requests",
    "disable_log_stats", "disable_logprobs_during_spec_decoding", "disable_uvicorn_access_log",
    "distributed_executor_backend", "enable_chunked_prefill",
    "enable_log_requests", "enable_prefix_caching", "enable_prompt_tokens_details",
    "enable_server_load_tracking", "enforce_eager",
    "gpu_memory_utilization", "max_num_batched_tokens", "max_parallel_loading_workers",
    "max_seq_len_to_capture", "num_scheduler_steps", "per_request_spec_decode_metrics",
    "pipeline_parallel_size", "ray_workers_use_nsight", "scheduling_policy",
    "show_hidden_metrics_for_version", "structured_outputs_config",
    "speculative_disable_by_batch_size", "speculative_disable_mqa_scorer", "swap_space",
    "trust_remote_code", "use_v2_block_manager",
)  # fmt: skip
LLM_OPTIONS = (
    "model", "tokenizer", "speculative_config", "dtype", "max_model_len", "max_num_seqs", "seed",
    "tensor_parallel_size", "enable_expert_parallel", "device", "quantization",
    "kv_transfer_config", "batch_invariant",
)  # fmt: skip
LEGACY = {  # LLM keyword -> speculative_config key
    "speculative_model": "model",
    "num_speculative_tokens": "num_speculative_tokens",
    "speculative_method": "method",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size",
    "speculative_max_model_len": "max_model_len",
    "speculative_model_quantization": "quantization",
}


def translate_legacy(
    kwargs: dict[str, Any], speculative_config: Any = None
) -> dict[str, Any] | None:
    """Pop the legacy speculative keywords and return the `speculative_config` they mean.

    Returns None when there are none. Otherwise warns once (DeprecationWarning) with the modern
    form; a `use_v2_block_manager` beside them is dropped. An n-gram without a lower bound gets 1,
    the old default, where the modern form would take the upper bound.

    Raises:
        ValueError: legacy keywords beside a `speculative_config`, or without a speculative model.
    """
    found = [name for name in LEGACY if name in kwargs]
    given = {name: kwargs.pop(name) for name in found}
    config = {LEGACY[name]: value for name, value in given.items() if value is not None}
    if not config:
        return None
    if speculative_config is not None:
        raise ValueError(f"got both speculative_config and its legacy forms {found}: drop these.")
    kwargs.pop("use_v2_block_manager", None)
    model, method = config.get("model"), config.get("method")
    if model is None and method is None:
        raise ValueError(
            f"{', '.join(found)} without a speculative model or method: pass "
            "speculative_config={'method': ..., 'num_speculative_tokens': ...}."
        )
    if "[ngram]" in (model, method) or "ngram" in (model, method):
        config.pop("model", None)
        config["method"] = "ngram"
        if "prompt_lookup_max" in config:
            config.setdefault("prompt_lookup_min", 1)
    elif method is None:
        config["method"] = infer_method(str(model))
    warnings.warn(
        f"{', '.join(found)}: legacy, use speculative_config={config!r}",
        DeprecationWarning,
        stacklevel=3,
    )
    return config


def accept_engine_only(kwargs: Mapping[str, Any]) -> None:
    """Accept vLLM's engine-only options, naming those given in one UserWarning.

    Raises:
        TypeError: a keyword is not one of them; the message names the nearest.
    """
    for name in kwargs:
        if name not in ENGINE_ONLY:
            near = difflib.get_close_matches(name, (*LLM_OPTIONS, *ENGINE_ONLY, *LEGACY), n=1)
            raise TypeError(
                f"LLM() got an unexpected keyword argument {name!r}."
                + suggest(name, near or LLM_OPTIONS)
            )
    warn_inert("options", list(kwargs))

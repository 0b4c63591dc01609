"""Plain greedy decoding against transformers' ``generate``: same weights, same threads."""

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from specjax.bench.report import Row, compare, num_cores
from specjax.config import ModelConfig
from specjax.drafters.none import none
from specjax.engine import loop
from specjax.engine.params import SamplingParams
from specjax.engine.rows import Request
from specjax.models.build import build_target
from specjax.types import Engine, Params, PyTree
from specjax.verify.walk import walk
from specjax.weights.save import hf_config, named_tensors

if TYPE_CHECKING:
    from specjax.bench.step import Setting


def generate_rows(
    setting: "Setting", weights: PyTree, reps: int, say: Callable[[str], None]
) -> list[Row]:
    """Report tokens per second of both, reading the prompt included, and whether they agree."""
    from specjax.bench.step import interleave

    try:
        import torch

        theirs = their_model(setting.config, weights)
    except ImportError as error:
        say(f"transformers: skipped ({error}); pip install 'specjax[dev]'")
        return []
    prompt = np.random.default_rng(1).integers(0, setting.config.vocab_size, setting.context)
    num_tokens, said = setting.new_tokens, {}
    engine = Engine(build_target(setting.config), none, walk, window=0)

    def timed(name: str, generate: Callable[[], list[int]]) -> float:
        time.sleep(0.02)  # the other library's threads may still spin
        start = time.perf_counter()
        said[name] = generate()
        return time.perf_counter() - start

    def ours() -> list[int]:
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        limit = setting.context + num_tokens
        request = Request(tuple(prompt.tolist()), params, 0, limit, ())
        results = list(loop.run(engine, Params(weights, None), [request], max_num_seqs=1))
        return results[-1].tokens

    threads = torch.get_num_threads()
    torch.set_num_threads(num_cores())
    try:
        ids = torch.from_numpy(prompt[None])

        def peer() -> list[int]:
            with torch.inference_mode():
                whole = theirs.generate(ids, max_new_tokens=num_tokens, do_sample=False)
            return whole[0, setting.context :].tolist()

        calls = [lambda: timed("ours", ours), lambda: timed("theirs", peer)]
        interleave(calls, 1)
        mine, other = interleave(calls, reps)
    finally:
        torch.set_num_threads(threads)
    agreed = next(
        (i for i, (a, b) in enumerate(zip(said["ours"], said["theirs"], strict=True)) if a != b),
        num_tokens,
    )
    name, against = f"plain generate, {setting.context} + {num_tokens} tokens", "transformers"
    speed, their_speed = num_tokens / mine, num_tokens / other
    return [
        compare(name, speed, "tokens/s", their_speed, against, at_least=1.6),
        compare("first tokens equal to transformers'", agreed, "tokens", num_tokens, "all"),
    ]


def their_model(config: ModelConfig, weights: PyTree) -> Any:
    """Build transformers' model around a copy of our arrays.

    Raises:
        ImportError: torch or transformers is not installed.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers

    facts: dict[str, Any] = hf_config(config, dtype=config.dtype, end=0) | {"pad_token_id": 0}
    model: Any = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**facts)).eval()
    tensors = {
        name: torch.from_numpy(np.array(jax.device_get(value)))
        for name, value in named_tensors(config, weights).items()
    }
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"weights do not fit transformers' model: {missing=} {unexpected=}")
    model.tie_weights()
    model.generation_config.eos_token_id = None
    return model

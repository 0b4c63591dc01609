"""Drafting without a model on edits: code that is generated again with small changes.

The shipped edit prompts contain a piece of code and the beginning of its new version. In every arm
a request drafts from its own prompt and output only: with an index of earlier responses, each
repetition would find the text of the previous one.
"""

from collections.abc import Callable
from typing import Any

from specjax.bench.arms import Arm, in_groups, time_arms, total
from specjax.bench.ours import completer
from specjax.bench.prompts import complete, fitting
from specjax.bench.report import Row, compare
from specjax.bench.rounds import tokens_per_round
from specjax.core.metrics import LEAST_DISTINCT
from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams

NUM_TOKENS = 64
DEPTH = 7
LEAST_GAIN = 1.8  # of suffix over plain decoding
APART = {"method": "suffix", "suffix_decoding_max_cached_requests": 0}
METHODS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "ngram": {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 4},
    "suffix": {**APART, "suffix_decoding_max_spec_offset": DEPTH},  # as long drafts as n-gram's
    "suffix, vLLM's defaults": APART,  # no longer than the match
}


def edit_rows(reps: int, echo: Callable[[str], None], model: str = "bundled") -> list[Row]:
    """Return rows of tokens per round and speed on the edit prompts, loops excluded."""
    llms = {
        name: LLM(model, speculative_config=config and {**config, "num_speculative_tokens": DEPTH})
        for name, config in METHODS.items()
    }
    edits = [one for one in fitting(llms["plain"], NUM_TOKENS) if one.name.startswith("edit-")]
    kept = [
        one for one in complete(llms["plain"], edits, NUM_TOKENS) if one.distinct >= LEAST_DISTINCT
    ]
    echo(f"{len(kept)} of {len(edits)} edit prompts, {NUM_TOKENS} new tokens, K = {DEPTH} ...")
    prompts = [one.prompt.tokens for one in kept]
    arms = [Arm("specjax", "specjax", name, (1,), completer(one)) for name, one in llms.items()]
    timings = time_arms(arms, in_groups(prompts, 1), 1, NUM_TOKENS, reps, echo)
    speeds = {name: total(timings["specjax", name]) for name in llms}
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    rounds = {
        name: tokens_per_round([llm.generate(one, params, use_tqdm=False)[0] for one in asked])
        for name, llm in llms.items()
    }
    where = f"edit prompts, K = {DEPTH}: "
    better = {"against": "ngram", "goal": "> 1", "met": rounds["suffix"] > rounds["ngram"]}
    rows = [
        compare(
            f"{where}{name}", speeds[name], "tokens/s", speeds["plain"], "plain", at_least=least
        )
        for name, least in (
            ("ngram", None),
            ("suffix", LEAST_GAIN),
            ("suffix, vLLM's defaults", None),
        )
    ]
    for name in llms:
        row = compare(f"{where}{name}", rounds[name], "tokens/round", rounds["ngram"], "ngram")
        rows.append(Row(**{**vars(row), **better}) if name == "suffix" else row)
    return rows

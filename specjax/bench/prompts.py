"""Which shipped prompts a speed may be measured on: those whose completions are no loops."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specjax.bundled import prompts
from specjax.engine.llm import LLM
from specjax.engine.params import SamplingParams
from specjax.metrics import LEAST_DISTINCT, distinct_bigrams

LEAST_PROMPTS = 12


class Prompt(NamedTuple):
    """A shipped prompt in a model's tokens."""

    name: str
    text: str
    tokens: list[int]


class Completion(NamedTuple):
    """What the target writes after a prompt, greedily, and the share of distinct bigrams."""

    prompt: Prompt
    tokens: list[int]
    distinct: float


def fitting(llm: LLM, num_tokens: int) -> list[Prompt]:
    """Return the shipped prompts that leave room for ``num_tokens`` more."""
    encode = llm.get_tokenizer().encode
    found = [Prompt(one["id"], one["turns"][0], encode(one["turns"][0])) for one in prompts()]
    return [one for one in found if len(one.tokens) + num_tokens <= llm.max_model_len]


def complete(llm: LLM, chosen: Sequence[Prompt], num_tokens: int) -> list[Completion]:
    """Complete prompts one by one, greedily, past any end of text."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    completions = []
    for prompt in chosen:
        (request,) = llm.generate({"prompt_token_ids": prompt.tokens}, params, use_tqdm=False)
        tokens = list(request.outputs[0].token_ids)
        completions.append(Completion(prompt, tokens, distinct_bigrams(tokens)))
    return completions


def not_degenerate(completions: Sequence[Completion]) -> list[Completion]:
    """Keep the completions that count. Raises ValueError if they are too few for a figure."""
    kept = [one for one in completions if one.distinct >= LEAST_DISTINCT]
    if len(kept) < LEAST_PROMPTS:
        raise ValueError(
            f"only {len(kept)} of {len(completions)} completions have at least "
            f"{LEAST_DISTINCT:.0%} distinct bigrams, {LEAST_PROMPTS} are needed for a speed "
            f"figure: ask for fewer tokens, or for another model."
        )
    return kept


def sureness(llm: LLM, completion: Completion) -> float:
    """Return the log-probability that a model gives its own greedy completion."""
    num_tokens = len(completion.tokens)
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, logprobs=0)
    prompt = {"prompt_token_ids": completion.prompt.tokens}
    (request,) = llm.generate(prompt, params, use_tqdm=False)
    return request.outputs[0].cumulative_logprob or 0.0


def halves(
    completions: Sequence[Completion], sure: Sequence[float]
) -> tuple[list[Completion], list[Completion]]:
    """Deal completions to two halves that are equally hard to draft, as far as the model tells.

    Where it is sure of its words drafts are accepted: ranked by that they go A B B A, A B B A, ...
    """
    dealt: tuple[list[Completion], list[Completion]] = [], []
    for rank, i in enumerate(np.argsort(sure, stable=True)):
        dealt[rank % 4 in (1, 2)].append(completions[i])
    return dealt


def measured_on(llm: LLM, num_tokens: int) -> list[Completion]:
    """Choose ``LEAST_PROMPTS`` completions that count, spread evenly over the shipped prompts."""
    kept = not_degenerate(complete(llm, fitting(llm, num_tokens), num_tokens))
    return kept[:: len(kept) // LEAST_PROMPTS][:LEAST_PROMPTS]

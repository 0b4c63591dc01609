"""Choose the prompts of a benchmark: those whose completions do not loop."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specjax.bundled import PROMPTS, prompts
from specjax.core.metrics import LEAST_DISTINCT, distinct_bigrams
from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams

MOST_PROMPTS = 12
KINDS = tuple(PROMPTS)  # shipped ones, which were chosen, and random ones


class Prompt(NamedTuple):
    """A prompt in a model's tokens."""

    name: str
    text: str
    tokens: list[int]


class Completion(NamedTuple):
    """The target's greedy completion of a prompt, and its share of distinct bigrams."""

    prompt: Prompt
    tokens: list[int]
    distinct: float


def fitting(llm: LLM, num_tokens: int, kind: str = "shipped") -> list[Prompt]:
    """Return the prompts of a kind that leave room for ``num_tokens`` more."""
    encode = llm.get_tokenizer().encode
    texts = [(one["id"], one["turns"][0]) for one in prompts(kind)]
    found = [Prompt(name, text, encode(text)) for name, text in texts]
    return [one for one in found if len(one.tokens) + num_tokens <= llm.core.max_model_len]


def complete(llm: LLM, chosen: Sequence[Prompt], num_tokens: int) -> list[Completion]:
    """Return greedy completions of the prompts, one at a time, ignoring end-of-text tokens."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    completions = []
    for prompt in chosen:
        (request,) = llm.generate({"prompt_token_ids": prompt.tokens}, params, use_tqdm=False)
        tokens = list(request.outputs[0].token_ids)
        completions.append(Completion(prompt, tokens, distinct_bigrams(tokens)))
    return completions


def not_degenerate(completions: Sequence[Completion]) -> list[Completion]:
    """Return the completions that do not loop. Raises ValueError if there are none."""
    kept = [one for one in completions if one.distinct >= LEAST_DISTINCT]
    if not kept:
        raise ValueError(
            f"none of {len(completions)} completions has at least {LEAST_DISTINCT:.0%} distinct "
            f"bigrams: ask for fewer tokens, or for another model."
        )
    return kept


def sureness(llm: LLM, completion: Completion) -> float:
    """Return the log-probability of a completion under the model that generated it."""
    num_tokens = len(completion.tokens)
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, logprobs=0)
    prompt = {"prompt_token_ids": completion.prompt.tokens}
    (request,) = llm.generate(prompt, params, use_tqdm=False)
    return request.outputs[0].cumulative_logprob or 0.0


def halves(
    completions: Sequence[Completion], sure: Sequence[float]
) -> tuple[list[Completion], list[Completion]]:
    """Return two halves of the completions that are about equally hard to draft.

    Drafts are accepted where the model is confident: ranked by log-probability, completions are
    dealt A B B A, A B B A, ...
    """
    dealt: tuple[list[Completion], list[Completion]] = [], []
    for rank, i in enumerate(np.argsort(sure, stable=True)):
        dealt[rank % 4 in (1, 2)].append(completions[i])
    return dealt


class Chosen(NamedTuple):
    """The completions of one kind of prompts that are used for measuring."""

    kind: str
    completions: list[Completion]
    num_kept: int  # that count
    num_prompts: int

    def __str__(self) -> str:
        used, kept = len(self.completions), self.num_kept
        few = f", fewer than {MOST_PROMPTS}" if kept < MOST_PROMPTS else ""
        return (
            f"{used} {self.kind} prompts: of {self.num_prompts} completions {kept} are no "
            f"loops{few} (at least {LEAST_DISTINCT:.0%} of their bigrams are distinct)"
        )


def choose(llm: LLM, num_tokens: int, kind: str, most: int = MOST_PROMPTS) -> Chosen:
    """Return up to ``most`` completions that do not loop, spread evenly over a kind."""
    completions = complete(llm, fitting(llm, num_tokens, kind), num_tokens)
    kept = not_degenerate(completions)
    every = max(len(kept) // most, 1)
    return Chosen(kind, kept[::every][:most], len(kept), len(completions))

"""Which prompts a speed may be measured on: those whose completions are no loops."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specjax.bundled import PROMPTS, prompts
from specjax.engine.llm import LLM
from specjax.engine.params import SamplingParams
from specjax.metrics import LEAST_DISTINCT, distinct_bigrams

MOST_PROMPTS = 12
KINDS = tuple(PROMPTS)  # shipped ones, which were chosen, and random ones


class Prompt(NamedTuple):
    """A prompt in a model's tokens."""

    name: str
    text: str
    tokens: list[int]


class Completion(NamedTuple):
    """What the target writes after a prompt, greedily, and the share of distinct bigrams."""

    prompt: Prompt
    tokens: list[int]
    distinct: float


def fitting(llm: LLM, num_tokens: int, kind: str = "shipped") -> list[Prompt]:
    """Return the prompts of a kind that leave room for ``num_tokens`` more."""
    encode = llm.get_tokenizer().encode
    texts = [(one["id"], one["turns"][0]) for one in prompts(kind)]
    found = [Prompt(name, text, encode(text)) for name, text in texts]
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
    """Keep the completions that count. Raises ValueError if there are none."""
    kept = [one for one in completions if one.distinct >= LEAST_DISTINCT]
    if not kept:
        raise ValueError(
            f"none of {len(completions)} completions has at least {LEAST_DISTINCT:.0%} distinct "
            f"bigrams: ask for fewer tokens, or for another model."
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


class Chosen(NamedTuple):
    """The completions of one kind of prompts that a speed is measured on."""

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


def keep(llm: LLM, num_tokens: int, kind: str) -> Chosen:
    """Complete all prompts of a kind; keep those that count."""
    completions = complete(llm, fitting(llm, num_tokens, kind), num_tokens)
    kept = not_degenerate(completions)
    return Chosen(kind, kept, len(kept), len(completions))


def choose(llm: LLM, num_tokens: int, kind: str) -> Chosen:
    """Choose up to ``MOST_PROMPTS`` completions that count, spread evenly over a kind."""
    chosen = keep(llm, num_tokens, kind)
    every = max(chosen.num_kept // MOST_PROMPTS, 1)
    return chosen._replace(completions=chosen.completions[::every][:MOST_PROMPTS])

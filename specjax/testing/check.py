"""``check_drafter``: every law on one drafter, and what it brought."""

from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np

from specjax.core.types import DrafterFactory
from specjax.testing.laws import LAWS, num_traces
from specjax.testing.subject import Subject, long_rows, propose

NUM_TIMED = 20


class Report(NamedTuple):
    """What a drafter that keeps the laws brought, on the tiny random target."""

    tokens_per_round: float  # 1 + accepted / rounds, on 4 requests of 48 tokens
    acceptance_rate: float  # accepted / drafted
    seconds_per_draft: float  # median time of ``propose`` for 4 requests
    num_traces: int  # programs compiled by all laws together
    laws: tuple[str, ...]  # that were checked


def check_drafter(
    factory: DrafterFactory, *, num_speculative_tokens: int = 4, **options: Any
) -> Report:
    """Check that a drafter keeps every law, on a tiny random target; about 40 s of processor time.

    Args:
        factory: builds the drafter: the function that ``model`` of a speculative_config names. The
            target it gets has a vocabulary of 40 tokens, 2 layers and hidden states of size 32.
        num_speculative_tokens: K.
        options: the factory's other arguments: the config's ``drafter_options``.

    Returns:
        Tokens per round, cost and traces. Tokens per round of a random target say that drafts are
        accepted, not how many would be by another target.

    Raises:
        AssertionError: a law is broken; the message begins with its name.

    >>> from specjax.drafters.ngram import ngram
    >>> def prompt_lookup(target, *, num_speculative_tokens):
    ...     return ngram(num_speculative_tokens, 3, 1)
    >>> check_drafter(prompt_lookup).tokens_per_round > 1  # doctest: +SKIP
    True
    """
    before = sum(num_traces())
    subject = Subject(factory, num_speculative_tokens, options)
    for name, law in LAWS.items():
        try:
            law(subject)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None
    return report(subject, sum(num_traces()) - before)


def report(subject: Subject, num_traces: int) -> Report:
    """Return the counts and the cost of a drafter."""
    infos = jax.device_get(subject.long.infos)
    accepted, drafted = infos.num_accepted.sum(), infos.num_drafted.sum()
    engine, state = subject.start(long_rows())
    seconds = []
    for _ in range(NUM_TIMED):
        begin = perf_counter()
        jax.block_until_ready(propose(engine, subject.params.draft, state))
        seconds.append(perf_counter() - begin)
    return Report(
        tokens_per_round=1 + float(accepted / (infos.num_emitted > 0).sum()),
        acceptance_rate=float(accepted / max(drafted, 1)),
        seconds_per_draft=float(np.median(seconds[1:])),
        num_traces=num_traces,
        laws=tuple(LAWS),
    )

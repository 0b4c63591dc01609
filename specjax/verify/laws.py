"""Rules that read probabilities: what the target's law says of a draft is all they ask."""

from collections.abc import Callable

from specjax import sampling as s
from specjax.types import Draft, Rule, Text, Verdict
from specjax.verify.noise import by_token


def on_laws(kernel: Callable, address: Callable = by_token) -> Rule:
    """Make a rule of a kernel (noise, draft, target's law [B, N, V], depth) -> Verdict.

    The law after each node is the one that is sampled from: constrained, cut off and tempered.
    """

    def verify(
        noise, draft: Draft, logits, text: Text, sampling: s.Sampling, depth: int
    ) -> Verdict:
        return kernel(noise, draft, s.warp(logits, draft, text, sampling), depth)

    return Rule(address, verify)

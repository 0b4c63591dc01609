"""Verification rules that compare probabilities of the target with those of the draft."""

from typing import Protocol, runtime_checkable

from jaxtyping import Array, Float

from specjax.core import sampling as s
from specjax.core.types import Draft, DrawNoise, Rule, Sampling, Text, Verdict
from specjax.verify.noise import Noise, by_token


@runtime_checkable
class ProbsKernel(Protocol):
    """Accept or reject draft tokens, given the target's probabilities."""

    def __call__(
        self, noise: Noise, draft: Draft, target: Float[Array, "B N V"], depth: int, /
    ) -> Verdict:
        """Return the verdict; ``target[:, i]`` is the distribution of the token after node i."""
        ...


def probs_rule(kernel: ProbsKernel, draw_noise: DrawNoise = by_token) -> Rule:
    """Return the rule that applies ``kernel`` to the distributions the target samples from.

    These are the probabilities after penalties, truncation and temperature.
    """

    def verify(
        noise: Noise,
        draft: Draft,
        logits: Float[Array, "B N V"],
        text: Text,
        sampling: Sampling,
        depth: int,
    ) -> Verdict:
        return kernel(noise, draft, s.warp(logits, draft, text, sampling), depth)

    return Rule(draw_noise, verify)

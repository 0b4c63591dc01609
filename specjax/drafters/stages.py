"""Medusa and the MLP speculator: K stages on the target's last hidden state, no cache.

A stage takes in a token and scores the next one. The MLP speculator's are recurrent
(Wertheimer et al. 2024, arXiv:2404.19124); Medusa's know neither each other nor the tokens
between (Cai et al. 2024, arXiv:2401.10774), here as a chain.
"""

import functools

import jax.numpy as jnp

from specjax.drafters.none import chain
from specjax.drafters.unroll import last_of, pick, reachable, with_root
from specjax.types import Drafter, Stages


@functools.cache
def staged(
    stages: Stages,
    num_speculative_tokens: int,
    draft_sample_method: str = "greedy",
    max_model_len: int = 2**30,
) -> Drafter:
    """Build the drafter; its state [B, D] is the hidden state before the last token."""
    depth = num_speculative_tokens

    def init(params, batch_size, capacity):
        return jnp.zeros((batch_size, stages.hidden_size), stages.dtype)

    def propose(params, state, text, sampling, keys, window):
        path, laws = jnp.full((state.shape[0], depth), stages.vocab_size, jnp.int32), []
        token = jnp.take_along_axis(text.tokens, text.lengths[:, None] - 1, axis=1)[:, 0]
        carry = stages.start(params, state)
        for level in range(depth):
            carry, logits = stages.step(params, carry, token, level)
            token, law = pick(logits, path, level, text, sampling, keys, draft_sample_method)
            path, laws = path.at[:, level].set(token), [*laws, law]
        probs = None if laws[0] is None else with_root(jnp.stack(laws))
        return chain(text, path, reachable(text, depth, max_model_len), probs), state

    def observe(params, state, text, seen, window):
        return last_of(seen.hidden, seen.count, state)

    return Drafter(init, propose, observe, depth, depth + 1)

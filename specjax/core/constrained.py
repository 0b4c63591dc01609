"""A round in three programs, so that the host can read the draft and compute a grammar's masks.

``propose`` drafts; the host cuts the draft, and while ``forward`` runs the target it computes which
tokens the grammar allows after each node; ``verify`` takes them as ``Sampling.mask``. The target's
distribution at a node is then the masked one for every rule, so that what is true of a rule is true
of it under a grammar. Together they are ``decode.step``, whose parts they call. No program depends
on the grammar. The caller jits them with the state donated.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.core import decode
from specjax.core.types import RUNNING, Draft, Engine, Output, Params, State, StepInfo


def propose(engine: Engine, params: Params, state: State) -> tuple[Draft, State]:
    """Return a draft, which no grammar has seen yet, and the state after drafting."""
    text, _, drafter_state, sampling, keys = state
    draft, drafter_state = engine.drafter.propose(
        params.draft, drafter_state, text, sampling, keys, engine.window
    )
    return decode.limit_draft_depth(draft, sampling), state._replace(drafter=drafter_state)


def cut(
    draft: Draft, tokens: Int[Array, "B N"], allowed: Bool[Array, "B N"]
) -> tuple[Draft, Bool[Array, "B N"]]:
    """Return the draft as the rule sees it, and the nodes that the target reads.

    The target reads no forbidden node. A rule that compares p with q must still see one: of sampled
    drafts it emits the target's distribution only if it rejects those with p = 0 and recovers from
    max(p - q, 0); cut because of what was sampled, they would leave p itself there. A drafter
    without probabilities has not sampled, and its nodes may go (or others come: ``tokens`` are
    those of the draft, or forced by the grammar).
    """
    if draft.probs is None:
        draft = draft._replace(tokens=tokens, valid=allowed)
    return draft, allowed


def forward(
    engine: Engine, params: Params, state: State, draft: Draft, present: Bool[Array, "B N"]
) -> tuple[Output, Float[Array, "B N V"], State]:
    """Run the target over the nodes that are present; return its output, logits and the state."""
    present = present & (state.text.reason == RUNNING)[:, None]
    output, logits, cache = decode.forward(engine, params.target, draft, present, state.cache)
    return output, logits, state._replace(cache=cache)


def verify(
    engine: Engine, params: Params, state: State, draft: Draft, output: Output,
    logits: Float[Array, "B N V"], mask: Int[Array, "B N M"],
) -> tuple[State, StepInfo]:  # fmt: skip
    """Verify the draft under a mask for each node; commit, and let the drafter observe.

    Returns the state, and the infos [1, B, ...] as ``decode.generate`` does.
    """
    text, cache, drafter_state, sampling, keys = state
    noise = engine.rule.draw_noise(keys, text, draft, sampling, engine.target.vocab_size)
    text, cache, observation, info = decode.decide(
        engine, draft, output, logits, text, cache, sampling._replace(mask=mask), noise
    )
    drafter_state = engine.drafter.observe(
        params.draft, drafter_state, text, observation, engine.window
    )
    state = State(text, cache, drafter_state, sampling, keys)
    return state, jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], info)

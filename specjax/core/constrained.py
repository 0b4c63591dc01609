"""A round in three programs, so that the host can read the draft and compute a grammar's masks.

``propose`` drafts; the host cuts the draft, and while ``forward`` runs the target it computes which
tokens the grammar allows after each node; ``verify`` takes them as ``Sampling.mask``. The target's
distribution at a node is then the masked one for every rule, so that what is true of a rule is true
of it under a grammar. Together they are ``decode.step``, whose parts they call. No program depends
on the grammar. Each takes and returns only what it reads and changes: with the whole state, calling
them took longer than making masks. The caller jits them, and donates what they return anew.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from specjax.core import decode
from specjax.core.types import (
    RUNNING,
    Cache,
    Draft,
    Engine,
    Output,
    Params,
    PyTree,
    Sampling,
    StepInfo,
    Text,
)

Changing = tuple[Text, Cache, PyTree]  # text, cache and the drafter's state


def propose(
    engine: Engine, params: PyTree, drafter_state: PyTree, text: Text, sampling: Sampling,
    keys: Key[Array, "B"],
) -> tuple[Draft, PyTree]:  # fmt: skip
    """Return a draft, which no grammar has seen yet, and the drafter's state after it."""
    draft, drafter_state = engine.drafter.propose(
        params, drafter_state, text, sampling, keys, engine.window
    )
    return decode.limit_draft_depth(draft, sampling), drafter_state


def cut(
    draft: Draft, tokens: Int[Array | np.ndarray, "B N"], allowed: Bool[Array | np.ndarray, "B N"]
) -> tuple[Draft, Bool[Array | np.ndarray, "B N"]]:
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
    engine: Engine, params: PyTree, cache: Cache, text: Text, draft: Draft,
    present: Bool[Array, "B N"],
) -> tuple[Output, Float[Array, "B N V"], Cache]:  # fmt: skip
    """Run the target over the nodes that are present; return its output, logits and the cache."""
    present = present & (text.reason == RUNNING)[:, None]
    return decode.forward(engine, params, draft, present, cache)


def read_root(
    engine: Engine, params: Params, state: tuple[Cache, PyTree], text: Text, sampling: Sampling,
    keys: Key[Array, "B"],
) -> tuple[Draft, Output, Float[Array, "B N V"], tuple[Cache, PyTree]]:  # fmt: skip
    """Return the draft of a root alone, what ``forward`` returns for it, and the state.

    No grammar forbids a root, so that one program does it: two took longer to call.
    """
    cache, drafter_state = state
    draft, drafter_state = propose(engine, params.draft, drafter_state, text, sampling, keys)
    output, logits, cache = forward(engine, params.target, cache, text, draft, draft.valid)
    return draft, output, logits, (cache, drafter_state)


def verify(
    engine: Engine, params: PyTree, state: Changing, sampling: Sampling, keys: Key[Array, "B"],
    draft: Draft, output: Output, logits: Float[Array, "B N V"], mask: Int[Array, "B N M"],
) -> tuple[Changing, StepInfo]:  # fmt: skip
    """Verify the draft under a mask for each node; commit, and let the drafter observe.

    Returns what has changed of the state, and the infos [1, B, ...] as ``decode.generate`` does.
    """
    text, cache, drafter_state = state
    noise = engine.rule.draw_noise(keys, text, draft, sampling, engine.target.vocab_size)
    text, cache, observation, info = decode.decide(
        engine, draft, output, logits, text, cache, sampling._replace(mask=mask), noise
    )
    drafter_state = engine.drafter.observe(params, drafter_state, text, observation, engine.window)
    return (text, cache, drafter_state), jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], info)

"""Broken engines: drafter and rule are right, and what a round leaves behind is not.

Each is audited with its drafter and its rule over two rounds (``joint``): a cache, a recurrent
state or the state of a logits processor is harmful only in the round after it went wrong.
"""

import functools
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax.audit.pairs import request
from specjax.audit.specimen import Specimen, random_tables
from specjax.core.decode import step as sound_step
from specjax.core.sampling import FORBIDDEN
from specjax.core.types import State, StepInfo
from specjax.drafters.draft_model import draft_model
from specjax.drafters.tree import fixed
from specjax.models.toy import attentive_target, markov_target, recurrent_target
from specjax.verify.rejection import rejection
from specjax.verify.rejection_tree import rejection_tree

CHAIN = draft_model(markov_target(2), 2, "probabilistic")


def keys_of_rejected_tokens_kept() -> Specimen:
    """Symptom: acceptance falls as the text grows, and the text forgets what it was about.

    Hint: a cache has to shrink by what was rejected, before anything is written behind it.

    Report: https://github.com/ml-explore/mlx-lm/pull/1427
    """

    def step(engine, params, state):
        state, info = sound_step(engine, params, state)
        grown = state.cache.lengths + info.num_drafted - info.num_accepted
        return state._replace(cache=state.cache._replace(lengths=grown)), info

    return Specimen(rejection, drafter=CHAIN, sound_target=attentive_target(2), step=step)


def recurrent_state_not_rolled_back() -> Specimen:
    """Symptom: right with attention alone; a hybrid model repeats itself after refusals.

    Hint: a sum has no slots that a length could cut off.

    Report: https://github.com/ml-explore/mlx-lm/pull/1109
    """
    sound = recurrent_target(2)

    def forward(
        params, tokens, positions, visible, cache, window, only=None, present=None, order="tree"
    ):
        every = params, tokens, positions, visible, cache, window, only, present
        return sound.forward(*every, "text")

    broken = sound._replace(forward=forward)
    return Specimen(rejection, drafter=CHAIN, target=broken, sound_target=sound)


def siblings_at_consecutive_positions() -> Specimen:
    """Symptom: a tree's first branch is verified well, the second one's tokens look far away.

    Hint: two tokens of which only one can be written stand at the same place.

    Report: https://github.com/NVIDIA/TensorRT-LLM/pull/13081
    """
    sound = attentive_target(2)

    def forward(params, tokens, positions, visible, cache, *others):
        counted = cache.lengths[:, None] + jnp.arange(tokens.shape[1])[None]
        return sound.forward(params, tokens, counted, visible, cache, *others)

    return Specimen(
        rejection_tree,
        sound=rejection_tree,
        drafter=draft_model(markov_target(2), fixed([(0,), (1,)]), "probabilistic"),
        target=sound._replace(forward=forward),
        sound_target=sound,
    )


def rejected_tokens_counted_by_penalties() -> Specimen:
    """Symptom: a frequency penalty is stronger with speculation, for what the draft model likes.

    Hint: who tells the counts that a token was not written after all?

    Report: https://github.com/osaurus-ai/vmlx-swift/pull/361
    """

    def step(engine, params, state):
        state, info = sound_step(engine, params, state)
        return biased(state, -0.7 * rejected(info, 2)), info

    asked = functools.partial(request, 2, penalties=(1.0, 0.0, 0.7))
    return Specimen(rejection, drafter=CHAIN, step=step, request=asked)


def grammar_state_not_rolled_back() -> Specimen:
    """Symptom: a bracket stays open, where the draft model has tried to close it.

    Hint: the grammar allows the last word once. Which one does the matcher believe to have seen?

    Report: https://github.com/vllm-project/vllm/pull/46272
    """

    def tables(size):
        target, draft = random_tables(size)
        target[1, 1] = FORBIDDEN  # after the last word never again, at any distance
        return target, draft

    def step(engine, params, state):
        state, info = sound_step(engine, params, state)
        tried = rejected(info, 3) * (jnp.arange(3) == 1)[None]
        return biased(state, FORBIDDEN * tried), info

    return Specimen(
        rejection,
        drafter=draft_model(markov_target(3), 1, "probabilistic"),
        sound_target=attentive_target(3),
        step=step,
        tables=tables,
        request=functools.partial(request, 3),
        size=3,
    )


def rejected(info: StepInfo, size: int) -> Float[Array, "B V"]:
    """Return how often each token was drafted in a round, and rejected."""
    places = jnp.arange(info.drafted.shape[1])[None]
    lost = (info.drafted >= 0) & (places >= info.num_accepted[:, None])
    every = info.drafted[:, :, None] == jnp.arange(size)[None, None]
    return (every & lost[:, :, None]).sum(axis=1).astype(jnp.float32)


def biased(state: State, by: Float[Array, "B V"]) -> State:
    """Return a state whose requests have this bias in addition."""
    assert state.sampling.bias is not None
    return state._replace(sampling=state.sampling._replace(bias=state.sampling.bias + by))


ENGINES: tuple[Callable[[], Specimen], ...] = (
    keys_of_rejected_tokens_kept,
    recurrent_state_not_rolled_back,
    siblings_at_consecutive_positions,
    rejected_tokens_counted_by_penalties,
    grammar_state_not_rolled_back,
)

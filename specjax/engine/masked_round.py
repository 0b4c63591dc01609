"""One round of a batch in which requests have grammars: the host makes masks of the draft.

Which drafted tokens a grammar allows is known at once, and the target reads no others. Which tokens
may follow each of them takes longer, and is computed while the target runs. The next round begins
before the results of this one are read: it drafts, and without a draft the target runs too, since
only the choice of a token waits for a mask.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from specjax.core import constrained, decode
from specjax.core.types import Draft, Engine, Output, Params, Recurrent, State, StepInfo
from specjax.engine.driver import Masked
from specjax.engine.grammar import EVERYTHING, GrammarState, Nodes, num_words
from specjax.engine.programs import Programs
from specjax.engine.request_state import RequestState
from specjax.engine.rows import Host

ROOT = Nodes(np.zeros(1, np.int32), np.zeros(1, np.int32), np.ones(1, bool))


class Begun(NamedTuple):
    """A round up to where the host is needed. It is void if another state or engine follows."""

    state: State
    engine: Engine
    draft: Draft
    read: tuple[Output, jax.Array] | None  # the target's output and logits, of a root alone


def run(
    programs: Programs, engine: Engine, params: Params, state: State,
    decoding: Mapping[int, RequestState], begun: Begun | None,
) -> tuple[State, StepInfo, Begun]:  # fmt: skip
    """Run a round; return the state, the infos [1, B, ...] on the device, and the next one begun.

    Args:
        programs: of the loop.
        engine: for the present window and number of requests; the window has room for a round more.
        params: the present ones.
        state: of all slots.
        decoding: the requests by slot; all their tokens have been read.
        begun: what the round before returned.
    """
    device = programs.driver.masked
    assert device is not None
    if begun is None or begun.state is not state or begun.engine != engine:
        begun = begin(device, engine, params, state)
    text, cache, drafter_state, sampling, keys = begun.state
    draft, grammars = begun.draft, follow(decoding)
    if begun.read is None:
        draft, present, nodes = cut(engine, draft, grammars, decoding)
        output, logits, cache = device.forward(engine, params.target, cache, text, draft, present)
    else:
        (output, logits), nodes = begun.read, None
    masks = everything(len(text.reason), engine.drafter.nodes, programs.vocab_size)
    for slot, grammar in grammars.items():
        grammar.masks(ROOT if nodes is None else row_of(nodes, slot), masks[slot])
    changed, infos = device.verify(
        engine, params.draft, (text, cache, drafter_state), sampling, keys, draft, output, logits,
        masks,
    )  # fmt: skip
    state = State(*changed, sampling, keys)
    begun = begin(device, engine, params, state)
    return begun.state, infos, begun


def begin(device: Masked, engine: Engine, params: Params, state: State) -> Begun:
    """Start a round: draft, and where that is all run the target.

    Both can be repeated: they write where the text does not yet reach. A recurrent layer's cache
    has another form between the target and what verifies, so there the target waits.
    """
    text, cache, drafter_state, sampling, keys = state
    recurrent = any(isinstance(layer, Recurrent) for layer in cache.layers)
    if engine.drafter.nodes == 1 and not recurrent:
        draft, output, logits, (cache, drafter_state) = device.read_root(
            engine, params, (cache, drafter_state), text, sampling, keys
        )
        read = output, logits
    else:
        draft, drafter_state = device.propose(
            engine, params.draft, drafter_state, text, sampling, keys
        )
        read = None
    return Begun(State(text, cache, drafter_state, sampling, keys), engine, draft, read)


def follow(decoding: Mapping[int, RequestState]) -> dict[int, GrammarState]:
    """Return the grammars by slot, advanced to the end of what has been committed."""
    grammars = {slot: one.grammar for slot, one in decoding.items() if one.grammar is not None}
    for slot, grammar in grammars.items():
        grammar.follow(decoding[slot].tokens)
    return grammars


def cut(
    engine: Engine, draft: Draft, grammars: Mapping[int, GrammarState],
    decoding: Mapping[int, RequestState],
) -> tuple[Draft, Host, Nodes]:  # fmt: skip
    """Return a draft as the grammars leave it, which nodes the target reads, and those nodes."""
    tokens, parents, valid = jax.device_get((draft.tokens, draft.parents, draft.valid))
    nodes = Nodes(tokens, parents, valid)
    tokens, allowed = tokens.copy(), valid.copy()
    can_force = draft.probs is None and decode.is_chain(engine, draft)
    for slot, grammar in grammars.items():
        most = decoding[slot].request.params.num_speculative_tokens
        most = engine.drafter.depth if most is None else min(most, engine.drafter.depth)
        row = row_of(nodes, slot)
        tokens[slot], allowed[slot] = grammar.cut(row, most if can_force else 0)
    draft, present = constrained.cut(draft, tokens, allowed)
    return draft, present, Nodes(tokens, parents, allowed)


def row_of(nodes: Nodes, slot: int) -> Nodes:
    """Return one row of a batch's nodes."""
    return Nodes(nodes.tokens[slot], nodes.parents[slot], nodes.valid[slot])


def everything(batch_size: int, num_nodes: int, vocab_size: int) -> Host:
    """Return masks [B, N, M] that allow every token."""
    return np.full((batch_size, num_nodes, num_words(vocab_size)), EVERYTHING, np.int32)


def first_masks(group: Sequence[RequestState], num_rows: int, vocab_size: int) -> Host | None:
    """Return the masks [num_rows, 1, M] of the first tokens; None if no request has a grammar."""
    if all(one.grammar is None for one in group):
        return None
    masks = everything(num_rows, 1, vocab_size)
    for row, one in enumerate(group):
        if one.grammar is not None:
            one.grammar.masks(ROOT, masks[row])
    return masks

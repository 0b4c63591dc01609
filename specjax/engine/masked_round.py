"""One round of a batch in which requests have grammars: the host makes masks of the draft.

Which drafted tokens a grammar allows is known at once, and the target reads no others. Which tokens
may follow each of them takes longer, and is computed while the target runs.
"""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from specjax.core import constrained, decode
from specjax.core.types import Engine, Params, State, StepInfo
from specjax.engine.grammar import EVERYTHING, GrammarState, Nodes, num_words
from specjax.engine.programs import Programs
from specjax.engine.request_state import RequestState
from specjax.engine.rows import Host

ROOT = Nodes(np.zeros(1, np.int32), np.zeros(1, np.int32), np.ones(1, bool))


def run(
    programs: Programs, engine: Engine, params: Params, state: State,
    decoding: Mapping[int, RequestState],
) -> tuple[State, StepInfo]:  # fmt: skip
    """Run a round; return the state and the infos [1, B, ...] on the device.

    Args:
        programs: of the loop.
        engine: for the present window and number of requests.
        params: the present ones.
        state: of all slots.
        decoding: the requests by slot; all their tokens have been read.
    """
    device = programs.driver.masked
    assert device is not None
    text, cache, drafter_state, sampling, keys = state
    draft, drafter_state = device.propose(engine, params.draft, drafter_state, text, sampling, keys)
    tokens, parents, valid = jax.device_get((draft.tokens, draft.parents, draft.valid))
    nodes = Nodes(tokens, parents, valid)
    tokens, allowed = tokens.copy(), valid.copy()
    can_force = draft.probs is None and decode.is_chain(engine, draft)
    grammars: dict[int, GrammarState] = {}
    for slot, one in decoding.items():
        if one.grammar is None:
            continue
        one.grammar.follow(one.tokens)
        grammars[slot] = one.grammar
        most = one.request.params.num_speculative_tokens
        most = engine.drafter.depth if most is None else min(most, engine.drafter.depth)
        row = row_of(nodes, slot)
        tokens[slot], allowed[slot] = one.grammar.cut(row, most if can_force else 0)
    draft, present = constrained.cut(draft, tokens, allowed)
    output, logits, cache = device.forward(engine, params.target, cache, text, draft, present)
    masks = everything(len(tokens), engine.drafter.nodes, programs.vocab_size)
    cut = Nodes(tokens, nodes.parents, allowed)
    for slot, grammar in grammars.items():
        grammar.masks(row_of(cut, slot), masks[slot])
    changed, infos = device.verify(
        engine, params.draft, (text, cache, drafter_state), sampling, keys, draft, output, logits,
        masks,
    )  # fmt: skip
    return State(*changed, sampling, keys), infos


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

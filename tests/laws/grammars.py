"""A tokenizer for the tiny model, and the engine's loop under grammars."""

import functools
import json
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import tokenizers

from specjax.core.types import Drafter, Engine, Params, Rule
from specjax.engine.grammar import GrammarCompiler
from specjax.engine.loop import Loop
from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.options.structured_outputs import StructuredOutputsParams
from specjax.engine.plan import plan_offline
from specjax.engine.request_state import RequestState
from specjax.engine.rows import Request
from specjax.engine.scheduler import Scheduler
from specjax.engine.text.tokenizer import Tokenizer
from specjax.verify.walk import walk
from tests.laws import harness as h

EOS = 0
PIECES = (
    "<eos>", *'{}[]":,-.', *"0123456789", *"abcdefnlrstu", "true", "false", "null", '{"', '":',
    '",', '"a', "12",
)  # fmt: skip
LIMIT = 64  # output tokens
PROMPT = 8


@functools.cache
def tokenizer() -> Tokenizer:
    """Return a tokenizer with a piece for each of the tiny model's tokens."""
    assert len(PIECES) == h.VOCAB
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE({piece: i for i, piece in enumerate(PIECES)}, [])
    )
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<eos>"])
    return Tokenizer(
        backend=backend,
        eos_ids=(EOS,),
        special_tokens=types.MappingProxyType({"eos_token": "<eos>"}),
        special_ids=frozenset({EOS}),
        chat_templates=types.MappingProxyType({}),
    )


@functools.cache
def compiler() -> GrammarCompiler:
    return GrammarCompiler(tokenizer(), (EOS,), h.VOCAB)


def request(
    seed: int, form: StructuredOutputsParams | None, temperature: float = 1.5,
    max_tokens: int = LIMIT, **more: Any,
) -> Request:  # fmt: skip
    """Return a request with a random prompt; equal shapes for all."""
    rng = np.random.default_rng(seed)
    params = SamplingParams(
        temperature=temperature, max_tokens=max_tokens, logprobs=20, structured_outputs=form, **more
    )
    return Request(
        prompt=tuple(rng.integers(1, h.VOCAB, PROMPT).tolist()),
        params=params,
        seed=seed,
        limit=PROMPT + max_tokens,
        stop_ids=(EOS,),
        grammar=None if form is None else compiler().compile(form),
    )


def json_form(schema: Any) -> StructuredOutputsParams:
    return StructuredOutputsParams(json=schema, disable_any_whitespace=True)


def complete(
    drafter: Drafter,
    requests: Sequence[Request],
    params: Params | None = None,
    *,
    rule: Rule = walk,
    slots: int = 4,
    ahead: bool = False,
) -> list[RequestState]:
    """Run requests by the engine's loop, as ``LLM`` does, or ``Service`` (``ahead``)."""
    plan = plan_offline(requests, h.VOCAB, drafter.depth, drafter.room, slots)
    states = [RequestState(i, one) for i, one in enumerate(requests)]
    scheduler = Scheduler(plan.sizes)
    scheduler.num_slots = plan.sizes[-1]
    scheduler.put(states)
    engine = Engine(h.TARGET, drafter, rule, h.CAPACITY)
    params = h.weights(drafter) if params is None else params
    loop = Loop(engine, params, plan, scheduler=scheduler, alternate=ahead)
    while len(scheduler):
        loop.step()
    return states


def text_of(state: RequestState) -> str:
    return tokenizer().decode(state.tokens)


def same(found: Sequence[RequestState], expected: Sequence[RequestState]) -> None:
    """Raise AssertionError unless texts and log probabilities are equal, bit for bit."""
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.tokens == theirs.tokens, (text_of(ours), text_of(theirs))
        assert ours.finish_reason == theirs.finish_reason
        for mine, other in zip(scores(ours), scores(theirs), strict=True):
            for a, b in zip(mine, other, strict=True):
                np.testing.assert_array_equal(a, b)


def scores(state: RequestState) -> list[Any]:
    return [one for each in state.rounds for one in each.logprobs]


def parses(state: RequestState, schema: Any) -> bool:
    """Return whether the text has ended; raise if it then does not fit its schema."""
    import jsonschema

    if state.finish_reason != "stop":
        return False
    jsonschema.validate(json.loads(text_of(state)), schema)
    return True

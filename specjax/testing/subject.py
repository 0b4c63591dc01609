"""``Subject``: a drafter on the tiny target, with the runs that several laws look at."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import jax

from specjax.core.types import (
    Draft,
    Drafter,
    DrafterFactory,
    Engine,
    LoadDraft,
    Params,
    PyTree,
    Rule,
    State,
    Target,
)
from specjax.drafters.custom import build_custom, no_weights
from specjax.drafters.none import none
from specjax.models.build import build_target
from specjax.models.config import ModelConfig
from specjax.testing import harness as h
from specjax.verify.walk import walk

CHUNK = 16
NUM_TOKENS = 48


@dataclass(frozen=True, eq=False)
class Subject:
    """The drafter of a factory, built for the tiny target.

    Args:
        factory: builds it.
        num_speculative_tokens: K.
        options: further arguments of the factory.
    """

    factory: DrafterFactory
    num_speculative_tokens: int
    options: Mapping[str, Any]

    def build(self, **changes: Any) -> tuple[Drafter, LoadDraft]:
        """Return the drafter and the function that loads its weights, with some options changed."""
        options = {**self.options, **changes}
        return build_custom(
            self.factory, build_target(h.TINY), self.num_speculative_tokens, options
        )

    @cached_property
    def built(self) -> tuple[Drafter, LoadDraft]:
        """Return the drafter and the function that loads its weights."""
        return self.build()

    @property
    def drafter(self) -> Drafter:
        """Return the drafter."""
        return self.built[0]

    @cached_property
    def config(self) -> ModelConfig:
        """Return the tiny target's config, with as many layers as the drafter reads."""
        return replace(h.TINY, num_layers=max(h.TINY.num_layers, *self.drafter.taps, 0))

    @cached_property
    def target(self) -> Target:
        """Return the tiny target, which shows the layers that the drafter reads."""
        return build_target(self.config, self.drafter.taps)

    @cached_property
    def params(self) -> Params:
        """Return the weights of both."""
        target = h.tiny_weights(self.config)
        return Params(target, self.built[1](target))

    def run(self, rows: list[h.Row], **shape: Any) -> h.Result:
        """Complete a batch with the drafter."""
        return h.run(self.drafter, rows, target=self.target, params=self.params, **shape)

    def start(self, rows: list[h.Row], rule: Rule = walk) -> tuple[Engine, State]:
        """Return the engine, and the state after the prompts have been read."""
        engine = Engine(self.target, self.drafter, rule, h.CAPACITY)
        state = h.init_state(engine, self.params, *h.pack(rows, lean=True))
        for first in range(0, max(len(row.prompt) for row in rows), CHUNK):
            state, _, _ = h.prefill(engine, self.params, state, first, CHUNK)
        return engine, state

    @cached_property
    def drafted(self) -> h.Result:
        """Return a run over requests of every kind."""
        return self.run(h.random_rows(4, seed=1))

    @cached_property
    def long(self) -> h.Result:
        """Return a run over requests that all write ``NUM_TOKENS`` tokens."""
        return self.run(long_rows(), lean=True)


@cache
def plain(config: ModelConfig = h.TINY) -> h.Result:
    """Return plain decoding of what ``Subject.drafted`` decodes."""
    params = Params(h.tiny_weights(config), ())
    return h.run(none, h.random_rows(4, seed=1), target=build_target(config), params=params)


def long_rows(size: int = 4, seed: int = 2, max_tokens: int = NUM_TOKENS) -> list[h.Row]:
    """Return requests without stops and penalties, greedy and sampled in turn."""
    rows = h.random_rows(size, seed, plain=True)
    return [
        row._replace(max_tokens=max_tokens, temperature=0.8 * (b % 2)) for b, row in enumerate(rows)
    ]


def of_drafter(drafter: Drafter, load: LoadDraft = no_weights) -> Subject:
    """Return the subject of a drafter that has been built already."""

    def given(target, *, num_speculative_tokens):
        return drafter, load

    return Subject(given, drafter.depth, {})


def propose_from(engine: Engine, params: PyTree, state: State) -> tuple[Draft, PyTree]:
    """Return a state's draft, and the drafter's state after it."""
    drafter, text = engine.drafter, state.text
    return drafter.propose(params, state.drafter, text, state.sampling, state.keys, engine.window)


propose = jax.jit(propose_from, static_argnums=0)

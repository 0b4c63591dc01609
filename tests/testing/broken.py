"""Drafters that break one law each; all but that propose what followed the last token before."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from specjax.drafters.ngram import lookup, ngram
from specjax.drafters.none import chain
from specjax.testing.harness import CAPACITY, VOCAB, random_rows
from specjax.testing.subject import plain

K = 4
GOOD = ngram(K, 3, 1)


def good(target, *, num_speculative_tokens):
    """Build a drafter that keeps every law."""
    return ngram(num_speculative_tokens, 3, 1)


def takes_anything(target, *, num_speculative_tokens, **options):
    """Build it from whatever options."""
    return GOOD


def another_each_time(target, *, num_speculative_tokens):
    """Build another drafter in every call."""
    return GOOD._replace(propose=lambda *args: GOOD.propose(*args))


def without_root(params, state, text, sampling, keys, window):
    draft, state = GOOD.propose(params, state, text, sampling, keys, window)
    return draft._replace(tokens=draft.tokens.at[:, 0].set(draft.tokens[:, 1])), state


def without_root_later(params, state, text, sampling, keys, window):
    """Forget the last token once texts have 45: too late to be seen draft by draft."""
    draft, state = GOOD.propose(params, state, text, sampling, keys, window)
    root = jnp.where(text.lengths > 45, draft.tokens[:, 1], draft.tokens[:, 0])
    return draft._replace(tokens=draft.tokens.at[:, 0].set(root)), state


@functools.cache
def siblings_once(target, *, num_speculative_tokens):
    """Build a drafter that proposes two children of the root where it promises a chain.

    Once, to the second request, shortly before its end: a wrong token and the right one, which is
    accepted; then the keys and values of the wrong one are kept.
    """
    rows, answers = random_rows(4, seed=1), plain().tokens
    known = np.zeros((len(rows), CAPACITY), np.int32)
    for b, (row, answer) in enumerate(zip(rows, answers, strict=True)):
        known[b, len(row.prompt) : len(row.prompt) + len(answer)] = answer

    def propose(params, state, text, sampling, keys, window):
        right = jnp.take_along_axis(jnp.asarray(known), text.lengths[:, None], axis=1)
        proposed = jnp.concatenate([(right + 1) % VOCAB, right, right, right], axis=1)
        second = jnp.arange(len(rows)) == 1
        now = ((text.lengths == text.limits - 3) & second)[:, None]
        draft = chain(text, proposed, now & (jnp.arange(K) < 2)[None])
        siblings = jnp.where(now, jnp.asarray([[0, 0, 0, 2, 3]]), draft.parents)
        return draft._replace(parents=siblings), state

    return GOOD._replace(propose=propose)


def by_the_chunk(params, state, text, sampling, keys, window):
    """Propose the number of tokens that were observed last."""
    said = jnp.broadcast_to(state[:, None], (len(state), K))
    return chain(text, said, jnp.ones(said.shape, bool)), state


def count_observed(params, state, text, observation, window):
    return jnp.where(observation.count > 0, observation.count, state)


def by_the_batch(params, state, text, sampling, keys, window):
    """Propose the length of the longest text of the batch."""
    said = jnp.broadcast_to(text.lengths.max() % VOCAB, (len(text.lengths), K))
    return chain(text, said, jnp.ones(said.shape, bool)), state


def past_the_room(params, state, text, sampling, keys, window):
    """Keep the text in a buffer, write 16 positions past it, and look tokens up there."""
    scratch = jax.vmap(
        lambda row, at: jax.lax.dynamic_update_slice(row, jnp.full(16, 3, row.dtype), (at,))
    )(text.tokens, text.lengths)
    proposed, valid = lookup(text._replace(tokens=scratch), K, 3, 1)
    return chain(text, proposed, valid), state


def copies(params, state, text, sampling, keys, window):
    """Turn a large state round in every round."""
    draft, _ = GOOD.propose(params, (), text, sampling, keys, window)
    return draft, jnp.roll(state, 1, axis=1)


def claims_uniform(params, state, text, sampling, keys, window):
    """Say that each token was drawn from all tokens alike."""
    draft, state = GOOD.propose(params, state, text, sampling, keys, window)
    probs = jnp.full((*draft.tokens.shape, VOCAB), 1 / VOCAB, jnp.float32)
    return draft._replace(probs=probs), state


def counter(params, batch_size, capacity):
    return jnp.zeros(batch_size, jnp.int32)


def large(params, batch_size, capacity):
    return jnp.zeros((batch_size, capacity, 64), jnp.float32)


def of(drafter):
    """Return the factory of a drafter."""

    def factory(target, *, num_speculative_tokens):
        return drafter

    return factory


replace = functools.partial(GOOD._replace)
BROKEN = {
    "bad configs": takes_anything,
    "one trace": another_each_time,
    "well formed": of(replace(propose=without_root)),
    "lossless": of(replace(propose=without_root_later)),
    "bitwise": siblings_once,
    "observe": of(replace(init=counter, propose=by_the_chunk, observe=count_observed)),
    "company": of(replace(propose=by_the_batch)),
    "room": of(replace(propose=past_the_room)),
    "in place": of(replace(init=large, propose=copies)),
    "exact": of(replace(propose=claims_uniform)),
}

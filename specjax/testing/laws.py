"""The laws of a drafter, as functions that raise AssertionError with what they have seen.

Each builds the drafter of a ``Subject`` for a tiny random target and runs requests of every kind.
Where nothing else is said, drafts are verified by ``walk``.
"""

from collections.abc import Callable

import jax
import numpy as np

from specjax.testing import harness as h
from specjax.testing.exact import exact
from specjax.testing.form import check_draft, check_state, require
from specjax.testing.in_place import in_place
from specjax.testing.subject import CHUNK, NUM_TOKENS, Subject, long_rows, plain, propose

NUM_ROUNDS = 8  # whose drafts are looked at one by one


class Wrong:
    """A value that no option can have."""

    def __repr__(self):
        """Return the name by which a message may mention it."""
        return "<a wrong value>"


def bad_configs(subject: Subject) -> None:
    """Check that unknown options and values of a wrong type are refused, by name."""
    for name in ("no_such_option", *subject.options):
        wrong = Wrong()
        try:
            subject.build(**{name: wrong})
        except (ValueError, TypeError) as error:
            named = name in str(error) or repr(wrong) in str(error)
            require(named, f"the message names neither the option {name!r} nor its value: {error}")
        else:
            raise AssertionError(f"the factory takes {name}={wrong!r}: raise ValueError")


def one_trace(subject: Subject) -> None:
    """Check that equal arguments build an equal drafter, and other requests compile nothing."""
    again, _ = subject.build()
    same = again == subject.drafter and hash(again) == hash(subject.drafter)
    require(
        same,
        "two calls with the same arguments build two different drafters, and JAX compiles a "
        "program for each: decorate the function that makes the Drafter with functools.cache",
    )
    before = None
    for seed in (2, 3, 4):
        subject.run(long_rows(seed=seed), lean=True)
        traces = num_traces()
        before = before or traces
        require(traces == before, "other prompts and seeds of the same shapes were traced again")


def num_traces() -> tuple[int, int]:
    """Return how many (prefill, decode) programs have been traced in this process."""
    return h.prefill._cache_size(), h.generate._cache_size()  # pyright: ignore


def well_formed(subject: Subject) -> None:
    """Check the drafts and states of the first rounds: shapes, types, root, parents, tokens."""
    rows = long_rows()
    engine, state = subject.start(rows)
    empty = jax.eval_shape(
        lambda params: engine.drafter.init(params, len(rows), h.CAPACITY), subject.params.draft
    )
    check_state(empty, state.drafter, "observe")
    for _ in range(NUM_ROUNDS):
        draft, after = propose(engine, subject.params.draft, state)
        check_draft(engine, jax.device_get(draft), jax.device_get(state))
        check_state(state.drafter, after, "propose")
        following, _ = h.step(engine, subject.params, state)
        check_state(state.drafter, following.drafter, "observe")
        state = following


def lossless(subject: Subject) -> None:
    """Check that the text is the text of plain decoding, token for token."""
    found, expected = subject.drafted, plain(subject.config)
    for b, (ours, theirs) in enumerate(zip(found.tokens, expected.tokens, strict=True)):
        require(
            ours == theirs,
            f"request {b} reads {ours} with the drafter and {theirs} without it",
        )
    require(found.reason == expected.reason, "requests end for another reason with the drafter")


def bitwise(subject: Subject) -> None:
    """Check that the logits of every emitted token have the bits of plain decoding."""
    assert_bitwise(subject.drafted, plain(subject.config))


def assert_bitwise(found: h.Result, expected: h.Result) -> None:
    """Raise AssertionError unless texts, reasons and logits of two runs are equal bitwise."""
    require(found.tokens == expected.tokens, "the texts differ")
    require(found.reason == expected.reason, "the reasons differ")
    for b, (ours, theirs) in enumerate(zip(found.logprobs, expected.logprobs, strict=True)):
        wrong = np.flatnonzero((ours != theirs).any(axis=-1))
        if len(wrong):
            gap = np.abs(ours - theirs).max()
            raise AssertionError(
                f"the texts are equal, and the log probabilities of request {b} differ from token "
                f"{wrong[0]} on, by up to {gap:.3g}"
            )


def observe(subject: Subject) -> None:
    """Check that drafts depend on the committed text, not on the chunks and rounds it came in.

    The prompt is read in other chunks; and a request is begun again with a prompt that holds what
    it had written. Where both draft, they draft the same tokens.
    """
    expected = subject.long
    chunked = subject.run(long_rows(), lean=True, chunk=CHUNK // 4)
    same_drafts(chunked, expected, "when prompts are read in chunks of another size")
    rows, cut = long_rows(), expected.rounds // 2
    emitted = np.asarray(expected.infos.num_emitted)[:cut].sum(axis=0)  # after the first token
    again = [
        row._replace(
            prompt=(*row.prompt, *expected.tokens[b][: int(emitted[b])]),
            max_tokens=row.max_tokens - int(emitted[b]),
        )
        for b, row in enumerate(rows)
    ]
    resumed = subject.run(again, lean=True)
    for b in range(len(rows)):
        require(
            resumed.tokens[b] == expected.tokens[b][int(emitted[b]) :],
            f"request {b} goes on with another text when begun again",
        )
    same_drafts(resumed, later(expected, cut), "when a request is begun again in the middle")


def later(result: h.Result, first: int) -> h.Result:
    """Return a run without its first rounds."""
    infos = jax.tree.map(
        lambda leaf: np.asarray(leaf)[first:], result.infos._replace(logprobs=None)
    )
    return result._replace(infos=infos, rounds=result.rounds - first)


def same_drafts(found: h.Result, expected: h.Result, when: str) -> None:
    """Raise AssertionError unless two runs draft the same tokens as long as they are in step."""
    ours, theirs = np.asarray(found.infos.drafted), np.asarray(expected.infos.drafted)
    emitted = [np.asarray(one.infos.num_emitted) for one in (found, expected)]
    for b in range(ours.shape[1]):
        for r in range(min(found.rounds, expected.rounds)):
            both = (ours[r, b] >= 0) & (theirs[r, b] >= 0)
            require(
                bool((ours[r, b] == theirs[r, b])[both].all()),
                f"{when}, request {b} drafts {ours[r, b].tolist()} in round {r} and not "
                f"{theirs[r, b].tolist()}",
            )
            if emitted[0][r, b] != emitted[1][r, b]:
                break


def company(subject: Subject) -> None:
    """Check that a request's drafts do not depend on the other requests of its batch."""
    rows = long_rows()
    mates = subject.run([rows[0], *long_rows(3, seed=99)], lean=True)
    ours, theirs = (np.asarray(one.infos.drafted)[:, 0] for one in (mates, subject.long))
    for r in range(min(mates.rounds, subject.long.rounds)):
        require(
            bool((ours[r] == theirs[r]).all()),
            f"beside other requests, request 0 drafts {ours[r].tolist()} in round {r} and not "
            f"{theirs[r].tolist()}",
        )


def room(subject: Subject) -> None:
    """Check that a round writes no further past the text than ``nodes`` and ``slots`` say.

    In a cache that ends there, the drafts are those in a larger one.
    """
    limit = max(len(row.prompt) for row in long_rows()) + NUM_TOKENS
    capacity = limit + subject.drafter.room
    tight = subject.run(long_rows(), lean=True, capacity=capacity, window=capacity)
    ours, theirs = (np.asarray(one.infos.drafted) for one in (tight, subject.long))
    require(
        bool((ours == theirs).all()),
        f"in a cache of {capacity} positions, which is the text and nodes or slots beyond it, the "
        f"drafts differ from those in {h.CAPACITY}: Drafter.slots is too small",
    )


LAWS: dict[str, Callable[[Subject], None]] = {
    "bad configs": bad_configs,
    "well formed": well_formed,  # before a whole request is decoded, where JAX would speak first
    "one trace": one_trace,
    "lossless": lossless,
    "bitwise": bitwise,
    "observe": observe,
    "company": company,
    "room": room,
    "in place": in_place,
    "exact": exact,
}

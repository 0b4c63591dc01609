"""Speculative decoding as pure functions over pytrees: prefill, one round, and many rounds.

``prefill`` reads a prompt chunk by chunk, ``step`` runs one round (propose, verify, observe), and
``generate`` runs rounds in one ``while_loop``. The caller jits them, with ``Engine`` static and
the state donated.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from specjax.core import cache as kv
from specjax.core.sampling import gather_logprobs
from specjax.core.topology import ancestors, causal, depths, place
from specjax.core.types import (
    FAILED,
    LENGTH,
    RUNNING,
    STOPPED,
    Cache,
    Draft,
    Engine,
    Logprobs,
    Observation,
    Output,
    Params,
    PyTree,
    Sampling,
    State,
    StepInfo,
    Text,
    Verdict,
)


def step(engine: Engine, params: Params, state: State) -> tuple[State, StepInfo]:
    """Run one round: propose, verify, observe. Every running row commits 1 to K + 1 tokens."""
    text, cache, drafter_state, sampling, keys = state
    draft, drafter_state = engine.drafter.propose(
        params.draft, drafter_state, text, sampling, keys, engine.window
    )
    draft = limit_draft_depth(draft, sampling)
    noise = engine.rule.draw_noise(keys, text, draft, sampling, engine.target.vocab_size)
    text, cache, observation, info = judge(
        engine, params.target, draft, text, cache, sampling, noise
    )
    drafter_state = engine.drafter.observe(
        params.draft, drafter_state, text, observation, engine.window
    )
    return State(text, cache, drafter_state, sampling, keys), info


def judge(
    engine: Engine, params: PyTree, draft: Draft, text: Text, cache: Cache, sampling: Sampling,
    noise: PyTree,
) -> tuple[Text, Cache, Observation, StepInfo]:  # fmt: skip
    """Verify a draft with one target forward pass, and commit the tokens that it emits.

    This is what npu_bridge lowers: its jaxpr has no while, no cond and no random bits.
    """
    present = draft.valid & (text.reason == RUNNING)[:, None]
    output, logits, cache = forward(engine, params, draft, present, cache)
    return decide(engine, draft, output, logits, text, cache, sampling, noise)


def forward(
    engine: Engine, params: PyTree, draft: Draft, present: Bool[Array, "B N"], cache: Cache
) -> tuple[Output, Float[Array, "B N V"], Cache]:
    """Run the target over a draft; return hidden states, logits after each node, and the cache.

    Nodes that are not ``present`` need not be computed.
    """
    positions, visible = place(draft, cache.lengths)
    shape = positions, visible, cache, engine.window
    order = "chain" if is_chain(engine, draft) else "tree"
    output, cache = engine.target.forward(params, draft.tokens, *shape, None, present, order)
    return output, engine.target.logits(params, output.hidden), cache


def is_chain(engine: Engine, draft: Draft) -> bool:
    """Return whether each node of a draft follows the one before it."""
    return draft.tokens.shape[1] == engine.drafter.depth + 1


def decide(
    engine: Engine, draft: Draft, output: Output, logits: Float[Array, "B N V"], text: Text,
    cache: Cache, sampling: Sampling, noise: PyTree,
) -> tuple[Text, Cache, Observation, StepInfo]:  # fmt: skip
    """Verify a draft, given the target's logits, and commit the tokens that it emits."""
    verdict = engine.rule.verify(noise, draft, logits, text, sampling, engine.drafter.depth)
    text = mark_nonfinite(text, output.hidden, logits, verdict, text.reason == RUNNING)
    running = text.reason == RUNNING
    committed, num_emitted = commit(text, verdict, sampling, running)
    observation = gather(output, verdict, cache.lengths, num_emitted)
    cache = kv.keep(cache, None if is_chain(engine, draft) else verdict.path, num_emitted)
    drafted = draft.valid[:, 1:].sum(axis=1, dtype=jnp.int32)
    info = StepInfo(
        num_drafted=jnp.where(running, drafted, 0),
        num_accepted=jnp.where(running, verdict.num_accepted, 0),
        num_emitted=num_emitted,
        tokens=verdict.tokens,
        reason=committed.reason,
        drafted=jnp.where(draft.valid & running[:, None], draft.tokens, -1)[:, 1:],
        logprobs=emitted_logprobs(logits, verdict, engine.num_logprobs, sampling.scored_ids),
    )
    return committed, cache, observation, info


def limit_draft_depth(draft: Draft, sampling: Sampling) -> Draft:
    """Invalidate nodes deeper than a row's ``max_draft``; 0 leaves plain decoding."""
    deep = depths(ancestors(draft.parents)) > sampling.max_draft[:, None]
    return draft._replace(valid=draft.valid & ~deep)


def mark_nonfinite(
    text: Text,
    hidden: Float[Array, "B N D"],
    logits: Float[Array, "B N V"],
    verdict: Verdict,
    judged: Bool[Array, "B"],
) -> Text:
    """Set ``reason`` to FAILED in the judged rows with NaN or infinity behind an emitted token.

    So weights or an input that overflow end one row, and not its batch. Looking at the logits of
    the emitted tokens is enough: argmax returns the index of a NaN.
    """
    rows, columns = jnp.arange(text.reason.shape[0])[:, None], jnp.arange(verdict.path.shape[1])
    sound = jnp.isfinite(hidden).all(axis=-1)[rows, verdict.path]
    sound &= jnp.isfinite(logits[rows, verdict.path, verdict.tokens])
    sound |= columns[None] > verdict.num_accepted[:, None]
    lost = judged & ~sound.all(axis=1)
    return text._replace(reason=jnp.where(lost, FAILED, text.reason))


def commit(
    text: Text, verdict: Verdict, sampling: Sampling, running: Bool[Array, "B"]
) -> tuple[Text, Int[Array, "B"]]:
    """Append the emitted tokens to the text, up to the row's limit and its first stop token.

    Returns the text and how many tokens each row got: 0 where it is not ``running``.
    """
    rows, index = jnp.arange(running.shape[0])[:, None], jnp.arange(verdict.tokens.shape[1])[None]
    room = jnp.minimum(verdict.num_accepted + 1, text.limits - text.lengths)
    stops = (verdict.tokens[:, :, None] == sampling.stop_ids[:, None]).any(axis=-1)
    stops &= index < room[:, None]
    stopped = running & stops.any(axis=1)
    cut = jnp.where(stopped, jnp.argmax(stops, axis=1).astype(jnp.int32) + 1, room)
    count = jnp.where(running, cut, 0)
    past_the_end = text.tokens.shape[1]
    goal = jnp.where(index < count[:, None], text.lengths[:, None] + index, past_the_end)
    lengths = text.lengths + count
    full = running & (lengths >= text.limits)
    reason = jnp.where(stopped, STOPPED, jnp.where(full, LENGTH, text.reason))
    tokens = text.tokens.at[rows, goal].set(verdict.tokens, mode="drop")
    return text._replace(tokens=tokens, lengths=lengths, reason=reason), count


def gather(
    output: Output, verdict: Verdict, start: Int[Array, "B"], num_emitted: Int[Array, "B"]
) -> Observation:
    """Return the emitted tokens, each with the target's hidden states at the node before it."""
    hidden = jnp.take_along_axis(output.hidden, verdict.path[:, :, None], axis=1)
    taps = jnp.take_along_axis(output.taps, verdict.path[:, :, None, None], axis=1)
    return Observation(verdict.tokens, hidden, taps, start, num_emitted)


def emitted_logprobs(
    logits: Float[Array, "B N V"],
    verdict: Verdict,
    num_logprobs: int | None,
    scored_ids: Int[Array, "B J"] | None,
) -> Logprobs | None:
    """Return the emitted tokens' log probabilities, of raw logits; None if not requested."""
    if num_logprobs is None:
        return None
    along = jnp.take_along_axis(logits, verdict.path[:, :, None], axis=1)
    return gather_logprobs(along, verdict.tokens, num_logprobs, scored_ids)


def prefill(
    engine: Engine, params: Params, state: State, start: Int[Array, ""], chunk: int
) -> tuple[State, StepInfo, Logprobs | None]:
    """Read prompt positions ``start .. start + chunk``; rows that end there emit a token.

    That first token is not drafted. Rows whose prompt ended in an earlier chunk, or that do
    not run, keep their state.

    Args:
        engine: static.
        params: weights of target and drafter.
        state: rows that all have read ``start`` positions, or their whole prompt.
        start: the first position to read.
        chunk: how many positions, at most; static.

    Returns:
        The state; counts, with one emitted token where a prompt ended; and, if the engine has
        ``num_prompt_logprobs``, those of the token after each position ``start + i``.
    """
    text, cache, drafter_state, sampling, keys = state
    running = text.reason == RUNNING
    count = jnp.where(running, jnp.clip(text.starts - start, 0, chunk), 0)
    ends = running & (text.starts > start) & (text.starts <= start + chunk)

    columns = start + jnp.arange(chunk + 1)
    window = jnp.take(text.tokens, columns, axis=1, mode="fill", fill_value=0)
    positions = cache.lengths[:, None] + jnp.arange(chunk)[None]
    last = jnp.clip(text.starts - 1 - start, 0, chunk - 1)[:, None]
    # otherwise one position's hidden state: of the others the last layer's keys and values are read
    everywhere = engine.drafter.reads_hidden or engine.num_prompt_logprobs is not None
    output, cache = engine.target.forward(
        params.target,
        window[:, :-1],
        positions,
        causal(chunk),
        cache,
        engine.window,
        None if everywhere else last[:, 0],
        jnp.arange(chunk)[None] < count[:, None],
        "text",
    )
    root = Draft(
        tokens=jnp.take_along_axis(window, last, axis=1),
        parents=jnp.zeros_like(last),
        valid=jnp.ones_like(last, dtype=bool),
        probs=None,
    )
    hidden = output.hidden
    if everywhere:
        hidden = jnp.take_along_axis(hidden, last[:, :, None], axis=1)
    logits = engine.target.logits(params.target, hidden)
    noise = engine.rule.draw_noise(keys, text, root, sampling, engine.target.vocab_size)
    verdict = engine.rule.verify(noise, root, logits, text, sampling, 0)
    text = mark_nonfinite(text, hidden, logits, verdict, ends)
    text, num_emitted = commit(text, verdict, sampling, ends & (text.reason == RUNNING))

    following = jnp.take(text.tokens, columns[1:], axis=1, mode="fill", fill_value=0)
    observation = Observation(following, output.hidden, output.taps, cache.lengths, count)
    drafter_state = engine.drafter.observe(
        params.draft, drafter_state, text, observation, engine.window
    )
    state = State(text, kv.keep(cache, None, count), drafter_state, sampling, keys)
    zero, nothing = jnp.zeros_like(num_emitted), root.tokens[:, 1:]
    scores = emitted_logprobs(logits, verdict, engine.num_logprobs, sampling.scored_ids)
    info = StepInfo(zero, zero, num_emitted, verdict.tokens, text.reason, nothing, scores)
    if engine.num_prompt_logprobs is None:
        return state, info, None
    everywhere = engine.target.logits(params.target, output.hidden)
    return state, info, gather_logprobs(everywhere, following, engine.num_prompt_logprobs)


def generate(
    engine: Engine,
    params: Params,
    state: State,
    max_rounds: Int[Array, ""],
    min_running: Int[Array, ""],
    history: int,
) -> tuple[State, StepInfo, Int[Array, ""]]:
    """Run rounds in one ``while_loop`` until a limit is reached.

    Args:
        engine: static.
        params: weights of target and drafter.
        state: after prefill.
        max_rounds: stop after so many, at most ``history``.
        min_running: stop when fewer rows run. It also stops when a row could outgrow the window.
        history: how many rounds there is room for in the result; static.

    Returns:
        The state, the infos stacked [history, B, ...] (zeros past the last round), and the
        number of rounds.
    """
    one_round = jax.jit(step, static_argnums=0)  # traced once, for shapes and for the loop

    def going(carry):
        state, _, rounds = carry
        running = state.text.reason == RUNNING
        fits = state.text.lengths + engine.drafter.room <= engine.window
        enough = running.sum(dtype=jnp.int32) >= jnp.maximum(min_running, 1)
        return enough & (fits | ~running).all() & (rounds < max_rounds)

    def body(carry):
        state, infos, rounds = carry
        state, info = one_round(engine, params, state)
        infos = jax.tree.map(lambda all_rounds, one: all_rounds.at[rounds].set(one), infos, info)
        return state, infos, rounds + 1

    shapes = one_round.trace(engine, params, state).out_info[1]
    infos = jax.tree.map(lambda x: jnp.zeros((history, *x.shape), x.dtype), shapes)
    start = (state, infos, jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(going, body, start)


def init_state(
    engine: Engine, params: Params, text: Text, sampling: Sampling, keys: Key[Array, "B"]
) -> State:
    """Return a state with empty caches, whose capacity is that of ``text``."""
    batch_size, capacity = text.tokens.shape
    cache = engine.target.init_cache(batch_size, capacity)
    drafter_state = engine.drafter.init(params.draft, batch_size, capacity)
    return State(text, cache, drafter_state, sampling, keys)

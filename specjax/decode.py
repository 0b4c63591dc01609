"""The whole project: draft, verify and accept as one pure function over pytrees.

``prefill`` reads a prompt chunk by chunk, ``step`` is one round of speculation, and
``generate`` repeats it inside one while_loop. Whoever drives these jits them, with
``Engine`` static and the state donated.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax import cache as kv
from specjax.sampling import Sampling, score
from specjax.topology import ancestors, causal, depths, place
from specjax.types import (
    FAILED,
    LENGTH,
    RUNNING,
    STOPPED,
    Draft,
    Engine,
    Logprobs,
    Observation,
    Output,
    Params,
    State,
    StepInfo,
    Text,
    Verdict,
)


def step(engine: Engine, params: Params, state: State) -> tuple[State, StepInfo]:
    """Run one round: propose, judge, observe. Every running row commits 1 to K + 1 tokens."""
    text, cache, guess, sampling, keys = state
    draft, guess = engine.drafter.propose(params.draft, guess, text, sampling, keys, engine.window)
    draft = curb(draft, sampling)
    noise = engine.rule.address(keys, text, draft, sampling, engine.target.vocab_size)
    text, cache, seen, info = judge(engine, params.target, draft, text, cache, sampling, noise)
    guess = engine.drafter.observe(params.draft, guess, text, seen, engine.window)
    return State(text, cache, guess, sampling, keys), info


def judge(engine, params, draft: Draft, text: Text, cache, sampling: Sampling, noise):
    """Verify a draft with one target forward pass and commit what it says.

    The one function npu_bridge lowers: no while, no cond, no random bits in it.
    """
    depth = engine.drafter.depth
    positions, visible = place(draft, cache.lengths)
    present = draft.valid & (text.reason == RUNNING)[:, None]
    output, cache = engine.target.forward(
        params, draft.tokens, positions, visible, cache, engine.window, None, present
    )
    logits = engine.target.logits(params, output.hidden)
    verdict = engine.rule.verify(noise, draft, logits, text, sampling, depth)
    text = fail(text, output.hidden, logits, verdict, text.reason == RUNNING)
    running = text.reason == RUNNING
    committed, num_emitted = commit(text, verdict, sampling, running)
    seen = gather(output, verdict, cache.lengths, num_emitted)
    is_chain = draft.tokens.shape[1] == depth + 1
    cache = (
        kv.advance(cache, num_emitted) if is_chain else kv.keep(cache, verdict.path, num_emitted)
    )
    drafted = draft.valid[:, 1:].sum(axis=1, dtype=jnp.int32)
    info = StepInfo(
        num_drafted=jnp.where(running, drafted, 0),
        num_accepted=jnp.where(running, verdict.num_accepted, 0),
        num_emitted=num_emitted,
        tokens=verdict.tokens,
        reason=committed.reason,
        drafted=jnp.where(draft.valid & running[:, None], draft.tokens, -1)[:, 1:],
        logprobs=report(logits, verdict, engine.num_logprobs),
    )
    return committed, cache, seen, info


def curb(draft: Draft, sampling: Sampling) -> Draft:
    """Invalidate nodes deeper than a row's ``max_draft``; 0 leaves plain decoding."""
    deep = depths(ancestors(draft.parents)) > sampling.max_draft[:, None]
    return draft._replace(valid=draft.valid & ~deep)


def fail(
    text: Text,
    hidden: Float[Array, "B N D"],
    logits: Float[Array, "B N V"],
    verdict: Verdict,
    judged: Bool[Array, "B"],
) -> Text:
    """Take out the judged rows whose verdict rests on numbers that are not finite.

    Weights or an input that overflow cost the one row they reach, not its mates. The logits of
    the emitted tokens tell: argmax returns the place of a NaN.
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
    """Append what was emitted, cut at the row's limit and at its first stop token."""
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
    """Pair each emitted token with what the target computed just before it."""
    hidden = jnp.take_along_axis(output.hidden, verdict.path[:, :, None], axis=1)
    taps = jnp.take_along_axis(output.taps, verdict.path[:, :, None, None], axis=1)
    return Observation(verdict.tokens, hidden, taps, start, num_emitted)


def report(logits, verdict: Verdict, num_logprobs: int | None) -> Logprobs | None:
    """Score the emitted tokens under the raw target law, if anyone asked."""
    if num_logprobs is None:
        return None
    along = jnp.take_along_axis(logits, verdict.path[:, :, None], axis=1)
    return score(along, verdict.tokens, num_logprobs)


def prefill(
    engine: Engine, params: Params, state: State, start: Int[Array, ""], chunk: int
) -> tuple[State, StepInfo, Logprobs | None]:
    """Read prompt positions ``start .. start + chunk``; rows that end there emit a token.

    That first token is undrafted. Rows whose prompt ended in an earlier chunk, or that do
    not run, keep their state. Returns the prompt's log probabilities when asked: column i
    scores the token after position ``start + i``.
    """
    text, cache, guess, sampling, keys = state
    running = text.reason == RUNNING
    count = jnp.where(running, jnp.clip(text.starts - start, 0, chunk), 0)
    ends = running & (text.starts > start) & (text.starts <= start + chunk)

    columns = start + jnp.arange(chunk + 1)
    window = jnp.take(text.tokens, columns, axis=1, mode="fill", fill_value=0)
    positions = cache.lengths[:, None] + jnp.arange(chunk)[None]
    last = jnp.clip(text.starts - 1 - start, 0, chunk - 1)[:, None]
    # whatever else nobody looks at: of the last layer, keys and values are all that is needed
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
    noise = engine.rule.address(keys, text, root, sampling, engine.target.vocab_size)
    verdict = engine.rule.verify(noise, root, logits, text, sampling, 0)
    text = fail(text, hidden, logits, verdict, ends)
    text, num_emitted = commit(text, verdict, sampling, ends & (text.reason == RUNNING))

    following = jnp.take(text.tokens, columns[1:], axis=1, mode="fill", fill_value=0)
    seen = Observation(following, output.hidden, output.taps, cache.lengths, count)
    guess = engine.drafter.observe(params.draft, guess, text, seen, engine.window)
    state = State(text, kv.advance(cache, count), guess, sampling, keys)
    zero, nothing = jnp.zeros_like(num_emitted), root.tokens[:, 1:]
    scores = report(logits, verdict, engine.num_logprobs)
    info = StepInfo(zero, zero, num_emitted, verdict.tokens, text.reason, nothing, scores)
    if engine.num_prompt_logprobs is None:
        return state, info, None
    everywhere = engine.target.logits(params.target, output.hidden)
    return state, info, score(everywhere, following, engine.num_prompt_logprobs)


def generate(
    engine: Engine,
    params: Params,
    state: State,
    max_rounds: Int[Array, ""],
    min_running: Int[Array, ""],
    history: int,
) -> tuple[State, StepInfo, Int[Array, ""]]:
    """Run rounds until fewer than ``min_running`` rows run, a row could outgrow the window,
    or ``max_rounds`` (at most ``history``) are done.

    Returns the state, the infos stacked [history, B, ...] (zeros past the last round) and
    the number of rounds.
    """

    def going(carry):
        state, _, rounds = carry
        running = state.text.reason == RUNNING
        fits = state.text.lengths + engine.drafter.room <= engine.window
        enough = running.sum(dtype=jnp.int32) >= jnp.maximum(min_running, 1)
        return enough & (fits | ~running).all() & (rounds < max_rounds)

    def body(carry):
        state, infos, rounds = carry
        state, info = step(engine, params, state)
        infos = jax.tree.map(lambda all_rounds, one: all_rounds.at[rounds].set(one), infos, info)
        return state, infos, rounds + 1

    shapes = jax.eval_shape(lambda p, s: step(engine, p, s)[1], params, state)
    infos = jax.tree.map(lambda x: jnp.zeros((history, *x.shape), x.dtype), shapes)
    start = (state, infos, jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(going, body, start)


def init_state(
    engine: Engine, params: Params, text: Text, sampling: Sampling, keys: Array
) -> State:
    """Allocate everything a generation needs; the capacity is the text's."""
    batch_size, capacity = text.tokens.shape
    cache = engine.target.init_cache(batch_size, capacity)
    guess = engine.drafter.init(params.draft, batch_size, capacity)
    return State(text, cache, guess, sampling, keys)

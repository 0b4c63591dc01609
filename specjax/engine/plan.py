"""Choose the shapes of the loop's programs: everything that is compiled is planned here.

``LLM.generate`` knows its requests and takes the smallest shapes that hold them, compiled when
they are first needed. A service does not know its requests in advance: all its shapes are set at
the start, and few, since each takes seconds to compile and about 100 of the 65,530 memory maps of
a process: 2 tiers x slots 1, 2, 4, ... x windows, and one per prefill chunk x windows. That is 45
for 8 slots and 2,048 tokens, 63 for 64 slots (tests/engine/test_scheduler.py).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from specjax.engine.options.sampling_params import MAX_LOGPROB_TOKEN_IDS, MAX_LOGPROBS
from specjax.engine.rows import Layout, Request, bucket, layout

HISTORY = 64  # rounds per call of the compiled loop
# Prompt positions per prefill pass. On two cores 16, 64, 128, 192 took the bundled target 7, 14,
# 22, 29 ms (and 96 as long as 128): up to 48 positions of padding cost no more than reading the
# weights once more. As many positions as the largest chunk has are prefilled between two decode
# rounds, usually two whole prompts: with one at a time, the slowest hundredth of 8 clients waited
# 3.4 times the median.
CHUNKS = 16, 64, 128, 192, 256, 512
MOST_PADDING = 48
# Short prompts are prefilled several in one pass: how many, and how many positions in all. Beyond
# 100 positions a pass is compute-bound, and only the host's work per pass is saved. A service has
# one size of group, since each size compiles a program per chunk.
GROUPS, MOST_TOGETHER = (2, 4, 8, 16, 32, 64), 1024
SERVED_GROUPS, MOST_SERVED_TOGETHER = (4,), 256
LEAST_WINDOW = 64
SCORED_CHUNK = 64  # positions: prompt_logprobs compute the whole vocabulary at each of them
SERVED_WINDOW = 256  # positions: the smallest window of a service; each next is 4 times as large
SMOOTH = 16  # positions: attention over 270 of them took twice as long as over 272, at batch 8
SERVED_STOPS, MOST_STOPS = 4, 64  # stop ids of a lean row, of any row
MOST_BAD_WORDS = 16, 8  # words, tokens each
ALL_OPTIONS = frozenset({"min_tokens", "top_k", "top_p", "min_p", "penalties", "bias"})


class ProgramTier(NamedTuple):
    """The options a compiled program supports: its layout and number of log probabilities."""

    layout: Layout
    num_logprobs: int | None

    def supports(self, request: Request) -> bool:
        """Return whether this program supports all options of a request."""
        own = self.layout
        needed = layout([request], own.vocab_size, own.depth)
        return (
            needed.options <= own.options
            and needed.num_stop_ids <= own.num_stop_ids
            and needed.num_bad_words <= own.num_bad_words
            and needed.bad_word_length <= own.bad_word_length
            and needed.num_scored_ids <= own.num_scored_ids
            and (request.params.num_logprobs or 0) <= (self.num_logprobs or 0)
            and (request.params.num_logprobs is None or self.num_logprobs is not None)
        )


class Plan(NamedTuple):
    """The shapes of the loop's programs."""

    capacity: int  # T
    sizes: tuple[int, ...]  # numbers of slots, rising
    prefill_tier: ProgramTier  # of the prefill programs
    tiers: tuple[ProgramTier, ...]  # of the decode programs, from lean to full
    num_prompt_logprobs: int | None
    chunks: tuple[int, ...]  # prompt positions per prefill pass
    groups: tuple[tuple[int, int], ...]  # (prompts, chunk of each) prefilled in one pass
    scored_chunks: tuple[int, ...]  # of prompts whose log probabilities are wanted
    windows: tuple[int, ...] | None  # None: powers of two, as they are needed
    history: int  # most rounds per call of the compiled loop
    patience: int  # rounds for which a batch must have been too large before it shrinks
    min_tokens_to_shrink: int  # output tokens still to come, for the batch to shrink
    scores_all: bool = False  # every prompt is read by the programs that return log probabilities

    def stages(self) -> tuple["Plan", ...]:
        """Return plans in the order to compile them, from few programs to all of this one's.

        Each serves any request: its programs, of the largest shapes, stand in for others. The
        first reads every prompt as if its log probabilities were wanted.
        """
        largest = self._replace(
            sizes=self.sizes[-1:],
            tiers=self.tiers[-1:],
            chunks=self.chunks[-1:],
            groups=(),
            windows=self.windows and self.windows[-1:],
        )
        return largest._replace(chunks=self.scored_chunks, scores_all=True), largest, self

    def check_request(self, request: Request) -> None:
        """Raise ValueError if a request has more stop tokens or bad words than any program."""
        most, words = self.tiers[-1].layout, request.bad_words
        for what, count, limit in (
            ("stop_token_ids", len(request.stop_ids), most.num_stop_ids),
            ("bad_words", len(words), most.num_bad_words),
            ("tokens of a bad word", max(map(len, words), default=0), most.bad_word_length),
        ):
            if count > limit:
                raise ValueError(f"{what}: at most {limit} are served, got {count}.")

    def tier(self, requests: Sequence[Request]) -> ProgramTier:
        """Return the leanest tier that supports all requests."""
        return next(one for one in self.tiers if all(map(one.supports, requests)))

    def next_chunk(self, left: int, scored: bool) -> int:
        """Return how many positions of a prompt to prefill next, when ``left`` are left.

        ``scored``: its log probabilities are wanted.
        """
        return next_chunk(left, self.scored_chunks if scored else self.chunks)

    def group_size(self, lengths: Sequence[int]) -> int:
        """Return how many of the next prompts to prefill in one pass; each fits one chunk."""
        best = 1
        for count, chunk in self.groups:
            if count <= len(lengths) and max(lengths[:count]) <= chunk:
                best = max(best, count)
        return best

    def group_shape(self, count: int, longest: int) -> tuple[int, int]:
        """Return (prompts, chunk of each) of the smallest pass that holds ``count`` prompts."""
        return next((n, c) for n, c in self.groups if n >= count and c >= longest)

    def window(self, now: int, ever: int | None = None) -> int:
        """Return the window, the prefix of the cache that attention reads, for ``now`` positions.

        Every new window compiles the step again: so where windows are not set at the start, and
        the largest that will be needed, for ``ever`` positions, is at most four times what is
        needed now, it is taken at once.
        """
        if self.windows is not None:
            return next((one for one in self.windows if one >= now), self.capacity)
        now = bucket(now, LEAST_WINDOW)
        ever = now if ever is None else bucket(ever, LEAST_WINDOW)
        return min(ever if ever <= 4 * now else now, self.capacity)


def plan_offline(
    requests: Sequence[Request], vocab_size: int, depth: int, room: int, max_num_seqs: int
) -> Plan:
    """Return the plan for requests that are all known: the smallest shapes that hold them."""
    tier = ProgramTier(
        layout(requests, vocab_size, depth), most(r.params.num_logprobs for r in requests)
    )
    size = min(bucket(min(len(requests), max_num_seqs), 1), max_num_seqs)
    return Plan(
        capacity=bucket(max(r.limit for r in requests) + room, LEAST_WINDOW),
        sizes=slots_of(size),
        prefill_tier=tier,
        tiers=(tier,),
        num_prompt_logprobs=most(r.params.prompt_logprobs for r in requests),
        chunks=CHUNKS,
        groups=groups(CHUNKS, GROUPS, MOST_TOGETHER),
        scored_chunks=CHUNKS,
        windows=None,
        history=HISTORY,
        patience=0,
        min_tokens_to_shrink=256,  # compiling takes 1 to 3 s, a round 1 to 3 ms
    )


def plan_serving(
    usual: Layout,
    max_model_len: int,
    room: int,
    max_num_seqs: int,
    most_read: int | None,
    max_logprobs: int = MAX_LOGPROBS,
) -> Plan:
    """Return the plan of a service, whose requests are not known yet.

    Args:
        usual: the layout of a request that sets no options.
        most_read: prompt positions to prefill between two rounds (max_num_batched_tokens).
        max_logprobs: the most that a request may ask for; more than usual have decode programs of
            their own, and every first token has them.

    Raises:
        ValueError: ``most_read`` is less than the smallest chunk.
    """
    chunks = tuple(c for c in CHUNKS if most_read is None or c <= most_read)
    if not chunks:
        raise ValueError(
            f"max_num_batched_tokens={most_read} is less than the smallest piece of a prompt "
            f"that is read at once: at least {CHUNKS[0]}."
        )
    words, length = MOST_BAD_WORDS
    lean = usual._replace(num_stop_ids=max(usual.num_stop_ids, SERVED_STOPS))
    full = lean._replace(
        num_stop_ids=max(usual.num_stop_ids, MOST_STOPS),
        options=ALL_OPTIONS,
        num_bad_words=words,
        bad_word_length=length,
        num_scored_ids=MAX_LOGPROB_TOKEN_IDS,
    )
    capacity, windows, window = max_model_len + room, [], SERVED_WINDOW
    capacity += -capacity % SMOOTH
    while 2 * window <= capacity:
        windows.append(window)
        window *= 4
    rising = dict.fromkeys((MAX_LOGPROBS, max(max_logprobs, MAX_LOGPROBS)))
    everything = [ProgramTier(full, count) for count in rising]
    return Plan(
        capacity=capacity,
        sizes=slots_of(max_num_seqs),
        prefill_tier=everything[-1],
        tiers=(ProgramTier(lean, None), *everything),
        num_prompt_logprobs=everything[-1].num_logprobs,
        chunks=chunks,
        groups=groups(chunks, SERVED_GROUPS, min(most_read or CHUNKS[-1], MOST_SERVED_TOGETHER)),
        scored_chunks=(min(SCORED_CHUNK, chunks[-1]),),
        windows=(*windows, capacity),
        history=1,
        patience=8,
        min_tokens_to_shrink=0,
    )


def groups(chunks: Sequence[int], counts: Sequence[int], most: int) -> tuple[tuple[int, int], ...]:
    """Return the (prompts, chunk of each) of all prefill passes of at most ``most`` positions."""
    return tuple((count, chunk) for count in counts for chunk in chunks if count * chunk <= most)


def slots_of(size: int) -> tuple[int, ...]:
    """Return the numbers of slots that a batch may have: 1, 2, 4, ... below ``size``, ``size``."""
    return (*(1 << i for i in range(max(size - 1, 0).bit_length())), size)


def next_chunk(left: int, chunks: Sequence[int] = CHUNKS) -> int:
    """Return how many positions of a prompt to prefill next, when ``left`` are left."""
    over = min((c for c in chunks if c >= left), default=chunks[-1])
    under = max((c for c in chunks if c <= left), default=over)
    return over if over - left <= MOST_PADDING else under


def most(values: Iterable[int | None]) -> int | None:
    """Return the largest value that is not None; None if there is none."""
    return max((value for value in values if value is not None), default=None)

"""Which programs the loop may run: every shape that is compiled is chosen here.

``LLM.generate`` knows its requests and takes the smallest shapes that serve them, compiled when
they are first met. A service does not know who will come: all its shapes are set beforehand, and
few, since each takes seconds to compile and about 100 of the 65,530 memory maps of a process:
2 levels x slots 1, 2, 4, ... x windows, and one per piece of a prompt x windows. That is 45 for 8
slots and 2,048 tokens, 63 for 64 slots (tests/engine/test_scheduler.py).
"""

from collections.abc import Sequence
from typing import NamedTuple

from specjax.engine.params import MAX_LOGPROBS
from specjax.engine.rows import Layout, Request, bucket, layout

HISTORY = 64  # rounds per entry of the compiled loop
# Positions of a prompt that are read at once. On two cores 16, 64, 128, 192 took the bundled target
# 7, 14, 22, 29 ms (and 96 as long as 128): computing up to 48 for nothing takes no longer
# than reading the weights once more. So many as the largest also come between two rounds, as a rule
# two whole prompts: one by one, the slowest hundredth of 8 clients waited 3.4 times the median.
CHUNKS = 16, 64, 128, 192, 256, 512
MOST_PADDING = 48
# Prompts that are short enough are read side by side: so many, and so many positions in all. Beyond
# 100 positions the products of a pass are at the processor's rate, and what is left to save is what
# the host does per pass. A service has one number, since each compiles a program per piece.
GROUPS, MOST_TOGETHER = (2, 4, 8, 16, 32, 64), 1024
SERVED_GROUPS, MOST_SERVED_TOGETHER = (4,), 256
LEAST_WINDOW = 64
SCORED_CHUNK = 64  # positions: prompt_logprobs look at the whole vocabulary at each of them
SERVED_WINDOW = 256  # positions: the least; four times as many follow, and so on
SMOOTH = 16  # positions: attention over 270 of them took twice as long as over 272, at batch 8
SERVED_STOPS, MOST_STOPS = 4, 64  # stop ids of a lean row, of any row
MOST_BAD_WORDS = 16, 8  # words, tokens each
EVERYTHING = frozenset({"min_tokens", "top_k", "top_p", "min_p", "penalties", "bias"})


class Level(NamedTuple):
    """What a compiled program can do for a row beyond the minimum."""

    layout: Layout
    num_logprobs: int | None

    def serves(self, request: Request) -> bool:
        """Say whether a request asks for no more than this."""
        wanted, own = layout([request], self.layout.vocab_size, self.layout.depth), self.layout
        return (
            wanted.wanted <= own.wanted
            and wanted.num_stop_ids <= own.num_stop_ids
            and wanted.num_bad_words <= own.num_bad_words
            and wanted.bad_word_length <= own.bad_word_length
            and (request.params.logprobs is None or self.num_logprobs is not None)
        )


class Plan(NamedTuple):
    """The shapes of the loop's programs."""

    capacity: int  # T
    sizes: tuple[int, ...]  # numbers of slots, rising
    reading: Level  # of prompts
    levels: tuple[Level, ...]  # of rounds, from lean to full: the first that serves all rows
    num_prompt_logprobs: int | None
    chunks: tuple[int, ...]
    groups: tuple[tuple[int, int], ...]  # (prompts, piece of each) that are read side by side
    scored_chunks: tuple[int, ...]  # of prompts whose log probabilities are asked for
    windows: tuple[int, ...] | None  # None: powers of two, as they are met
    history: int  # most rounds per entry of the compiled loop
    patience: int  # rounds for which a batch must have been too large before it shrinks
    worth: int  # tokens that must be to come then: the smaller batch may have to be compiled

    def level(self, requests: Sequence[Request]) -> Level:
        """Return the leanest level that serves all."""
        return next(one for one in self.levels if all(map(one.serves, requests)))

    def next_chunk(self, start: int, left: int, scored: bool) -> int:
        """Choose how many positions of a prompt to read, when ``start`` of them have been."""
        if scored:
            return next_chunk(left, self.scored_chunks)
        return next_chunk(left, self.chunks)

    def together(self, lengths: Sequence[int]) -> int:
        """Choose how many of the next prompts to read side by side: they fit one piece each."""
        best = 1
        for count, chunk in self.groups:
            if count <= len(lengths) and max(lengths[:count]) <= chunk:
                best = max(best, count)
        return best

    def pass_over(self, count: int, longest: int) -> tuple[int, int]:
        """Return (prompts, piece of each) of the smallest pass that reads so many at once."""
        return next((n, c) for n, c in self.groups if n >= count and c >= longest)

    def window(self, now: int, ever: int | None = None) -> int:
        """Choose the prefix of the cache to read, when ``now`` positions must fit.

        Every new window compiles the step again: so where they are not set beforehand, and the
        largest that will ever be needed is at most four times what serves now, begin with it.
        """
        if self.windows is not None:
            return next((one for one in self.windows if one >= now), self.capacity)
        now = bucket(now, LEAST_WINDOW)
        ever = now if ever is None else bucket(ever, LEAST_WINDOW)
        return min(ever if ever <= 4 * now else now, self.capacity)


def fitted(
    requests: Sequence[Request], vocab_size: int, depth: int, room: int, max_num_seqs: int
) -> Plan:
    """Plan for requests that are all known: the smallest shapes."""
    level = Level(layout(requests, vocab_size, depth), most(r.params.logprobs for r in requests))
    size = min(bucket(min(len(requests), max_num_seqs), 1), max_num_seqs)
    return Plan(
        capacity=bucket(max(r.limit for r in requests) + room, LEAST_WINDOW),
        sizes=halves(size),
        reading=level,
        levels=(level,),
        num_prompt_logprobs=most(r.params.prompt_logprobs for r in requests),
        chunks=CHUNKS,
        groups=groups(CHUNKS, GROUPS, MOST_TOGETHER),
        scored_chunks=CHUNKS,
        windows=None,
        history=HISTORY,
        patience=0,
        worth=256,  # 1 to 3 s to compile, against 1 to 3 ms a round: many rounds must be to come
    )


def served(
    usual: Layout, max_model_len: int, room: int, max_num_seqs: int, most_read: int | None
) -> Plan:
    """Plan for requests that are not known yet; ``usual`` is what most of them ask for.

    Raises ValueError where ``most_read`` positions (max_num_batched_tokens) hold no chunk.
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
        wanted=EVERYTHING,
        num_bad_words=words,
        bad_word_length=length,
    )
    capacity, windows, window = max_model_len + room, [], SERVED_WINDOW
    capacity += -capacity % SMOOTH
    while 2 * window <= capacity:
        windows.append(window)
        window *= 4
    everything = Level(full, MAX_LOGPROBS)
    return Plan(
        capacity=capacity,
        sizes=halves(max_num_seqs),
        reading=everything,
        levels=(Level(lean, None), everything),
        num_prompt_logprobs=MAX_LOGPROBS,
        chunks=chunks,
        groups=groups(chunks, SERVED_GROUPS, min(most_read or CHUNKS[-1], MOST_SERVED_TOGETHER)),
        scored_chunks=(min(SCORED_CHUNK, chunks[-1]),),
        windows=(*windows, capacity),
        history=1,
        patience=8,
        worth=0,
    )


def groups(chunks: Sequence[int], counts: Sequence[int], most: int) -> tuple[tuple[int, int], ...]:
    """List the passes over several prompts at once, of so many positions at the most."""
    return tuple((count, chunk) for count in counts for chunk in chunks if count * chunk <= most)


def halves(size: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to ``size``, which is the last whatever it is."""
    return (*(1 << i for i in range(max(size - 1, 0).bit_length())), size)


def next_chunk(left: int, chunks: Sequence[int] = CHUNKS) -> int:
    """Choose how many positions of a prompt to read at once, when ``left`` are left."""
    over = min((c for c in chunks if c >= left), default=chunks[-1])
    under = max((c for c in chunks if c <= left), default=over)
    return over if over - left <= MOST_PADDING else under


def most(values) -> int | None:
    """Return the largest number that is not None."""
    return max((value for value in values if value is not None), default=None)

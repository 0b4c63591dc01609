"""How prompts are cut and shapes rounded: few shapes, little padding, nothing unread."""

import pytest

from specjax.engine.loop import MOST_PADDING, PREFILL_CHUNKS, next_chunk
from specjax.engine.rows import bucket


@pytest.mark.parametrize("length", [1, 15, 16, 17, 128, 145, 161, 200, 256, 257, 1000])
def test_a_prompt_is_read_whole_in_few_shapes_with_little_padding(length):
    left, chunks = length, []
    while left > 0:
        chunks.append(next_chunk(left))
        left -= chunks[-1]
    assert set(chunks) <= set(PREFILL_CHUNKS)
    assert 0 <= -left <= MOST_PADDING
    assert chunks[:-3] == [PREFILL_CHUNKS[-1]] * len(chunks[:-3])


def test_a_bucket_is_at_most_half_as_large_again_and_there_are_two_per_octave():
    sizes = range(1, 1025)
    buckets = [bucket(size, 1) for size in sizes]
    assert all(size <= b <= max(1.5 * size, 2) for size, b in zip(sizes, buckets, strict=True))
    assert sorted(set(buckets))[:9] == [1, 2, 3, 4, 6, 8, 12, 16, 24]
    assert bucket(5, 64) == 64

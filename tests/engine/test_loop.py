"""How prompts are cut: few shapes, little padding, nothing unread."""

import pytest

from specjax.engine.plan import CHUNKS, MOST_PADDING, next_chunk


@pytest.mark.parametrize("length", [1, 15, 16, 17, 128, 145, 161, 200, 256, 257, 1000])
def test_a_prompt_is_read_whole_in_few_shapes_with_little_padding(length):
    left, chunks = length, []
    while left > 0:
        chunks.append(next_chunk(left))
        left -= chunks[-1]
    assert set(chunks) <= set(CHUNKS)
    assert 0 <= -left <= MOST_PADDING
    assert chunks[:-3] == [CHUNKS[-1]] * len(chunks[:-3])

"""The lines that a server logs every ten seconds, as vLLM does."""

import asyncio
import logging
import time
from collections.abc import Callable

from specjax.engine.service import Stats

logger = logging.getLogger(__name__)
SECONDS = 10.0


async def report(stats: Callable[[], Stats], seconds: float = SECONDS) -> None:
    """Log throughput and acceptance every ``seconds``, forever; nothing while idle."""
    before, last = stats(), time.monotonic()
    while True:
        await asyncio.sleep(seconds)
        after, now = stats(), time.monotonic()
        for line in lines(before, after, now - last):
            logger.info(line)
        before, last = after, now


def lines(before: Stats, after: Stats, seconds: float) -> list[str]:
    """Return the log lines for the time between two ``Stats``."""
    num_prompt = after.num_prompt_tokens - before.num_prompt_tokens
    num_output = after.num_generation_tokens - before.num_generation_tokens
    if not (num_prompt or num_output or after.running or after.waiting):
        return []
    found = [
        f"Engine 000: Avg prompt throughput: {num_prompt / seconds:.1f} tokens/s, "
        f"Avg generation throughput: {num_output / seconds:.1f} tokens/s, "
        f"Running: {after.running} reqs, Waiting: {after.waiting} reqs, "
        f"KV cache usage: {after.cache_usage:.1%}"
    ]
    old, new = before.counters, after.counters
    num_drafts = new.num_drafts - old.num_drafts
    if num_drafts:
        drafted = new.num_draft_tokens - old.num_draft_tokens
        accepted = new.num_accepted_tokens - old.num_accepted_tokens
        both = zip(old.num_accepted_tokens_per_pos, new.num_accepted_tokens_per_pos, strict=True)
        rates = ", ".join(f"{(b - a) / num_drafts:.3f}" for a, b in both)
        found.append(
            f"SpecDecoding metrics: Mean acceptance length: {1 + accepted / num_drafts:.2f}, "
            f"Accepted throughput: {accepted / seconds:.2f} tokens/s, "
            f"Drafted throughput: {drafted / seconds:.2f} tokens/s, "
            f"Accepted: {accepted} tokens, Drafted: {drafted} tokens, "
            f"Per-position acceptance rate: {rates}, "
            f"Avg Draft acceptance rate: {accepted / drafted:.1%}"
        )
    return found

"""How often XLA has compiled, or taken a program from its cache, in this process."""

import threading
from collections import Counter

import jax

COMPILING = "/jax/core/compile/backend_compile_duration"
events: Counter[tuple[str, str]] = Counter()  # by event and thread
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **_: events.update([(name, threading.current_thread().name)])
)


def num_compiled(thread: str | None = None) -> int:
    """Return how many programs there were so far, in all threads or in those of a name."""
    return sum(
        count
        for (event, own), count in events.items()
        if event == COMPILING and thread in (None, own)
    )

"""How often XLA has compiled, or taken a program from its cache, in this process."""

from collections import Counter

import jax

COMPILING = "/jax/core/compile/backend_compile_duration"
events: Counter[str] = Counter()
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **_: events.update([name])
)


def num_compiled() -> int:
    """Return how many programs there were so far."""
    return events[COMPILING]

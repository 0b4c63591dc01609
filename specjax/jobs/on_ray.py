"""Shards completed by Ray actors (Moritz et al. 2018, arXiv:1712.05889), Ray Core alone."""

import os
from collections.abc import Iterator, Sequence

from specjax.jobs.worker import Done, Setting, Worker


def complete_on_ray(
    setting: Setting, shards: Sequence[int], num_actors: int, address: str | None = None
) -> Iterator[tuple[int, Done]]:
    """Complete shards with actors that each hold an engine; yields (actor, what it did).

    An actor that dies is started again, and its shard is done again.

    Args:
        address: of a running Ray cluster, whose hosts see the same files; None: start one here.

    Raises:
        ValueError: Ray is not installed, ``num_actors`` is less than 1, or a prompt is too long.
        OSError: no cluster is at the address, or a worker cannot write.
    """
    if num_actors < 1:
        raise ValueError(f"--num-actors must be at least 1, got {num_actors}.")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray  # pyright: ignore[reportMissingImports]
        from ray.exceptions import RayTaskError  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError("--engine ray needs Ray: pip install 'specjax[ray]'") from None
    started = not ray.is_initialized()
    if started:
        ray.init(address=address, include_dashboard=False, log_to_driver=False)
    try:
        remote = ray.remote(max_restarts=-1, max_task_retries=-1)(Worker)
        actors = [remote.remote(setting) for _ in range(min(num_actors, len(shards)))]
        left, running = iter(shards), {}
        for number, actor in enumerate(actors):
            running[actor.complete.remote(next(left))] = number
        while running:
            (ready, *_), _ = ray.wait(list(running), num_returns=1)
            number = running.pop(ready)
            yield number, ray.get(ready)
            for shard in left:
                running[actors[number].complete.remote(shard)] = number
                break
    except RayTaskError as error:
        raise error.cause from None
    finally:
        if started:
            ray.shutdown()

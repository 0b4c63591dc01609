"""Services that are compared in one process."""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from specjax.engine.llm import LLM
from specjax.engine.service import Service


@contextmanager
def open_services(models: Mapping[str, LLM], *, max_waiting: int) -> Iterator[dict[str, Service]]:
    """Yield a service for each model of one target, all with the first one's weights of it.

    Two copies of the weights, in other places of the memory, differed by a tenth in speed.
    """
    target = next(iter(models.values())).core.params.target
    services = {}
    for name, llm in models.items():
        params = llm.core.params._replace(target=target)
        core = dataclasses.replace(llm.core, params=params)
        services[name] = Service(core, max_waiting=max_waiting)
    try:
        yield services
    finally:
        for service in services.values():
            service.close(drain=False)

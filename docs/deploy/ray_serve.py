"""Replicas of specjax's server under Ray Serve: docs/guide/several-servers.md.

pip install 'specjax[serve]' 'ray[serve]'
serve run ray_serve:app model=/models/target replicas=2
"""

from fastapi import FastAPI
from ray import serve
from ray.serve import Application

SLOTS, QUEUE = 8, 64  # requests that a replica runs, and that wait in it


def app(arguments: dict[str, str]) -> Application:
    """Return an application whose replicas are what ``specjax serve`` serves."""
    model = arguments.get("model", "bundled")

    def build() -> FastAPI:
        from specjax import LLM
        from specjax.engine.service import Service
        from specjax.server.app import create_app
        from specjax.server.deployment import Deployment

        rank = serve.get_replica_context().rank.rank  # a seed of its own for each replica
        llm = LLM(model, max_num_seqs=SLOTS, seed=rank)
        service = Service(llm.core, max_waiting=QUEUE, prefix_cache_bytes=2**30)
        service.warm_up(wait=False)
        return create_app(Deployment(service=service, names=(model,), max_queued=QUEUE))

    replicated = serve.deployment(
        name="specjax",
        num_replicas=int(arguments.get("replicas", 2)),
        max_ongoing_requests=SLOTS + QUEUE,
        graceful_shutdown_timeout_s=60,
    )
    return replicated(serve.ingress(build)()).bind()

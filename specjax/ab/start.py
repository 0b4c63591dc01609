"""Load and start the arms of a comparison."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from specjax.ab.arms import Arm, Ask, Spec
from specjax.ab.server_arm import ServerArm, serve_arguments
from specjax.audit.client import Server
from specjax.host.launch import START_TIMEOUT, open_specjax
from specjax.oracle.ask import open_server


@contextmanager
def open_arms(
    specs: Sequence[Spec],
    ask: Ask,
    *,
    model: str,
    served_model: str | None,
    api_key: str | None,
    concurrency: int,
    max_model_len: int | None = None,
    show_progress: Callable[[str], None],
) -> Iterator[list[Arm]]:
    """Yield all arms, loaded and started; servers started here are stopped at the end.

    Raises ValueError or ConnectionError, naming the arm, before anything is measured.
    """
    with ExitStack() as opened:
        arms = []
        for spec in specs:
            show_progress(f"starting {spec.label}: {spec.url or spec.kind}")
            try:
                if spec.kind == "specjax":
                    from specjax.ab.local_arm import local  # brings JAX

                    arms.append(
                        opened.enter_context(local(spec, ask, model, concurrency, max_model_len))
                    )
                    continue
                versions: Mapping[str, Any] = {}
                url = spec.url or ""
                if spec.kind == "serve":
                    arguments = serve_arguments(spec, concurrency, max_model_len)
                    url = opened.enter_context(open_specjax(model, arguments))
                elif spec.kind == "vllm":
                    arguments = serve_arguments(spec, concurrency, max_model_len)
                    answer, url = opened.enter_context(
                        open_server(model, arguments=arguments, timeout=START_TIMEOUT, threads=2)
                    )
                    versions = answer["versions"]
                name = served_model if spec.kind == "url" else None
                server = Server(url, name, api_key=api_key, timeout=ask.timeout)
                arm = ServerArm(spec, ask, server, api_key, concurrency, versions)
                arms.append(arm)
            except (ValueError, ConnectionError) as error:
                raise type(error)(f"arm {spec.label}: {error}") from None
        yield arms

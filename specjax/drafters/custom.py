"""A drafter of the user's own, vLLM's "custom_class": built by a function and checked."""

from collections.abc import Mapping
from typing import Any

from specjax.core.types import Drafter, DrafterFactory, LoadDraft, PyTree, Target


def no_weights(target: PyTree) -> PyTree:
    """Return the params of a drafter without weights (``types.LoadDraft``)."""
    return ()


def build_custom(
    factory: DrafterFactory, target: Target, num_speculative_tokens: int, options: Mapping[str, Any]
) -> tuple[Drafter, LoadDraft]:
    """Return the drafter that a factory builds, and the function that loads its weights.

    Raises:
        ValueError: it returns something else, or a drafter of more tokens than K; or whatever the
            factory finds wrong with its options.
    """
    name = getattr(factory, "__qualname__", repr(factory))
    try:
        built = factory(target, num_speculative_tokens=num_speculative_tokens, **options)
    except TypeError as error:  # an unknown or missing option
        raise ValueError(f"{name} with the options {dict(options)!r}: {error}") from error
    # a Drafter is a tuple too
    drafter, load = (built, no_weights) if isinstance(built, Drafter) else _pair(name, built)
    if not 0 <= drafter.depth <= num_speculative_tokens:
        raise ValueError(
            f"{name} built a drafter of depth={drafter.depth}, and num_speculative_tokens is "
            f"{num_speculative_tokens}: depth must be 0 to that."
        )
    if drafter.nodes < drafter.depth + 1:
        raise ValueError(
            f"{name} built a drafter of nodes={drafter.nodes} and depth={drafter.depth}: a draft "
            "has at least depth + 1 nodes, its root included."
        )
    return drafter, load


def _pair(name: str, built: Any) -> tuple[Drafter, LoadDraft]:
    if isinstance(built, tuple) and len(built) == 2:
        drafter, load = built
        if isinstance(drafter, Drafter) and callable(load):
            return drafter, load
    raise ValueError(
        f"{name} must return a specjax.core.types.Drafter, or a pair of one and a function that "
        f"loads its weights; got {type(built).__name__}."
    )

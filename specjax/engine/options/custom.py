"""Find the function that builds a user's drafter: by its import path, or an entry point."""

import importlib
import re
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

METHOD = "custom_class"
GROUP = "specjax.drafters"  # of entry points
PATH = re.compile(r"[\w.]+:[\w.]+")


def entry_point_path(method: str) -> str | None:
    """Return the import path of a method that an installed package adds; None if none does.

    Raises:
        ValueError: several packages do.
    """
    found = {one.value for one in entry_points(group=GROUP, name=method)}
    if len(found) > 1:
        raise ValueError(
            f"several installed packages add the method {method!r}: {', '.join(sorted(found))}. "
            f"Name the one you want: method={METHOD!r}, model='package.module:factory'."
        )
    return found.pop() if found else None


def check_path(model: str | None) -> None:
    """Raise ValueError unless ``model`` reads package.module:factory."""
    if model is None or not PATH.fullmatch(model):
        raise ValueError(
            f"method={METHOD!r} needs model='package.module:factory', a function that returns a "
            f"Drafter (docs/how/add-a-drafter.md), got {model!r}."
        )


def find_factory(model: str) -> Callable[..., Any]:
    """Import and return the ``core.types.DrafterFactory`` at package.module:factory.

    Raises:
        ValueError: the module cannot be imported, lacks that name, or it is no function.
    """
    module, _, name = model.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"model={model!r} of method={METHOD!r} cannot be imported: {error}. Install its "
            "package, or put its folder on PYTHONPATH."
        ) from error
    if isinstance(found, type) or not callable(found):
        raise ValueError(
            f"model={model!r} of method={METHOD!r} is no function but {type(found).__name__}: "
            "vLLM's custom classes draft on the host, here a function returns a Drafter "
            "(docs/how/add-a-drafter.md)."
        )
    return found

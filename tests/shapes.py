"""Check the fields of NamedTuples against their annotations (the import hook does not)."""

from typing import get_type_hints

import jax
from jaxtyping import AbstractArray, jaxtyped


@jaxtyped(typechecker=None)
def assert_shapes(*records) -> None:
    """Check every array of every record; sizes of the same name agree across all of them."""
    for record in records:
        for name, hint in get_type_hints(type(record)).items():
            value = getattr(record, name)
            kinds = [kind for kind in getattr(hint, "__args__", (hint,)) if is_array(kind)]
            if value is None or not kinds:
                continue
            for leaf in value if isinstance(value, tuple) else (value,):
                assert isinstance(leaf, kinds[0]), (
                    f"{type(record).__name__}.{name}: {jax.typeof(leaf)} is no {kinds[0]}"
                )


def is_array(hint) -> bool:
    return isinstance(hint, type) and issubclass(hint, AbstractArray)

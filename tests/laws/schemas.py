"""Random JSON schemas for the tiny tokenizer, whose texts end within a number of characters."""

from collections.abc import Callable
from typing import Any

import numpy as np

UNBOUNDED = 20  # characters that are set aside for a number with any number of digits
PATTERNS = {"^a[bc]{1,3}$": 6, "^(ab|ba)+c$": UNBOUNDED, "^[0-9]{2}:[0-9]{2}$": 7, "^-?t*r?u$": 14}
FORMATS = {"date": 12, "ipv4": 17, "uuid": 38}
ENUMS: tuple[list[Any], ...] = (
    ["a", "abc", "b"], [1, 12, -3], ["a", None, True, 2], [[1, "a"], {"b": [None]}], [0.25, ""],
)  # fmt: skip
NAMES = ("a", "b", "ab", "cd", "nut")


def random_schema(rng: np.random.Generator, most: int) -> dict[str, Any]:
    """Return a schema; its texts have at most ``most`` characters, numbers of any length aside."""
    defs: dict[str, Any] = {}
    schema = draw(rng, most, defs)
    return {**schema, "$defs": defs} if defs else schema


def draw(rng: np.random.Generator, most: int, defs: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a schema, for ``most`` >= 5 characters; what it refers to is in ``defs``."""
    kinds = [kind for kind, (least, _) in KINDS.items() if least <= most]
    if most > 40 and rng.random() < 0.7:
        kinds = ["object", "array", "tuple"]
    return KINDS[kinds[rng.integers(len(kinds))]][1](rng, most, defs)


def number(rng: np.random.Generator, most: int, defs: dict[str, Any]) -> dict[str, Any]:
    """Any integer, any number, or either of an integer and null."""
    return {"type": [["integer"], ["number"], ["integer", "null"]][rng.integers(3)]}


def bounded(rng: np.random.Generator, most: int, defs: dict[str, Any]) -> dict[str, Any]:
    """An integer between bounds, which one schema gives or two."""
    low = int(rng.integers(-50, 50))
    high = low + int(rng.integers(2, 900))
    return [
        {"type": "integer", "minimum": low, "maximum": high},
        {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": high},
        {"allOf": [{"type": "integer", "minimum": low}, {"maximum": high}]},
        {"type": "integer", "minimum": 0, "maximum": 900, "multipleOf": int(rng.integers(2, 9))},
    ][rng.integers(4)]


def string(rng: np.random.Generator, most: int, defs: dict[str, Any]) -> dict[str, Any]:
    """A string of bounded length."""
    least = int(rng.integers(0, 3))
    return {"type": "string", "minLength": least, "maxLength": least + int(rng.integers(0, 4))}


def shaped(rng: np.random.Generator, most: int, defs: dict[str, Any]) -> dict[str, Any]:
    """A string with a pattern or in a format."""
    options = [("pattern", one, size) for one, size in PATTERNS.items()]
    options += [("format", one, size) for one, size in FORMATS.items()]
    options = [one for one in options if one[2] <= most]
    name, value, _ = options[rng.integers(len(options))]
    return {"type": "string", name: value}


def values(rng: np.random.Generator, most: int, defs: dict[str, Any]) -> dict[str, Any]:
    """One of some values."""
    given = ENUMS[rng.integers(len(ENUMS))]
    return {"const": given[rng.integers(len(given))]} if rng.random() < 0.3 else {"enum": given}


def record(rng: np.random.Generator, most: int, defs: dict[str, Any]) -> dict[str, Any]:
    """An object with named properties, some of which may be absent."""
    count = min(int(rng.integers(0, 5)), (most - 2) // 12)
    each = (most - 2) // max(count, 1) - 7  # a name of three, its quotes, a colon, a comma
    names = [str(name) for name in rng.permutation(NAMES)[:count]]
    return {
        "type": "object",
        "properties": {name: draw(rng, each, defs) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        "additionalProperties": False,
    }


def array(rng: np.random.Generator, most: int, defs: dict[str, Any]) -> dict[str, Any]:
    """A list of a bounded number of items."""
    size = min(int(rng.integers(1, 5)), (most - 2) // 6)
    items = draw(rng, (most - 2) // size - 1, defs)
    return {
        "type": "array",
        "items": items,
        "minItems": int(rng.integers(0, size + 1)),
        "maxItems": size,
    }


def several(rng: np.random.Generator, most: int, defs: dict[str, Any]) -> dict[str, Any]:
    """A list with a schema for each place."""
    items = [draw(rng, (most - 2) // 2 - 1, defs) for _ in range(2)]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": 2}


def either(rng: np.random.Generator, most: int, defs: dict[str, Any]) -> dict[str, Any]:
    """One of two."""
    return {"anyOf": [draw(rng, most, defs), draw(rng, most, defs)]}


def reference(rng: np.random.Generator, most: int, defs: dict[str, Any]) -> dict[str, Any]:
    """A schema that stands elsewhere."""
    schema = draw(rng, most, defs)
    name = f"d{len(defs)}"
    defs[name] = schema
    return {"$ref": f"#/$defs/{name}"}


def word(name: str) -> Callable[..., dict[str, Any]]:
    """Return a function that returns a type without options."""
    return lambda *_: {"type": name}


KINDS: dict[str, tuple[int, Callable[..., dict[str, Any]]]] = {  # with the least characters
    "null": (4, word("null")),
    "boolean": (5, word("boolean")),
    "bounded": (5, bounded),
    "string": (7, string),
    "shaped": (7, shaped),
    "values": (17, values),
    "number": (UNBOUNDED, number),
    "object": (14, record),
    "array": (9, array),
    "tuple": (16, several),
    "anyOf": (12, either),
    "reference": (12, reference),
}

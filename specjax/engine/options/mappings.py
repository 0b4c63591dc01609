"""Read options that are given as a mapping or as text, with messages that help."""

import difflib
import json
import math
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

KINDS = {
    "int": "an integer",
    "float": "a number",
    "bool": "True or False",
    "str": "a string",
    "Sequence[float]": "a list of numbers",
    "Sequence[int]": "a list of integers",
    "Sequence[Sequence[int]]": "a list of [low, high, num_speculative_tokens]",
    "Mapping[str, Any]": "a mapping",
}


def read_mapping(what: str, config: Any) -> Mapping[str, Any]:
    """Return options given as a mapping or as its JSON text.

    Raises:
        ValueError: they are neither; the message begins with ``what``, the option's name.
    """
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except json.JSONDecodeError as error:
            raise ValueError(f"{what} is not valid JSON: {error}.") from None
    if not isinstance(config, Mapping):
        raise ValueError(f"{what} must be a mapping of options, got {config!r}.")
    return config


def suggest(word: Any, valid: Collection[str]) -> str:
    """Return the end of an error message: the valid word nearest to a wrong one, or all."""
    close = difflib.get_close_matches(str(word), valid, n=1)
    return f" Did you mean {close[0]!r}?" if close else f" Valid: {', '.join(valid)}."


def warn_inert(what: str, names: Sequence[str]) -> None:
    """Warn once of options without effect, at the line three calls above this one."""
    if names:
        warnings.warn(f"{what} without effect in specjax: {', '.join(names)}", stacklevel=4)


def kind_of(annotation: Any) -> str:
    """Return the name of a field's type without its None: "int", "Sequence[float]", ..."""
    name = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return name.replace("collections.abc.", "").removesuffix(" | None")


def parse_value(name: str, kind: str, value: Any) -> Any:
    """Return a value, perhaps a command line's string, as one of `KINDS`."""
    if kind == "Any":
        return value
    try:
        if kind.startswith("Sequence"):
            items = json.loads(value) if isinstance(value, str) else value
            item_kind = kind.removeprefix("Sequence[")[:-1]
            return tuple(parse_value(name, item_kind, item) for item in items)
        if kind.startswith("Mapping"):
            return dict(read_mapping(name, value))
        if kind == "bool":
            return {"true": True, "1": True, "false": False, "0": False}[str(value).lower()]
        if kind == "str":
            return str(os.fspath(value))
        if kind in ("int", "float") and not isinstance(value, bool):
            number = float(value)
            if kind == "float" and math.isfinite(number):
                return number
            if kind == "int" and number == int(number):
                return int(number)
    except (TypeError, ValueError, OverflowError, KeyError):
        pass
    raise ValueError(f"{name} must be {KINDS[kind]}, got {value!r}.")

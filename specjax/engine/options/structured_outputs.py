"""vLLM's options of structured output: what form the text of one request must have."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, no_type_check

MOST_CHOICES, MOST_CHARACTERS = 4096, 1 << 20
KINDS = ("json", "regex", "choice", "grammar", "json_object")


@no_type_check  # it checks its values itself, with better messages
@dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    """The form of a text, one of five; names and defaults are vLLM's.

    Args:
        json: a JSON schema, as a mapping or as text.
        regex: a regular expression that the whole text matches (syntax of Rust's ``regex``).
        choice: the texts of which it is one.
        grammar: a context-free grammar, in EBNF (``root ::= ...``) or Lark (``start: ...``).
        json_object: any JSON object.
        disable_any_whitespace: no white space between JSON's signs.
        disable_additional_properties: a schema's objects have no properties but those named.
        whitespace_pattern: a regular expression for the white space between JSON's signs.

    Raises:
        ValueError: not exactly one form is given, or a value is of the wrong type.

    >>> StructuredOutputsParams(choice=["yes", "no"]).kind
    'choice'
    """

    json: Mapping[str, Any] | str | None = field(default=None, hash=False)
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self):
        given = [name for name in KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise ValueError(
                f"structured_outputs takes one of {', '.join(KINDS)}, got "
                f"{' and '.join(given) or 'none'}."
            )
        for name in ("regex", "grammar", "whitespace_pattern"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise ValueError(f"{name} must be a text that is not empty, got {value!r}.")
        for name in ("json_object", "disable_any_whitespace", "disable_additional_properties"):
            if getattr(self, name) not in (None, True, False):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}.")
        if self.json is not None and not isinstance(self.json, Mapping | str):
            raise ValueError(f"json must be a JSON schema, a mapping or text, got {self.json!r}.")
        if self.choice is not None:
            choice = () if isinstance(self.choice, str | Mapping) else tuple(self.choice)
            if not choice or not all(isinstance(one, str) and one for one in choice):
                raise ValueError(
                    f"choice must be a list of texts that are not empty, got {self.choice!r}."
                )
            if len(choice) > MOST_CHOICES:
                raise ValueError(f"choice: at most {MOST_CHOICES} texts, got {len(choice)}.")
            object.__setattr__(self, "choice", choice)
        if len(self.key()) > MOST_CHARACTERS:
            raise ValueError(f"{self.kind}: at most {MOST_CHARACTERS} characters.")

    @property
    def kind(self) -> str:
        """Return the name of the form that is given."""
        return next(name for name in KINDS if getattr(self, name) not in (None, False))

    def key(self) -> str:
        """Return all of it as one text: equal texts have the same grammar.

        Raises:
            ValueError: the schema is no JSON.
        """
        try:
            return json.dumps([getattr(self, one.name) for one in fields(self)], allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"the JSON schema is no JSON: {error}") from None

    @classmethod
    def from_dict(cls, given: Any) -> "StructuredOutputsParams":
        """Return the options in a mapping.

        Raises:
            ValueError: no mapping, an unknown or unsupported name, or a wrong value.
        """
        if not isinstance(given, Mapping):
            raise ValueError(f"structured_outputs must be an object, got {given!r}.")
        names = [one.name for one in fields(cls)]
        for name, value in given.items():
            if name not in names and value is not None:
                raise ValueError(
                    f"structured_outputs: {name!r} is not supported; known are {', '.join(names)}."
                )
        return cls(**{name: value for name, value in given.items() if name in names})

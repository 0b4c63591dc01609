"""The kinds of values that the fields of requests have, and the limits on them."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

MOST_BIASES = 16_384  # entries of logit_bias
MOST_WORD = 1024  # characters of a stop string or a bad word


def check_unicode(text: str) -> str:
    """Return a text, or raise ValueError for a lone surrogate: valid in JSON, not in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a lone surrogate at {error.start} is not valid Unicode") from None
    return text


def check_word(text: str) -> str:
    """Return a stop string or bad word, or raise ValueError if it is too long or no Unicode."""
    if len(text) > MOST_WORD:
        raise ValueError(f"at most {MOST_WORD} characters, got {len(text)}")
    return check_unicode(text)


def check_entries(value: Any) -> Any:
    """Return a value, or raise ValueError for a mapping with too many entries to check."""
    if isinstance(value, dict) and len(value) > MOST_BIASES:
        raise ValueError(f"at most {MOST_BIASES} entries, got {len(value)}")
    return value


def read_flag(value: Any) -> Any:
    """Return a boolean for "true" and "false", which vLLM takes; other values as they are."""
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


Flag = Annotated[bool, BeforeValidator(read_flag)]
Text = Annotated[str, AfterValidator(check_unicode)]
Word = Annotated[str, AfterValidator(check_word)]
Token = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[list[Token], Field(fail_fast=True)]
Bias = Annotated[
    dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], float], BeforeValidator(check_entries)
]


class Body(BaseModel):
    """A JSON object."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")

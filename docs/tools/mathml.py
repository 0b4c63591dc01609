"""TeX formulas as MathML."""

import re

from latex2mathml.converter import convert


def draw(tex: str, *, block: bool) -> str:
    """Return a formula's MathML, on a line of its own if it is a block.

    Raises ValueError for a command that is not known, which would be shown as it is.
    """
    drawn = convert(tex, display="block" if block else "inline")
    if "\\" in re.sub(r"<[^>]*>", "", drawn):
        raise ValueError(f"a command of this formula is not known: {tex}")
    return drawn

"""The page on quantized checkpoints has the table of the code, and no method is left out of it."""

from pathlib import Path

from specjax.weights.formats import FORMATS, markdown
from specjax.weights.quantization import METHODS

PAGE = Path(__file__).parents[2] / "docs/guide/quantized.md"


def test_the_page_has_the_table_of_the_code():
    assert markdown() in PAGE.read_text(encoding="utf-8")


def test_every_method_is_in_the_table():
    assert {one.method for one in FORMATS} == {*METHODS, "ascend"}

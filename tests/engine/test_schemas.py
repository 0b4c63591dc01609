"""Every text that ends fits its schema: 2,000 random schemas, random models, T = 1.5, drafted."""

from tests.laws import grammars as g

NAMES = ("ngram", "suffix", "draft_model coupled", "eagle3", "mtp", "medusa")


def test_every_text_that_ends_fits_its_schema():
    ended, count = g.fitting(NAMES, 2000)
    assert ended >= 0.9 * count
    print(f"{ended} of {count} texts ended, and fit their schemas")

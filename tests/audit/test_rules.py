"""The table of shipped rules: all there, all true to their word."""

import pytest

from specjax.audit.cases import KINDS
from specjax.audit.rules import EXACT, LOSSLESS, LOSSY, audit_rules


@pytest.fixture(scope="module")
def audit():
    return audit_rules(len(KINDS))


def test_every_shipped_rule_keeps_its_promise(audit):
    promises = {row.name: row.promise for row in audit.rows}
    assert [name for name, law in promises.items() if law == LOSSLESS] == ["walk"]
    assert [name for name, law in promises.items() if law == LOSSY] == [
        "typical", "entropy", "synthetic",
    ]  # fmt: skip
    for row in audit.rows:
        assert row.kept, row
        assert row.cases == len(KINDS)
        assert (row.tv > 0.05) == (row.promise == LOSSY), row


def test_no_exact_rule_is_longer_than_transport_allows(audit):
    length = {row.name: row.expected_length for row in audit.rows}
    assert length["walk"] < length["rejection"] == pytest.approx(length["rejection_tree"])
    assert length["rejection"] < length["block"] < audit.bound


def test_a_broken_promise_shows(audit):
    row = next(row for row in audit.rows if row.promise == EXACT)
    assert row.kept
    for flaw in ({"worst_tv": 1e-5}, {"stray": 1e-7}, {"reused": 0.01}):
        assert not row._replace(**flaw).kept
        assert row._replace(promise=LOSSY, **flaw).kept

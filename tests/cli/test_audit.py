"""``specjax audit rules``: its rows, its files, and how it fails."""

import json

import pytest
from typer.testing import CliRunner

from specjax.audit import rules
from specjax.cli.app import app
from tests.viz.test_rules import ROWS


@pytest.fixture
def audit(monkeypatch):
    """Run the command on given rows instead of an audit of half a minute."""

    def run(rows, *args):
        monkeypatch.setattr(rules, "audit_rules", lambda cases: rules.Audit(rows, 2.3))
        return CliRunner().invoke(app, ["audit", "rules", *map(str, args)])

    return run


def test_rows_have_name_promise_tv_expected_length_and_cases(audit, tmp_path):
    file, picture = tmp_path / "new" / "rules.json", tmp_path / "rules.png"
    result = audit(ROWS, "--json", file, "--picture", picture)
    assert result.exit_code == 0
    for row, stored in zip(ROWS, json.loads(file.read_text()), strict=True):
        assert row.name in result.output
        for key in ("name", "promise", "tv", "expected_length", "cases"):
            assert stored[key] == getattr(row, key)
        assert stored["kept"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "2.3000" in result.output


def test_a_rule_that_breaks_its_promise_fails_the_command(audit):
    broken = ROWS[1]._replace(worst_tv=0.1)
    result = audit((ROWS[0], broken))
    assert result.exit_code == 1
    assert "BROKEN" in result.output


def test_the_readme_shows_the_rows_and_the_picture(audit, tmp_path):
    readme, picture = tmp_path / "README.md", tmp_path / "docs" / "rules.png"
    picture.parent.mkdir()
    assert audit(ROWS, "--readme", tmp_path / "none.md").exit_code == 2
    readme.write_text("before\n<!-- rules: begin -->\nold\n<!-- rules: end -->\nafter\n")
    assert audit(ROWS, "--readme", readme, "--picture", picture).exit_code == 0
    said = readme.read_text()
    assert said.startswith("before\n")
    assert said.endswith("\nafter\n")
    assert "old" not in said
    assert "| walk | lossless | 0.0e+00 | 0.0e+00 | 1.500 |" in said
    assert "(docs/rules.png)" in said

"""The test of ``audit server`` flags shipped rules no more often than its level says."""

import numpy as np
import pytest
from typer.testing import CliRunner

from specjax.audit.cases import random_cases
from specjax.audit.false_alarms import PROMPTS, SIZE, K, count_alarms, is_flagged
from specjax.audit.prefixes import texts
from specjax.audit.server import Plan
from specjax.cli.app import app


def test_no_shipped_rule_is_flagged_more_often_than_the_level_allows():
    found = count_alarms(200, 0.01)
    assert {one.rule for one in found} == {"walk", "rejection", "rejection_tree", "block"}
    assert all(one.kept for one in found), found
    assert sum(one.alarms for one in found) > 0  # it is a test that can alarm


def test_a_wrong_law_is_flagged_in_both_ways():
    p_tree, q_tree = random_cases(len(PROMPTS), SIZE, K)
    right, wrong = texts(p_tree, K + 1), texts((9 * p_tree + q_tree) / 10, K + 1)
    plan = Plan(prompts=PROMPTS, tokens=K + 1, tv=0.05)
    for samples in (1, 2):
        rng = np.random.default_rng(0)
        assert is_flagged(plan, wrong, right, samples, rng)
        assert not is_flagged(plan, right, right, samples, rng)


def test_the_command_counts_and_refuses(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- alarms: begin -->\n<!-- alarms: end -->\n")
    done = CliRunner().invoke(app, ["audit", "alarms", "--runs", "2", "--readme", str(page)])
    assert done.exit_code == 0, done.output
    assert "in 16 audits at 0.01." in page.read_text()
    assert CliRunner().invoke(app, ["audit", "alarms", "--runs", "0"]).exit_code == 2
    assert CliRunner().invoke(app, ["audit", "alarms", "--alpha", "2"]).exit_code == 2
    with pytest.raises(ValueError, match="runs must be at least 1, got 0"):
        count_alarms(0)

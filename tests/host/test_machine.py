"""Every table of a page says what wrote it, and from which code."""

import re
import sys

from specjax.host.machine import commit, processor, stamp
from specjax.host.markdown import replace_section


def test_a_section_says_command_commit_day_and_processor(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/specjax", "bench", "peers", "--only", "a b"])
    page = tmp_path / "README.md"
    page.write_text("<!-- x: begin -->\nold\n<!-- x: end -->\n")
    replace_section(page, "x", ["new"])
    lines = page.read_text().splitlines()
    assert lines[1:3] == ["new", ""]
    assert lines[3].startswith("Written by `specjax bench peers --only 'a b'`, ")
    assert re.search(r", \d{4}-\d\d-\d\d, ", lines[3])
    assert lines[3].endswith(processor() + ".")
    assert commit() in stamp()


def test_a_commit_is_a_hash_or_without_git_a_version(monkeypatch):
    assert re.fullmatch(r"commit [0-9a-f]{7,}\+?|version .+", commit())
    monkeypatch.setenv("PATH", "")
    assert commit().startswith("version ")

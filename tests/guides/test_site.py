"""The check at the end of `make docs` finds what is broken on a page, and only that."""

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "docs" / "tools" / "check_site.py"
GOOD = """<h1 id="a b">One</h1><a href="two/#x">two</a><a href="#a%20b">up</a>
<a href="https://example.org/none#y">away</a><code>\\(not a formula\\)</code>
<img src="p.png" alt="a picture"><img src="data:image/png;base64,AA" alt="">"""


@pytest.fixture
def check(tmp_path):
    """Return a function that checks a site of two pages and a picture, given the first."""
    spec = importlib.util.spec_from_file_location("check_site", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "index.html").write_text('<p id="x"><a href="/">home</a></p>')
    (tmp_path / "p.png").write_bytes(b"png")

    def run(page):
        (tmp_path / "index.html").write_text(page)
        return tool.check(tmp_path)

    return run


def test_a_sound_site_has_no_problem_and_all_of_it_was_looked_at(check):
    problems, counts = check(GOOD)
    assert problems == []
    expected = {"pages": 2, "links": 3, "anchors": 2, "pictures": 2, "to other hosts": 1}
    assert counts == expected


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("two/#x", "two/#z", "no anchor two/#z"),
        ("two/#x", "three/", "no page three/"),
        ("p.png", "q.png", "no picture q.png"),
        (' alt="a picture"', "", "has no text"),
        ("<h1", "<p>\\(x^2\\)</p><h1", "a formula was not drawn"),
        ("<h1", "<p>$$x$$</p><h1", "a formula was not drawn"),
    ],
)
def test_what_is_broken_is_named(check, old, new, problem):
    (said,), _ = check(GOOD.replace(old, new))
    assert said.startswith("index.html: ")
    assert problem in said

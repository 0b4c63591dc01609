"""The timeline's cells are the text, whatever the drafts were."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specjax.viz.timeline import (
    ACCEPTED,
    BONUS,
    CUT,
    DISCARDED,
    PLAIN,
    RECOVERED,
    REJECTED,
    RoundTokens,
    summarize,
    to_cells,
    token_timeline,
    visible,
)

ROUNDS = (
    RoundTokens((), 0, ("def",)),
    RoundTokens((" a", " b", "\n"), 3, (" a", " b", "\n", "x")),
    RoundTokens(("u", "v", "w"), 1, ("u", "V")),
    RoundTokens(("r", "s", "t"), 3, ("r",)),
)
EMITTING = (ACCEPTED, RECOVERED, BONUS, PLAIN)


@st.composite
def rounds(draw):
    drafted = tuple(draw(st.lists(st.text(max_size=9), max_size=4)))
    num_accepted = draw(st.integers(0, len(drafted)))
    emitted = (*drafted[:num_accepted], draw(st.text(max_size=9)))
    return RoundTokens(drafted, num_accepted, emitted[: draw(st.integers(1, len(emitted)))])


def test_every_token_gets_its_fate():
    kinds = [[c.kind for c in to_cells(ROUNDS) if c.round == r] for r in range(len(ROUNDS))]
    assert kinds == [
        [PLAIN],
        [ACCEPTED, ACCEPTED, ACCEPTED, BONUS],
        [ACCEPTED, REJECTED, DISCARDED, RECOVERED],
        [ACCEPTED, CUT, CUT],
    ]


@settings(deadline=None)
@given(st.lists(rounds(), max_size=6))
def test_reading_the_emitting_cells_gives_the_text(many):
    cells = to_cells(many)
    text = [word for one in many for word in one.emitted]
    assert [cell.text for cell in cells if cell.kind in EMITTING] == text
    accepted = sum(cell.kind in (ACCEPTED, CUT) for cell in cells)
    assert accepted == sum(one.num_accepted for one in many)
    drafted = sum(cell.kind not in (RECOVERED, BONUS, PLAIN) for cell in cells)
    assert drafted == sum(len(one.drafted) for one in many)


def test_the_summary_counts():
    assert summarize(ROUNDS) == (
        "4 rounds, 8 tokens: 2.00 tokens per round, 7 of 9 draft tokens accepted"
    )
    assert summarize(()) == "0 rounds, 0 tokens"


@pytest.mark.parametrize(
    "impossible",
    [RoundTokens(("a",), 2, ("a", "b")), RoundTokens(("a",), 0, ("a", "b"))],
)
def test_impossible_counts_are_refused(impossible):
    with pytest.raises(ValueError, match="round 0"):
        to_cells([impossible])


def test_labels_show_whitespace_and_only_what_the_font_can_draw():
    assert visible(" \n\tif", 12) == "␣↵⇥if"
    assert visible("中\x00", 12) == "\\u4e2d\\x00"
    assert visible("a_long_identifier", 8) == "a_long_…"
    assert visible("\ufffd", 8) == "\ufffd"


def test_the_figure_draws_every_cell_and_saves(tmp_path):
    cells, ax = token_timeline(ROUNDS)
    assert cells == to_cells(ROUNDS)
    written = [text.get_text() for text in ax.texts]
    for cell in cells:
        assert visible(cell.text, 12) in written
    kinds = {cell.kind for cell in cells}
    assert len(ax.patches) == len(cells) + len(kinds)  # and one per line of the legend
    ax.get_figure(root=True).savefig(tmp_path / "timeline.png", dpi=150)
    cells, again = token_timeline((), ax=ax)
    assert cells == ()
    assert again is ax


def test_importing_the_figures_leaves_pyplot_and_the_backend_alone():
    code = "import sys, specjax.viz.timeline, specjax.viz.methods as m; assert m.method_comparison"
    code += "; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

"""Every figure of a formula: no text below 8 points, a title, and what each axis counts."""

import numpy as np
import pytest
from matplotlib.text import Text

from specjax.theory.intervals import Interval
from specjax.viz.acceptance_by_position import acceptance_by_position
from specjax.viz.block_cost import block_cost
from specjax.viz.claimed_speedups import claimed_speedups
from specjax.viz.draft_tree import draft_tree
from specjax.viz.figure import figure_of
from specjax.viz.findings import Found, audit_findings
from specjax.viz.gain_by_concurrency import gain_by_concurrency
from specjax.viz.gains import Gain, gains
from specjax.viz.learning_curves import learning_curves
from specjax.viz.phases import phases
from specjax.viz.residual_bars import residual_bars
from specjax.viz.roofline import roofline
from specjax.viz.speedup_by_batch import speedup_by_batch
from specjax.viz.speedup_surface import speedup_surface
from specjax.viz.timeline import RoundTokens, token_timeline
from specjax.viz.tree_or_chain import tree_or_chain

GAIN = Gain("", "eagle", Interval(1.5, 1.2, 1.8), Interval(1.4, 1.1, 1.7))
FIGURES = {
    "acceptance by position": lambda: acceptance_by_position([80, 40, 20], 100),
    "audit findings": lambda: audit_findings([Found("one", 0.02, 0.03, False)] * 3),
    "block cost": block_cost,
    "claimed speedups": claimed_speedups,
    "draft tree": lambda: draft_tree([0, 0, 0, 1], [1, 0.6, 0.2, 0.5]),
    "gain by concurrency": gain_by_concurrency,
    "gains": lambda: gains([GAIN, GAIN]),
    "learning curves": lambda: learning_curves({"eagle": ([1, 2], np.array([[0.4], [0.6]]))}),
    "phases": lambda: phases([1, 8], {"off": [700.0, 1700.0], "on": [1400.0, 1500.0]}),
    "residual bars": lambda: residual_bars([0.7, 0.3], [0.4, 0.6]),
    "roofline": roofline,
    "speedup by batch": lambda: speedup_by_batch({"free": lambda B, m: np.ones_like(B * m)}),
    "speedup surface": speedup_surface,
    "timeline": lambda: token_timeline([RoundTokens(("a", "b"), 1, ("a", "c"))] * 12),
    "tree or chain": lambda: tree_or_chain({"good": [0.8, 0.1]}, range(1, 9)),
}
WITHOUT_AXES = ("timeline",)


@pytest.mark.parametrize("name", FIGURES)
def test_texts_are_large_enough_and_axes_are_named(name):
    _, axes = FIGURES[name]()
    axes = axes if isinstance(axes, tuple) else (axes,)
    figure = figure_of(axes[0])
    figure.draw_without_rendering()
    texts = [one for one in figure.findobj(Text) if one.get_text().strip() and one.get_visible()]
    small = [(one.get_text(), one.get_fontsize()) for one in texts if one.get_fontsize() < 8]
    assert texts
    assert not small
    if name in WITHOUT_AXES:
        return
    titles = [figure.get_suptitle(), *(ax.get_title(loc=loc) for ax in axes for loc in
                                       ("left", "center"))]  # fmt: skip
    assert any(titles)
    assert any(ax.get_xlabel() for ax in axes) or figure.get_supxlabel()
    named = any(ax.get_ylabel() for ax in axes) or figure.get_supylabel()
    names = [label.get_text() for label in axes[0].get_yticklabels()]  # of rows; a tree has none
    assert named or not names or not names[0].lstrip("-").isdigit()

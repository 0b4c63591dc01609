"""Sliders redraw a figure with what they are set to; without ipywidgets the figure is shown."""

import sys

import pytest
from matplotlib.figure import Figure

from specjax.viz.sliders import sliders


def draw(K=3, alpha=0.5, hardware="small"):
    """Remember what was drawn."""
    DRAWN.append((K, alpha, hardware))
    return Figure()


DRAWN: list[tuple] = []


@pytest.fixture(autouse=True)
def _nothing_drawn():
    DRAWN.clear()


def test_each_argument_has_a_control_that_begins_at_its_default():
    widgets = pytest.importorskip("ipywidgets")
    shown = sliders(draw, K=(1, 8), alpha=(0.0, 1.0, 0.05), hardware={"H200": "small", "B": "b"})
    *controls, output = shown.children
    assert isinstance(output, widgets.Output)
    assert [one.value for one in controls] == [3, 0.5, "small"]
    assert [type(one).__name__ for one in controls] == ["IntSlider", "FloatSlider", "Dropdown"]
    assert not any(getattr(one, "continuous_update", False) for one in controls)
    controls[0].value = 7
    controls[2].value = "b"
    assert DRAWN[-2:] == [(7, 0.5, "small"), (7, 0.5, "b")]


def test_without_ipywidgets_the_picture_is_shown(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert isinstance(sliders(draw, K=(1, 8)), Figure)
    assert DRAWN == [(3, 0.5, "small")]

"""The figure around axes, and its file."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax.files import write_atomically


def figure_of(ax: Axes) -> Figure:
    """Return the figure that axes are drawn in."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure


def save_figure(ax: Axes, file: Path) -> None:
    """Write axes' figure, whole or not at all, as the suffix says; without one as PNG.

    Raises ValueError for a suffix that matplotlib does not know.
    """
    with write_atomically(file) as opened:
        figure_of(ax).savefig(opened, format=file.suffix[1:] or "png")

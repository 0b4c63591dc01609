"""Get the figure of axes, and save it."""

import os
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from specjax.host.files import write_atomically


def figure_of(ax: Axes) -> Figure:
    """Return the figure that axes are drawn in."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure


def check_picture(file: Path) -> None:
    """Raise ValueError unless a picture can be written there; called before long work."""
    folder, formats = file.parent, FigureCanvasBase.get_supported_filetypes()
    if not folder.is_dir():
        raise ValueError(f"picture {file}: {folder} is not a folder; create it first.")
    if file.is_dir() or not os.access(file if file.exists() else folder, os.W_OK):
        raise ValueError(f"picture {file} cannot be written.")
    if file.suffix and file.suffix[1:].lower() not in formats:
        raise ValueError(f"picture {file} must end in one of {', '.join(sorted(formats))}.")


def save_figure(ax: Axes, file: Path) -> None:
    """Write the axes' figure atomically, in the format of the suffix (PNG if there is none).

    Raises ValueError as `check_picture` does.
    """
    check_picture(file)
    with write_atomically(file) as opened:
        figure_of(ax).savefig(opened, format=file.suffix[1:] or "png")

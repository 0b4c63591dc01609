"""A figure under sliders in a notebook; the figure alone where ipywidgets is not installed."""

from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure


def sliders(draw: Callable[..., Figure], **controls: Any) -> Any:
    """Return ``draw``'s figure under a control for each of its arguments, to be shown by Jupyter.

    A figure takes some tenths of a second, so it is drawn anew when a slider is let go. Without
    ipywidgets (``specjax[notebooks]``) it is the figure of ``draw``'s defaults.

    Args:
        draw: a function whose arguments all have defaults.
        **controls: ipywidgets' abbreviations: (least, most), (least, most, step), or a dict of
            names and values to choose from.
    """
    try:
        from ipywidgets import interactive
    except ImportError:
        return draw()
    shown = interactive(draw, **controls)
    for control in shown.children:
        if control.has_trait("continuous_update"):
            control.continuous_update = False  # type: ignore[reportAttributeAccessIssue]
    return shown

"""One draft token, word by word: what the draft gives, what is kept, what makes up for it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

KEPT, REFUSED, RESIDUAL = "#009E73", "#D55E00", "#0072B2"  # Okabe & Ito
ROUNDING = 1e-6


class Shares(NamedTuple):
    """The three parts of the figure, per word."""

    kept: np.ndarray  # min(p, q): drafted and accepted
    refused: np.ndarray  # max(q - p, 0): drafted and refused
    residual: np.ndarray  # max(p - q, 0): recovered after a refusal


def acceptance_shares(
    p: Sequence[float] | np.ndarray,
    q: Sequence[float] | np.ndarray,
    words: Sequence[str],
    *,
    title: str | None = None,
    ax: Axes | None = None,
) -> tuple[Shares, Axes]:
    """Draw the target's law beside the draft's, both split where rejection sampling splits them.

    Left bars are the draft's, q = kept + refused; right bars the target's, p = kept + residual.
    Refused and residual weigh the same, 1 - alpha. Returns the shares and the axes.
    Raises ValueError when p and q are not laws over the words.
    """
    target, draft = np.asarray(p, float), np.asarray(q, float)
    for name, law in (("p", target), ("q", draft)):
        if law.shape != (len(words),) or (law < 0).any() or abs(law.sum() - 1) > ROUNDING:
            raise ValueError(f"{name} must be a law over the {len(words)} words, got {law}")
    shares = Shares(
        np.minimum(target, draft), np.maximum(draft - target, 0), np.maximum(target - draft, 0)
    )
    if ax is None:
        ax = Figure(figsize=(7, 4), dpi=150, layout="constrained").add_subplot()
    place, alpha = np.arange(len(words)), shares.kept.sum()
    left, right = {"x": place - 0.2, "width": 0.36}, {"x": place + 0.2, "width": 0.36}
    kept = f"min(p, q): drafted and accepted, {alpha:.3f} of all"
    ax.bar(**left, height=shares.kept, color=KEPT, label=kept)
    refused = f"max(q - p, 0): drafted and refused, {1 - alpha:.3f}"
    ax.bar(**left, height=shares.refused, bottom=shares.kept, color=REFUSED, label=refused)
    ax.bar(**right, height=shares.kept, color=KEPT)
    made_up = f"max(p - q, 0): recovered instead, {1 - alpha:.3f}"
    ax.bar(**right, height=shares.residual, bottom=shares.kept, color=RESIDUAL, label=made_up)
    ax.set_xticks(place, [f"{word}\nq   p" for word in words], fontsize=9)
    ax.set_ylim(0, 1.5 * max(target.max(), draft.max()))
    ax.set_ylabel("probability", fontsize=9)
    ax.tick_params(labelsize=9)
    ax.spines[["top", "right"]].set_visible(False)
    said = "What rejection sampling keeps, and what makes up for the rest"
    ax.set_title(said if title is None else title, fontsize=11, loc="left")
    ax.legend(frameon=False, fontsize=9, loc="upper right")
    return shares, ax

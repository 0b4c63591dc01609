"""A round's cost in plain steps, beside the tokens it emits."""

from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax.traces.explain import Explanation
from specjax.viz.palette import BLUE, GREEN, ORANGE, PURPLE, QUIET, SKY, SMALL, VERMILION

COLOURS = {  # and a hatch, for grey
    "the target's own token": (SKY, ""),
    "accepted tokens": (GREEN, ""),
    "a plain step": (SKY, ""),
    "drafting": (ORANGE, "//"),
    "verifying more than one": (BLUE, ".."),
    "overhead": (PURPLE, "xx"),
    "drafting, verifying, overhead": (ORANGE, "//"),
}


class Slab(NamedTuple):
    """One part of one of the two bars."""

    bar: str  # "brings" or "costs"
    name: str
    start: float
    width: float  # tokens, or plain steps; a saving is drawn as nothing


def round_budget(
    found: Explanation, *, title: str | None = None, ax: Axes | None = None
) -> tuple[tuple[Slab, ...], Axes]:
    """Draw two bars: the tokens that a round emits, and its cost in plain steps.

    Speculation pays where the upper one is longer: the speedup is their ratio. Returns the parts
    and the axes. Raises ValueError for an explanation without costs.
    """
    if found.round_cost is None or found.speedup is None:
        raise ValueError("the round's cost was not measured: nothing to set against its tokens.")
    bars: dict[str, list[tuple[str, float]]] = {
        "brings": [
            ("the target's own token", 1.0),
            ("accepted tokens", found.tokens_per_round - 1.0),
        ],
        "costs": [("a plain step", 1.0)],
    }
    if found.draft is None or found.verify is None or found.overhead is None:
        bars["costs"].append(("drafting, verifying, overhead", found.round_cost - 1.0))
    else:
        bars["costs"] += [
            ("drafting", found.draft),
            ("verifying more than one", found.verify),
            ("overhead", found.overhead),
        ]
    slabs = []
    for bar, rows in bars.items():
        start = 0.0
        for name, width in rows:
            slabs.append(Slab(bar, name, start, max(width, 0.0)))
            start += max(width, 0.0)
    if ax is None:
        ax = Figure(figsize=(7.2, 2.9), dpi=150, layout="constrained").add_subplot()
    heights = {"brings": 1.0, "costs": 0.0}
    reach = max(found.tokens_per_round, found.round_cost)
    for slab in slabs:
        y, (colour, hatch) = heights[slab.bar], COLOURS[slab.name]
        ax.barh(
            y,
            slab.width,
            left=slab.start,
            height=0.5,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            linewidth=0.8,
            label="_" if slab.name == "a plain step" else f"{slab.name}: {slab.width:.2f}",
        )
    for bar, end, unit in (
        ("brings", found.tokens_per_round, "tokens"),
        ("costs", found.round_cost, "plain steps"),
    ):
        y = heights[bar]
        behind = max(end, found.round_cost) + 0.01 * reach
        ax.text(behind, y, f"{end:.2f} {unit}", va="center", fontsize=SMALL)
    ax.axvline(found.round_cost, color=VERMILION, linewidth=1.2, linestyle=(0, (4, 2)))
    ax.set_yticks([1.0, 0.0], ["a round brings", "a round costs"], fontsize=SMALL)
    ax.set(xlim=(0, 1.28 * reach), ylim=(-0.5, 1.5))
    ax.set_xlabel("tokens, and plain steps; it pays beyond the dashed line", fontsize=SMALL)
    ax.tick_params(labelsize=SMALL)
    ax.spines[["top", "right"]].set_visible(False)
    word = "Faster" if found.speedup >= 1 else "Slower"
    said = f"{word}: {found.speedup:.2f}x at K = {found.num_speculative_tokens}"
    if found.speedup < 1 and found.guilty is not None:
        said += f"; the guilty term: {found.guilty}"
    ax.set_title(said if title is None else title, fontsize=11, loc="left")
    ax.legend(
        loc="upper center",
        bbox_to_anchor=(0.45, -0.28),
        ncols=3,
        frameon=False,
        fontsize=SMALL,
        labelcolor=QUIET,
    )
    return tuple(slabs), ax

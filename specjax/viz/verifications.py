"""Published verifications on one axis: exact ones against the optimum, lossy ones as curves."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax.audit.compare import Compared, Comparison
from specjax.audit.rules import LOSSY
from specjax.viz.palette import BLACK, BLUE, DASHES, GREEN, LINES, MARKS, QUIET, SMALL, VERMILION

COLOURS = {"chain of 3": BLUE, "3 siblings": GREEN, "2 paths of 2": VERMILION}


def verification_comparison(found: Comparison, family: str, *, title: str | None = None) -> Axes:
    """Draw two panels for one family of distributions, and return the axes of the second.

    Left: tokens per round of every exact verification, and the optimum of its drafts as a line.
    Right: what lossy ones bring on chains, against their distance from the target's distribution.

    Raises:
        ValueError: there is no such family.
    """
    if family not in found.rows[0].tokens:
        raise ValueError(f"there is no {family!r}: choose from {', '.join(found.rows[0].tokens)}")
    figure = Figure(figsize=(13.5, 4.8), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.1, 1))
    draw_exact(left, found, family)
    draw_lossy(right, found, family)
    said = f"Published verifications, {family} distributions" if title is None else title
    figure.suptitle(said, fontsize=11, x=0.01, ha="left")
    for ax in (left, right):
        ax.tick_params(labelsize=SMALL)
        ax.spines[["top", "right"]].set_visible(False)
    return right


def draw_exact(ax: Axes, found: Comparison, family: str) -> None:
    """Draw a row per exact verification, the drafts of one kind together, and their optimum."""
    y, labels = 0.0, []
    for drafts in dict.fromkeys(row.drafts for row in found.rows if row.promise != LOSSY):
        rows = [row for row in found.rows if row.drafts == drafts and row.promise != LOSSY]
        colour = next(colour for name, colour in COLOURS.items() if drafts.startswith(name))
        ys = [y + i for i in range(len(rows))]
        tokens = [row.tokens[family] for row in rows]
        ax.plot(tokens, ys, "o", color=colour, ms=7)
        if drafts in found.best:
            best = found.best[drafts][family]
            ax.plot([best, best], [ys[0] - 0.4, ys[-1] + 0.4], color=BLACK, lw=1, ls=DASHES[1])
        ax.text(1.0, y - 0.5, f" {drafts}", color=colour, fontsize=SMALL, va="bottom")
        labels += [(i, row.name) for i, row in zip(ys, rows, strict=True)]
        y = ys[-1] + 2
    ax.set_yticks([i for i, _ in labels], [name for _, name in labels])
    ax.invert_yaxis()
    ax.set_ylim(top=-1.3)  # room for the first name
    ax.set_xlim(left=1.0)
    ax.set_xlabel("expected tokens per round (dashed: no exact rule brings more)", fontsize=SMALL)


def draw_lossy(ax: Axes, found: Comparison, family: str) -> None:
    """Draw a curve per family of lossy rules, and what chains bring without loss."""
    curves: dict[str, list[Compared]] = {}
    for row in found.rows:
        if row.promise == LOSSY and row.drafts == "chain of 3":
            curves.setdefault(row.name, []).append(row)
    for i, (name, rows) in enumerate(curves.items()):
        x, y = [row.tv[family] for row in rows], [row.tokens[family] for row in rows]
        again = (i + i // 6) % 6  # beyond six, the colour with another marker
        style = {"color": LINES[i % 6], "marker": MARKS[again], "ls": DASHES[again]}
        ax.plot(x, y, label=f"{name} ({rows[0].paper})", ms=5, lw=1.2, **style)
    for row in found.rows:
        if row.promise != LOSSY and row.drafts == "chain of 3" and row.name != "traversal":
            ax.plot(0, row.tokens[family], "o", color=BLACK, ms=5, clip_on=False)
            ax.annotate(
                row.name, (0, row.tokens[family]), (6, 0), textcoords="offset points",
                fontsize=8, va="center", color=QUIET,
            )  # fmt: skip
    ax.axhline(found.best["chain of 3"][family], color=BLACK, lw=1, ls=DASHES[1])
    ax.set_xlim(left=0)
    ax.set_xlabel("total variation of K + 1 tokens from the target's", fontsize=SMALL)
    ax.set_ylabel("expected tokens per round, chains of 3", fontsize=SMALL)
    ax.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))

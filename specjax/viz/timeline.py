"""The token timeline: the drafted tokens of every round, accepted or rejected."""

import functools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.patches import FancyBboxPatch

from specjax.viz.figure import figure_of
from specjax.viz.palette import BLUE, GREEN, ORANGE, QUIET, SKY

ACCEPTED, REJECTED, DISCARDED, CUT = "accepted", "rejected", "discarded", "cut"
RECOVERED, BONUS, PLAIN = "recovered", "bonus", "plain"

FONT = "DejaVu Sans Mono"  # ships with matplotlib
ADVANCE = 0.602  # width of one character of FONT, in font sizes
ROW = 2.4  # height of one row, in characters
GAP = 0.7  # between two columns, in characters
SIDE = 5.0  # left and right of the columns, in characters
KEY = 42.0  # width of one column of the legend, in characters
NAMES = {" ": "␣", "\n": "↵", "\t": "⇥"}

# Okabe & Ito's colour-blind-safe palette: (fill, edge, text, legend)
STYLES = {
    ACCEPTED: (GREEN, GREEN, "white", "accepted draft token"),
    BONUS: (BLUE, BLUE, "white", "bonus token (all accepted)"),
    RECOVERED: (ORANGE, ORANGE, "black", "recovered at the rejection"),
    PLAIN: (SKY, SKY, "black", "plain token (nothing drafted)"),
    REJECTED: ("white", "#7A3B00", "#7A3B00", "rejected draft token"),
    DISCARDED: ("#F4F4F4", "#C8C8C8", "#808080", "discarded after a rejection"),
    CUT: ("white", GREEN, "#007A59", "accepted, but past the end"),
}


class RoundTokens(NamedTuple):
    """One round of one request, as text. ``emitted`` is what was committed, after any cut."""

    drafted: tuple[str, ...]  # in order; "" where the text is not known
    num_accepted: int  # before the text was cut at a limit or a stop token
    emitted: tuple[str, ...]  # accepted tokens, then one recovered or bonus token


class Cell(NamedTuple):
    """One token of the figure."""

    round: int
    column: int  # draft position, or K for the target's own token
    kind: str
    text: str


def token_timeline(
    rounds: Sequence[RoundTokens],
    *,
    title: str | None = None,
    max_chars: int = 12,
    ax: Axes | None = None,
) -> tuple[tuple[Cell, ...], Axes]:
    """Draw one row per round: its drafted tokens by fate, then the target's own token.

    Reading the filled cells row by row gives the text. Returns the cells and the axes;
    without ``ax`` the figure is sized to its rows. Raises ValueError for impossible counts.
    """
    cells = to_cells(rounds)
    depth = max((len(one.drafted) for one in rounds), default=0)
    labels = {cell: visible(cell.text, max_chars) for cell in cells}
    heads = [*(f"draft {i + 1}" for i in range(depth)), "target"]
    widths = [
        max([len(head), *(len(labels[c]) for c in cells if c.column == i)]) + 1.6
        for i, head in enumerate(heads)
    ]
    lefts = [sum(widths[:i]) + GAP * i for i in range(depth + 1)]
    kinds = Counter(cell.kind for cell in cells)
    legend = [(kind, f"{STYLES[kind][3]}: {kinds[kind]}") for kind in STYLES if kinds[kind]]
    title = summarize(rounds) if title is None else title

    right, bottom = lefts[-1] + widths[-1], ROW * len(rounds)
    width = max(right + SIDE, len(title) + 1, KEY * min(len(legend), 2))
    top, foot = -2.4 * ROW, bottom + 0.6 * ROW + ROW * 0.8 * ((len(legend) + 1) // 2)
    ax = new_axes(width + SIDE, foot - top) if ax is None else ax
    ax.set(xlim=(-SIDE, width), ylim=(foot, top))
    ax.set_axis_off()

    size = fit_font(ax, width + SIDE, foot - top)
    font = {"family": FONT, "fontsize": size, "va": "center_baseline", "clip_on": False}
    ax.text(1 - SIDE, -1.7 * ROW, title, weight="bold", **font)
    for left, wide, head in zip(lefts, widths, heads, strict=True):
        ax.text(left + wide / 2, -0.5 * ROW, head, ha="center", color=QUIET, **font)
    for i, one in enumerate(rounds):
        y = ROW * (i + 0.5)
        ax.text(-1, y, f"{i + 1}", ha="right", color=QUIET, **font)
        ax.text(right + 1, y, f"+{len(one.emitted)}", color=QUIET, **font)
    for cell in cells:
        y = ROW * (cell.round + 0.5)
        draw_box(ax, cell.kind, lefts[cell.column], widths[cell.column], y, 0.84 * ROW)
        draw_token(
            ax, cell.kind, labels[cell], lefts[cell.column] + widths[cell.column] / 2, y, font
        )
    for i, (kind, said) in enumerate(legend):
        left, y = KEY * (i % 2), bottom + ROW * (0.9 + 0.8 * (i // 2))
        draw_box(ax, kind, left, 3.0, y, 0.55 * ROW)
        ax.text(left + 4, y, said, color="#333333", **font)
    return cells, ax


def to_cells(rounds: Sequence[RoundTokens]) -> tuple[Cell, ...]:
    """Return the kind of every drafted token, and of the one token that each round adds."""
    cells, depth = [], max((len(one.drafted) for one in rounds), default=0)
    for r, (drafted, num_accepted, emitted) in enumerate(rounds):
        if not (0 <= num_accepted <= len(drafted) and len(emitted) <= num_accepted + 1):
            raise ValueError(
                f"round {r}: need num_accepted <= drafted and emitted <= num_accepted + 1, got "
                f"{len(drafted)} drafted, {num_accepted} accepted, {len(emitted)} emitted"
            )
        for i, text in enumerate(drafted):
            if i < num_accepted:
                kind = ACCEPTED if i < len(emitted) else CUT
            else:
                kind = REJECTED if i == num_accepted else DISCARDED
            cells.append(Cell(r, i, kind, text))
        if len(emitted) == num_accepted + 1:
            own = BONUS if num_accepted == len(drafted) else RECOVERED
            cells.append(Cell(r, depth, own if drafted else PLAIN, emitted[-1]))
    return tuple(cells)


def summarize(rounds: Sequence[RoundTokens]) -> str:
    """Return a one-line summary of the rounds."""
    drafted = sum(len(one.drafted) for one in rounds)
    accepted = sum(one.num_accepted for one in rounds)
    emitted = sum(len(one.emitted) for one in rounds)
    line = f"{len(rounds)} rounds, {emitted} tokens"
    if rounds:
        line += f": {emitted / len(rounds):.2f} tokens per round"
    return line + (f", {accepted} of {drafted} draft tokens accepted" if drafted else "")


def visible(text: str, max_chars: int) -> str:
    """Return a token with whitespace made visible, at most ``max_chars`` characters."""
    shown = "".join(visible_character(character) for character in text)
    return shown if len(shown) <= max_chars else shown[: max_chars - 1] + "…"


def visible_character(character: str) -> str:
    """Return text with visible whitespace, and escapes for what the font cannot draw."""
    if character in NAMES:
        return NAMES[character]
    if character.isprintable() and ord(character) in drawable():
        return character
    return character.encode("unicode_escape").decode()


@functools.cache
def drawable() -> frozenset[int]:
    """Return the code points of the figure's font."""
    return frozenset(FT2Font(font_manager.findfont(FONT)).get_charmap())


def new_axes(columns: float, rows: float, size: float = 9.0) -> Axes:
    """Return a figure that fits so many characters at a font size, without pyplot's state."""
    inch = size * ADVANCE / 72
    return Figure(figsize=(columns * inch, rows * inch), dpi=150).add_axes((0.0, 0.0, 1.0, 1.0))


def fit_font(ax: Axes, columns: float, rows: float) -> float:
    """Return the largest font size at which the characters fit the axes, 4 to 11 points."""
    figure, box = figure_of(ax), ax.get_position()
    wide, high = figure.get_size_inches() * 72 * (box.width, box.height)
    return min(11.0, max(4.0, min(wide / columns, high / rows) / ADVANCE))


def draw_box(ax: Axes, kind: str, left: float, width: float, y: float, height: float) -> None:
    """Draw a rounded box around height ``y``."""
    fill, edge, _, _ = STYLES[kind]
    pad = 0.25
    low = (left + pad, y - height / 2 + pad)
    style = f"round,pad={pad},rounding_size=0.5"
    box = FancyBboxPatch(low, width - 2 * pad, height - 2 * pad, boxstyle=style)
    box.set(facecolor=fill, edgecolor=edge, linewidth=0.8)
    ax.add_patch(box)


def draw_token(ax: Axes, kind: str, label: str, x: float, y: float, font: dict) -> None:
    """Write a token into its box; strike a rejected one through."""
    ink = STYLES[kind][2]
    ax.text(x, y, label, ha="center", color=ink, **font)
    if kind == REJECTED:
        half = len(label) / 2 + 0.2
        ax.plot([x - half, x + half], [y, y], color=ink, linewidth=1)

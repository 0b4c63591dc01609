"""Okabe & Ito's colour-blind-safe palette, with marks and dashes to distinguish lines in grey."""

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW, BLACK = "#56B4E9", "#CC79A7", "#F0E442", "#000000"
LINES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
MARKS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 2, 1, 2)), (0, (8, 2)), (0, (3, 1, 1, 1)))
QUIET, PALE, GRID = "#555555", "#9FB3D1", "#DDDDDD"
SMALL = 9  # points, at notebook width

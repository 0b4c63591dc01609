"""The import graph of the packages, drawn from the code: `python docs/tools/import_graph.py`.

Writes the picture and the table of docs/how/packages.md. A package stands above all that it
imports; a line that follows from others (a imports b, b imports c, a imports c) is not drawn, but
every import is in the table.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "how" / "packages.svg"
PAGE = ROOT / "docs" / "how" / "packages.md"
BEGIN, END = "<!-- imports: begin -->", "<!-- imports: end -->"
WIDTH, HEIGHT, GAP, STEP = 940, 34, 22, 84

APART = "npu_bridge.certificate"  # a module that stands higher than its package

Graph = dict[str, set[str]]  # a package and what it imports


def imported(file: Path) -> set[str]:
    """Return the dotted names that a file imports anywhere but for type checking only."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    names = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def read_graph(root: Path) -> Graph:
    """Return what each package imports. A `__main__` stands above everything and is left out."""
    found = {
        ".".join(path.parent.relative_to(root).parts)
        for package in ("specjax", "npu_bridge")
        for path in (root / package).rglob("__init__.py")
    }
    places = sorted({*found, APART} - {"specjax"}, key=len, reverse=True)

    def place(name: str) -> str | None:
        """Return the innermost package that a name lies in."""
        return next((one for one in places if f"{name}.".startswith(f"{one}.")), None)

    graph: Graph = {one: set() for one in places}
    for package in ("specjax", "npu_bridge"):
        for file in (root / package).rglob("*.py"):
            module = ".".join(file.relative_to(root).with_suffix("").parts)
            here = place(module)
            if here is not None and file.name != "__main__.py":
                graph[here] |= {there for name in imported(file) if (there := place(name))} - {here}
    return {short(one): set(map(short, below)) for one, below in graph.items()}


def short(place: str) -> str:
    """Return how a package is called in the picture."""
    return place.removeprefix("specjax.")


def levels(graph: Graph) -> list[list[str]]:
    """Return the packages from the bottom up, each above everything that it imports.

    Raises ValueError for packages that import each other.
    """
    height: dict[str, int] = {}
    waiting = dict(graph)
    while waiting:
        ready = [name for name, below in waiting.items() if below <= height.keys()]
        if not ready:
            raise ValueError(f"these packages import each other: {sorted(waiting)}")
        for name in ready:
            height[name] = max((height[one] + 1 for one in waiting.pop(name)), default=0)
    rows = [[] for _ in range(max(height.values()) + 1)]
    for name, level in sorted(height.items()):
        rows[level].append(name)
    return rows


def reduced(graph: Graph) -> Graph:
    """Leave out imports that follow from others."""

    def reach(name: str) -> set[str]:
        return graph[name].union(*map(reach, graph[name]))

    return {
        name: {one for one in below if not any(one in reach(other) for other in below - {one})}
        for name, below in graph.items()
    }


def laid_out(rows: list[list[str]], graph: Graph) -> tuple[list[list[str]], Graph]:
    """Cut every line into steps of one level; the joints between have a row's place, but no box."""
    height = {name: level for level, row in enumerate(rows) for name in row}
    rows, steps = [list(row) for row in rows], {name: set() for name in graph}
    for name in sorted(graph):
        for below in sorted(graph[name]):
            here = name
            for level in range(height[name] - 1, height[below], -1):
                joint = f"{name}>{below}@{level}"
                rows[level].append(joint)
                steps[here].add(joint)
                steps[joint] = set()
                here = joint
            steps[here].add(below)
    return rows, steps


def width(name: str) -> int:
    """Return the width of a box, or of the room that a line takes."""
    return 6 if ">" in name else 7 * len(name) + 28


def arrange(rows: list[list[str]], steps: Graph) -> dict[str, tuple[float, float]]:
    """Return the middle of each box: above the average of what it imports, without overlap."""
    places: dict[str, tuple[float, float]] = {}
    for level, row in enumerate(rows):
        wish = {
            name: sum(places[one][0] for one in steps[name]) / len(steps[name])
            if steps[name]
            else WIDTH / 2
            for name in row
        }
        row = sorted(row, key=lambda name: (wish[name], name))
        at = [wish[name] for name in row]
        for i in range(1, len(row)):  # push to the right, then the whole row back to its middle
            apart = (width(row[i - 1]) + width(row[i])) / 2 + GAP
            at[i] = max(at[i], at[i - 1] + apart)
        shift = sum(wish[name] - x for x, name in zip(at, row, strict=True)) / len(row)
        low = width(row[0]) / 2 + 4 - at[0]
        high = WIDTH - width(row[-1]) / 2 - 4 - at[-1]
        shift = min(max(shift, low), high)
        y = STEP * (len(rows) - 1 - level) + HEIGHT
        places |= {name: (x + shift, y) for x, name in zip(at, row, strict=True)}
    return places


def draw(graph: Graph) -> str:
    """Return the picture as SVG."""
    rows, steps = laid_out(levels(graph), reduced(graph))
    places = arrange(rows, steps)
    height = STEP * (len(rows) - 1) + 2 * HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="13" role="img" aria-label="What imports what">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff" rx="8"/>',
        '<g stroke="#99a" stroke-width="1.2" fill="none">',
    ]
    for name in sorted(steps):
        x, y = places[name]
        top = y if ">" in name else y + HEIGHT / 2
        for below in sorted(steps[name]):
            u, v = places[below]
            bottom = v if ">" in below else v - HEIGHT / 2
            middle = (top + bottom) / 2
            parts.append(
                f'<path d="M{x:.0f} {top:.0f}C{x:.0f} {middle:.0f} {u:.0f} {middle:.0f} '
                f'{u:.0f} {bottom:.0f}"/>'
            )
    parts.append('</g><g text-anchor="middle">')
    for name in sorted(graph):
        x, y = places[name]
        wide = width(name)
        parts.append(
            f'<rect x="{x - wide / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{wide}" '
            f'height="{HEIGHT}" rx="6" fill="#e8ecff" stroke="#4051b5"/>'
            f'<text x="{x:.0f}" y="{y + 5:.0f}" fill="#222">{name}</text>'
        )
    return "\n".join([*parts, "</g></svg>", ""])


def table(graph: Graph) -> str:
    """Return every import as a table, from the top down."""
    lines = ["| package | imports |", "| --- | --- |"]
    order = [name for row in levels(graph) for name in row]
    for name in reversed(order):
        below = ", ".join(f"`{one}`" for one in order if one in graph[name])
        lines.append(f"| `{name}` | {below or 'nothing of ours'} |")
    return "\n".join(lines)


def with_table(page: str, graph: Graph) -> str:
    """Return a page with its table of imports drawn anew."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table(graph)}\n{END}{after}"


if __name__ == "__main__":
    found = read_graph(ROOT)
    PICTURE.write_text(draw(found), encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")

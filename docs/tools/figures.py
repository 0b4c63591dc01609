"""The code in figures, before and after: `python docs/tools/figures.py COMMIT` prints the table.

Each figure is read from the files of a commit, so that anybody can count again.
"""

import ast
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

sys.path.insert(0, str(Path(__file__).parent))
from import_graph import ROOT, imported

PACKAGES = "specjax", "npu_bridge"


def sources(root: Path) -> list[Path]:
    """Return the Python files of both packages."""
    return sorted(file for package in PACKAGES for file in (root / package).rglob("*.py"))


def circles(root: Path) -> int:
    """Return how many groups of packages, or of files beside them, import each other."""
    edges: set[tuple[str, str]] = set()
    files = {".".join(file.relative_to(root).with_suffix("").parts) for file in sources(root)}

    def place(name: str) -> str | None:
        """Return the package, or the file at the root, that a dotted name lies in."""
        module = name if name in files else name.rpartition(".")[0]
        if module not in files and f"{module}.__init__" not in files:
            return None
        parts = module.split(".")
        return ".".join(parts[:2]) if parts[0] == "specjax" and len(parts) > 1 else parts[0]

    for file in sources(root):
        here = place(".".join(file.relative_to(root).with_suffix("").parts))
        if here is None or here == "specjax" or file.stem.startswith("__"):
            continue
        there = {place(name) for name in imported(file)} - {here, None, "specjax"}
        edges |= {(here, str(one)) for one in there}
    names = sorted({name for edge in edges for name in edge})
    row, column = zip(*((names.index(a), names.index(b)) for a, b in edges), strict=True)
    matrix = coo_array(([1] * len(row), (row, column)), shape=(len(names), len(names)))
    _, label = connected_components(matrix, connection="strong")
    return sum(list(label).count(one) > 1 for one in set(label))


def public(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Yield the public functions, classes and methods of a file."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public(ast.Module(node.body, []))


def unannotated(root: Path) -> int:
    """Return how many parameters of public functions have no type."""
    count = 0
    for file in sources(root):
        for node in public(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef):
                given = node.args
                every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
                count += sum(
                    one.annotation is None and one.arg not in ("self", "cls") for one in every
                )
    return count


def bare_callables(root: Path) -> int:
    """Return how many fields and parameters are a `Callable` without the types of its inputs."""
    count = 0
    for file in sources(root):
        for node in public(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef):
                types = [one.annotation for one in [*node.args.args, *node.args.kwonlyargs]]
            else:
                types = [one.annotation for one in node.body if isinstance(one, ast.AnnAssign)]
            for one in filter(None, types):
                text = ast.unparse(one)
                count += text.count("Callable") - text.count("Callable[")
    return count


def figures(root: Path) -> dict[str, int]:
    """Return the table's rows: what is counted, and how many."""
    readme = (root / "README.md").read_text().count("\n")
    return {
        "Python files at the root of specjax/": sum(
            not file.stem.startswith("__") for file in (root / "specjax").glob("*.py")
        ),
        "circles of imports": circles(root),
        "`Callable` without types, in public fields and parameters": bare_callables(root),
        "public parameters without a type": unannotated(root),
        "lines of README": readme,
        "pages of documentation": sum(1 for _ in (root / "docs").rglob("*.md")),
    }


def main(commit: str) -> None:
    """Print the table: the figures of a commit beside those of the files here."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", commit], cwd=ROOT, check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        before, after = figures(Path(folder)), figures(ROOT)
    print("| | before | after |\n| --- | --- | --- |")
    for name, count in after.items():
        print(f"| {name} | {before[name]} | {count} |")


if __name__ == "__main__":
    main(sys.argv[1])

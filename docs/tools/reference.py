"""The API reference: a page for each module, found in the tree of the packages."""

import ast
from pathlib import Path

PACKAGES = ("specjax", "npu_bridge")
HIDDEN = ("__main__.py",)


def modules(folder: Path) -> list[Path]:
    """Return the modules and packages directly inside a package, in the order of their names."""
    found = [path for path in folder.glob("*.py") if path.name not in (*HIDDEN, "__init__.py")]
    found += [path for path in folder.iterdir() if (path / "__init__.py").is_file()]
    return sorted(found, key=lambda path: path.name)


def source(module: Path) -> Path:
    """Return a module's file."""
    return module / "__init__.py" if module.is_dir() else module


def name(root: Path, module: Path) -> str:
    """Return a module's dotted name."""
    return ".".join(module.relative_to(root).with_suffix("").parts)


def address(root: Path, module: Path) -> str:
    """Return the path of a module's page."""
    path = Path("reference", *name(root, module).split("."))
    return (path / "index.md" if module.is_dir() else path.with_suffix(".md")).as_posix()


def summary(module: Path) -> str:
    """Return the first paragraph of a module's docstring."""
    said = ast.get_docstring(ast.parse(source(module).read_text(encoding="utf-8"))) or ""
    return " ".join(said.partition("\n\n")[0].split())


def page(root: Path, module: Path) -> str:
    """Return a module's page; a package's begins with a table of what is in it."""
    lines = [f"# {name(root, module)}", "", f"::: {name(root, module)}"]
    hidden = ["show_root_heading: false", "show_root_toc_entry: false", "heading_level: 2"]
    if module.is_dir():
        hidden.append("show_submodules: false")
    lines += ["    options:", *(f"      {line}" for line in hidden)]
    if module.is_dir():
        here = Path(address(root, module)).parent
        rows = [
            f"| [`{name(root, one)}`]({Path(address(root, one)).relative_to(here).as_posix()}) "
            f"| {summary(one)} |"
            for one in modules(module)
        ]
        lines += ["", "## Modules", "", "| module | what it holds |", "| --- | --- |", *rows]
    return "\n".join([*lines, ""])


def walk(root: Path, module: Path) -> list[Path]:
    """Return a package and everything inside it."""
    inside = modules(module) if module.is_dir() else []
    return [module, *(found for one in inside for found in walk(root, one))]


def pages(root: Path) -> dict[str, str]:
    """Return every page by its path."""
    every = [module for package in PACKAGES for module in walk(root, root / package)]
    index = [
        "# API reference",
        "",
        "From the docstrings, a page for each module.",
        "",
        "| package | what it holds |",
        "| --- | --- |",
        *(
            f"| [`{name(root, one)}`]({address(root, one).removeprefix('reference/')}) "
            f"| {summary(one)} |"
            for one in every
            if one.is_dir()
        ),
        "",
    ]
    found = {address(root, module): page(root, module) for module in every}
    return {"reference/index.md": "\n".join(index), **found}


def branch(root: Path, module: Path) -> dict:
    """Return a module's entry of the navigation."""
    here, short = address(root, module), module.stem
    if not module.is_dir():
        return {short: here}
    return {short: [here, *(branch(root, one) for one in modules(module))]}


def navigation(root: Path) -> list:
    """Return the reference's part of the navigation."""
    return ["reference/index.md", *(branch(root, root / package) for package in PACKAGES)]

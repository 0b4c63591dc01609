"""The packages stand on floors: imports go down, never up or in a circle; the core is pure."""

import ast
import graphlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = (  # from the ground up; the longest name that fits a module is where it lives
    ("specjax.kernels", "specjax.theory"),
    ("specjax.core",),
    ("specjax.models",),
    ("specjax.drafters", "specjax.verify"),
    ("specjax.simulate",),
    ("specjax.host", "specjax.measure", "npu_bridge"),
    ("specjax.weights", "specjax.bundled", "specjax.readers"),
    ("specjax.train", "specjax.audit", "specjax.traces", "specjax.testing"),
    ("specjax.engine.options", "specjax.engine.text"),
    ("specjax.engine",),
    ("specjax.viz", "npu_bridge.certificate"),
    ("specjax.oracle", "specjax.vllm"),
    (
        "specjax.bench",
        "specjax.server",
        "specjax.ab",
        "specjax.jobs",
        "specjax.course",
        "specjax.vllm",
    ),
    ("specjax.cli",),
    ("specjax.__main__", "specjax.server.__main__", "specjax.launch"),
)
FLOOR = {place: height for height, places in enumerate(FLOORS) for place in places}
PURE = FLOOR["specjax.host"]  # below this floor nothing touches the world
WORLD = {"os", "time", "datetime", "socket", "random", "pathlib", "shutil", "tempfile", "io"}
WORLD |= {"subprocess", "threading", "asyncio", "logging", "urllib", "http", "requests", "httpx"}
# Kernels are registered with XLA once in a process, whichever of its threads traces first.
LOCKED = {("specjax.kernels.call", "threading")}
# Where another engine's package may be imported, always inside a function.
LATE = {
    "torch": {"specjax.weights.pickled", "specjax.audit.peers"},
    "torch_npu": {"npu_bridge.runtime"},
    "ray": {"specjax.jobs.on_ray"},
    "llguidance": {"specjax.engine.grammar"},
    "npu_bridge": {"specjax.engine.device", "specjax.cli.lower"},
}


def module_of(file: Path) -> str:
    """Return the dotted name of a module; a package is its ``__init__``."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {
    module_of(file): file
    for package in ("specjax", "npu_bridge")
    for file in sorted((ROOT / package).rglob("*.py"))
}
# These run under other Pythons.
GUESTS = {"specjax.oracle.driver", "specjax.bench.llama_cpp_driver"}
GUESTS |= {module for module in FILES if module.startswith("specjax.oracle.plugin.")}
MODULES = FILES.keys() - GUESTS
ROOMS = MODULES - {"specjax"}  # which only names where its three classes are


def source(module: str) -> str:
    return FILES[module].read_text(encoding="utf-8")


def imports(text: str) -> Iterator[tuple[str, bool]]:
    """Yield (name, at the top level) of every import; type-checking blocks do not count."""
    tree = ast.parse(text)
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield from ((f"{node.module}.{alias.name}", id(node) in top) for alias in node.names)


def prefixes(name: str) -> list[str]:
    """List a dotted name and what it lies in, the longest first."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def place_of(name: str) -> str:
    """Return the package of ``FLOORS`` that a module lives in."""
    found = [prefix for prefix in prefixes(name) if prefix in FLOOR]
    assert found, f"{name} lives on no floor"
    return found[0]


def ours(text: str) -> set[str]:
    """Return the names of specjax and npu_bridge that a module imports, now or later."""
    names = {name for name, _ in imports(text) if name.split(".")[0] in {"specjax", "npu_bridge"}}
    return names - {"specjax.__version__"}


@cache
def graph() -> dict[str, set[str]]:
    """Return which modules each module imports, those imported inside functions included."""
    return {
        module: {next(p for p in prefixes(name) if p in FILES) for name in ours(source(module))}
        for module in MODULES
    }


def upward(module: str, text: str) -> list[str]:
    """List the imports of a module that do not go down, or stay in its own package."""
    here = place_of(module)
    return [
        f"{module} imports {name}"
        for name in ours(text)
        if place_of(name) != here and FLOOR[place_of(name)] >= FLOOR[here]
    ]


def impure(module: str, text: str) -> list[str]:
    """List what a module has to do with clocks, files, sockets, environment, global generators."""
    found = [name for name, _ in imports(text) if name.split(".")[0] in WORLD]
    found = [name for name in found if (module, name) not in LOCKED]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and node.id in {"open", "print", "input"}:
            found.append(node.id)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "np.random":
            found.append("np.random")
    return [f"{module}: {name}" for name in found]


def outside(module: str, text: str) -> list[str]:
    """List the imports of other engines and frameworks that are not where they belong, or late."""
    found, learns = [], module.startswith(("specjax.models.", "specjax.train."))
    for name, at_top in imports(text):
        root = name.split(".")[0]
        if module.startswith("npu_bridge") and root in {"torch", "npu_bridge"}:
            continue
        wrong = root in {"vllm", "transformers"} or (root == "flax" and not learns)
        if wrong or (root in LATE and (at_top or module not in LATE[root])):
            found.append(f"{module} imports {name}")
    return found


def test_the_root_has_no_module_of_its_own():
    assert {file.name for file in (ROOT / "specjax").glob("*.py")} == {"__init__.py", "__main__.py"}


def test_every_module_lives_on_a_floor_and_every_floor_has_modules():
    homes = {place_of(module) for module in ROOMS}
    assert homes == FLOOR.keys()


def test_imports_only_go_down():
    assert not [one for module in ROOMS for one in upward(module, source(module))]


def test_no_import_goes_in_a_circle():
    graphlib.TopologicalSorter(graph()).prepare()


@pytest.mark.parametrize(("one", "other"), [("drafters", "verify"), ("verify", "drafters")])
def test_drafters_and_rules_do_not_know_each_other(one, other):
    reached = {module for module in MODULES if module.startswith(f"specjax.{one}.")}
    assert len(reached) >= 10
    while further := set().union(*(graph()[module] for module in reached)) - reached:
        reached |= further
    assert "specjax.core.types" in reached
    assert not {module for module in reached if module.startswith(f"specjax.{other}")}


def test_the_core_touches_no_clock_file_socket_environment_or_global_generator():
    pure = [module for module in ROOMS if FLOOR[place_of(module)] < PURE]
    assert not [one for module in pure for one in impure(module, source(module))]


def test_engines_stay_outside():
    assert not [one for module in MODULES for one in outside(module, source(module))]


def test_what_runs_under_other_pythons_imports_nothing_of_ours():
    assert len(GUESTS) >= 4
    assert not [name for module in GUESTS for name in ours(source(module))]


@pytest.mark.parametrize(
    ("check", "module", "text"),
    [
        (upward, "specjax.core.decode", "from specjax.engine.llm import LLM"),
        (upward, "specjax.engine.options.trees", "def f():\n    from specjax.engine import rows"),
        (upward, "specjax.drafters.ngram", "from specjax.verify.walk import walk"),
        (upward, "npu_bridge.lower", "import specjax.engine.llm"),
        (impure, "specjax.core.cache", "import time"),
        (impure, "specjax.core.cache", "x = np.random.rand()"),
        (impure, "specjax.core.cache", "open('x')"),
        (outside, "specjax.audit.peers", "import torch"),
        (outside, "specjax.engine.llm", "def f():\n    import npu_bridge"),
        (outside, "specjax.oracle.ask", "from vllm import LLM"),
        (outside, "specjax.drafters.tree", "import flax"),
    ],
)
def test_a_wrong_import_is_found(check, module, text):
    assert len(check(module, text)) == 1


def test_a_circle_is_found():
    circle = graph() | {"specjax.core.types": {"specjax.core.decode"}}
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(circle).prepare()


def test_each_package_says_on_one_line_what_is_in_it():
    for file in FILES.values():
        if file.name != "__init__.py":
            continue
        words = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        assert words.splitlines()[:1], file
        assert words.splitlines()[0].endswith("."), file


def test_the_step_fits_one_screen():
    tree = ast.parse(source("specjax.core.decode"))
    lines = {n.name: n.end_lineno - n.lineno for n in tree.body if isinstance(n, ast.FunctionDef)}
    assert lines["step"] + lines["judge"] < 50

"""The house has floors: an import may only go down, and only some rooms have windows."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = (
    ("types", "kernels"),
    ("ops", "topology", "metrics", "theory", "config", "generators"),
    ("cache", "sampling"),
    ("models",),
    ("drafters", "verify"),
    ("decode",),
    ("files", "worker", "launch", "machine"),
    ("markdown", "environments"),
    ("weights", "bundled", "compile_cache"),
    ("train", "simulate", "audit", "traces"),
    ("engine",),
    ("viz",),
    ("oracle",),
    ("bench", "server", "ab"),
    ("cli",),
    ("__main__",),
)
FLOOR = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
PURE = FLOOR["files"]  # below this floor nothing touches the world
WORLD = {"os", "time", "datetime", "socket", "random", "pathlib", "shutil", "tempfile", "io"}
WORLD |= {"subprocess", "threading", "asyncio", "logging", "urllib", "http", "requests", "httpx"}
FILES = sorted((ROOT / "specjax").rglob("*.py")) + sorted((ROOT / "npu_bridge").rglob("*.py"))


def room(file: Path) -> str:
    """Return where a file is; a `__main__` is on top of everything, wherever it lies."""
    if file.name == "__main__.py":
        return "__main__"
    inside = file.relative_to(ROOT / "specjax")
    return inside.parts[0].removesuffix(".py")


def imports(file: Path) -> list[tuple[str, bool]]:
    """List (module, at the top level) of every import; type-checking blocks do not count."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    top, found = {id(node) for node in tree.body}, []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [(name, id(node) in top) for name in names]
    return found


ORACLE = ROOT / "specjax" / "oracle"  # driver.py and plugin/ run under vLLM's interpreter
DRIVERS = (ORACLE / "driver.py", ROOT / "specjax" / "bench" / "llama_cpp_driver.py")
GUESTS = [f for f in FILES if f in DRIVERS or f.parent == ORACLE / "plugin"]
FILES = [f for f in FILES if f not in GUESTS]
SPECJAX = [f for f in FILES if f.is_relative_to(ROOT / "specjax") and f.parent.parent != f]
ROOMS = [f for f in SPECJAX if f != ROOT / "specjax" / "__init__.py"]


def name(file: Path) -> str:
    return str(file.relative_to(ROOT))


@pytest.mark.parametrize("file", ROOMS, ids=name)
def test_imports_only_go_down(file):
    here = FLOOR[room(file)]
    for module, _ in imports(file):
        if module.startswith("specjax."):
            there = module.split(".")[1]
            if there != "__version__":
                assert FLOOR[there] < here or there == room(file), module


@pytest.mark.parametrize("file", ROOMS, ids=name)
def test_drafters_and_rules_do_not_know_each_other(file):
    forbidden = {"drafters": "specjax.verify", "verify": "specjax.drafters"}.get(room(file))
    for module, _ in imports(file):
        assert forbidden is None or not module.startswith(forbidden), module


@pytest.mark.parametrize("file", [f for f in ROOMS if FLOOR[room(f)] < PURE], ids=name)
def test_the_core_touches_no_clock_file_socket_environment_or_global_generator(file):
    for module, _ in imports(file):
        assert module.split(".")[0] not in WORLD, module
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            assert node.id not in {"open", "print", "input"}, node.id
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) != ("np", "random")


@pytest.mark.parametrize("file", FILES, ids=name)
def test_engines_stay_outside(file):
    """torch and transformers only where an optional extra needs them, and imported late."""
    late = {"specjax/weights/convert.py": "torch", "specjax/audit/peers.py": "torch"}
    for module, at_top in imports(file):
        package = module.split(".")[0]
        assert package != "vllm", module
        if package == "torch_npu":
            assert name(file) == "npu_bridge/runtime.py", module
            assert not at_top, module
        if package == "npu_bridge" and not name(file).startswith("npu_bridge"):
            assert name(file) == "specjax/engine/device.py", module
            assert not at_top, module
        if package in {"torch", "transformers"} and not name(file).startswith("npu_bridge"):
            assert package in late.get(name(file), ""), f"{name(file)} imports {module}"
            assert not at_top, f"{name(file)} imports {module} at its top"
        if package == "flax":
            assert room(file) in {"models", "train"}, module


@pytest.mark.parametrize("file", GUESTS, ids=name)
def test_what_runs_under_other_pythons_imports_nothing_of_ours(file):
    assert not [module for module, _ in imports(file) if module.split(".")[0] == "specjax"]


def test_the_step_fits_one_screen():
    tree = ast.parse((ROOT / "specjax" / "decode.py").read_text(encoding="utf-8"))
    lines = {n.name: n.end_lineno - n.lineno for n in tree.body if isinstance(n, ast.FunctionDef)}
    assert lines["step"] + lines["judge"] < 50

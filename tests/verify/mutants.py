"""Mutants of the rules: every comparison of ``specjax/verify``, flipped one at a time.

A file is compiled once with a switch in every comparison: which one is flipped is a number that
arrives as data, in a field of the text that no rule reads. So all mutants of a file share one
compiled program.
"""

import ast
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import specjax.verify

FOLDER = Path(specjax.verify.__file__).parent
MODULES = ("noise", "probs_rule", "verdict", "walk", "rejection", "rejection_tree", "block")
MODULES += ("typical", "entropy", "synthetic")
FLIPS = {  # the nearest other comparison, and the opposite one
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
NONE = -1  # no mutant is active


class Mutant(NamedTuple):
    """One flipped comparison."""

    number: int
    module: str
    line: int
    said: str  # what the comparison was
    flip: str


class Switches(ast.NodeTransformer):
    """Replace every comparison ``a < b`` by ``_switch(a, b, original, {number: flipped})``."""

    def __init__(self, module: str):
        self.module = module
        self.mutants: list[Mutant] = []

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Put a switch in; chained comparisons would need one per link."""
        said = ast.unparse(node)
        self.generic_visit(node)
        assert len(node.ops) == 1, f"{self.module}: {said} is chained"
        flips = {}
        for flip in FLIPS[type(node.ops[0])]:
            number = len(self.mutants)
            self.mutants.append(Mutant(number, self.module, node.lineno, said, flip.__name__))
            flips[number] = flip()
        keys: list[ast.expr | None] = [ast.Constant(number) for number in flips]
        table = ast.Dict(keys, [function(flip) for flip in flips.values()])
        args = [node.left, node.comparators[0], function(node.ops[0]), table]
        return ast.Call(ast.Name("_switch", ast.Load()), args, [])


def function(operator: ast.cmpop) -> ast.Lambda:
    """Return ``lambda a, b: a <operator> b``."""
    lambda_ = ast.parse("lambda a, b: a < b", mode="eval").body
    assert isinstance(lambda_, ast.Lambda)
    assert isinstance(lambda_.body, ast.Compare)
    lambda_.body.ops = [operator]
    return lambda_


class Nest:
    """The modules of ``specjax.verify`` anew, with switches in one of them."""

    def __init__(self, mutated: str):
        self.active: Any = NONE
        self.dynamic = True  # the active mutant arrives as data
        self.armed: dict[Any, Any] = {}
        switches = Switches(mutated)
        self.modules: dict[str, types.ModuleType] = {}
        with own_modules(self.modules):
            for name in MODULES:
                tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
                if name == mutated:
                    tree = ast.fix_missing_locations(switches.visit(tree))
                module = types.ModuleType(f"specjax.verify.{name}")
                vars(module)["_switch"] = self.switch
                self.modules[name] = sys.modules[module.__name__] = module
                exec(compile(tree, f"{name}.py", "exec"), vars(module))
        self.mutants = switches.mutants

    def switch(self, left, right, original: Callable, flips: dict[int, Callable]):
        """Compare, by a flipped operator if that mutant is active."""
        result = original(left, right)
        for number, flip in flips.items():
            if isinstance(result, jax.Array):
                result = jnp.where(self.active == number, flip(left, right), result)
            elif not isinstance(self.active, jax.core.Tracer) and self.active == number:
                result = flip(left, right)
        return result


@contextmanager
def own_modules(modules: dict[str, types.ModuleType]) -> Iterator[None]:
    """Let imports of ``specjax.verify.*`` find new modules, for a while."""
    for name in MODULES:
        importlib.import_module(f"specjax.verify.{name}")
    shipped = {name: sys.modules.pop(f"specjax.verify.{name}") for name in MODULES}
    try:
        yield
    finally:
        for name, module in shipped.items():
            sys.modules[f"specjax.verify.{name}"] = module

"""The fields of vLLM's SpeculativeConfig that specjax answers to are those that its source has."""

import ast

import pytest

from specjax.oracle.environment import VLLM, folder
from tests.engine.options.test_speculative import FIELDS_0_32, METHODS_OF_BOTH, MTP_OF_BOTH


@pytest.mark.oracle
def test_the_fields_of_0_32_are_the_wheel_s(compared):
    found = list(folder().glob("lib/python*/site-packages/vllm/config/speculative.py"))
    if not found:
        pytest.skip("the oracle is not installed")
    tree = ast.parse(found[0].read_text())
    (config,) = (
        one
        for one in tree.body
        if isinstance(one, ast.ClassDef) and one.name == "SpeculativeConfig"
    )
    names = [ast.unparse(one.target) for one in config.body if isinstance(one, ast.AnnAssign)]
    assert sorted(names) == sorted(FIELDS_0_32)
    words = {
        one.value
        for line in tree.body
        if isinstance(line, ast.Assign)
        and ast.unparse(line.targets[0]).endswith(("Types", "Method"))
        for one in ast.walk(line.value)
        if isinstance(one, ast.Constant)
    }
    known = {*METHODS_OF_BOTH, *MTP_OF_BOTH, "standard", "synthetic", "block"}
    known |= {"greedy", "probabilistic"}
    assert words <= known
    compared("fields of a speculative_config", f"{VLLM}'s source", f"{len(names)} fields", "equal")

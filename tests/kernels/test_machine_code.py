"""Machine code is kept in files, is used again, and belongs to its sources and processor."""

import ctypes

import pytest
from llvmlite import ir

from specjax.host import kernel_files
from specjax.host.kernel_files import KernelFiles
from specjax.kernels import machine_code


def answer(value: int) -> ir.Module:
    """Return a module with a function that returns the value."""
    module = ir.Module("answer")
    function = ir.Function(module, ir.FunctionType(ir.IntType(64), []), "answer")
    ir.IRBuilder(function.append_basic_block()).ret(ir.Constant(ir.IntType(64), value))
    return module


def ask(value: int) -> int:
    """Return what the loaded function says, where its source says ``value``."""
    engine = machine_code.load("answer", lambda: answer(value))
    return ctypes.CFUNCTYPE(ctypes.c_int64)(engine.get_function_address("answer"))()


@pytest.fixture(autouse=True)
def no_store(monkeypatch):
    monkeypatch.setattr(machine_code, "_STORES", [])


def test_what_was_compiled_is_read(tmp_path, monkeypatch):
    machine_code.use_store(KernelFiles(tmp_path))
    assert ask(42) == 42
    assert [file.suffix for file in tmp_path.iterdir()] == [".o"]
    assert ask(43) == 42  # from the file: the name and the sources are the same
    monkeypatch.setattr(kernel_files, "describe_target", lambda: "another processor")
    machine_code.use_store(KernelFiles(tmp_path))
    assert ask(43) == 43
    assert len(list(tmp_path.iterdir())) == 2


def test_without_a_folder_all_is_compiled(tmp_path):
    machine_code.use_store(KernelFiles(tmp_path / "missing"))
    assert ask(44) == 44
    machine_code.use_store(None)
    assert ask(45) == 45
    assert not list(tmp_path.iterdir())

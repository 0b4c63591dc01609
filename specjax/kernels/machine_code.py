"""Compile LLVM IR for this machine."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir


@runtime_checkable
class Store(Protocol):
    """Keeps the machine code of kernels between processes; ``specjax.host`` has one."""

    def read(self, name: str, /) -> bytes | None:
        """Return a kernel's object file, None if it is not there."""
        ...

    def keep(self, name: str, code: bytes, /) -> None:
        """Keep it, if that is possible."""
        ...


_STORES: list[Store] = []  # the one that is used, if any


def use_store(store: Store | None) -> None:
    """Keep machine code there from now on: a process builds and compiles IR for two seconds."""
    _STORES[:] = [] if store is None else [store]


def load(name: str, write: Callable[[], ir.Module]) -> llvm.ExecutionEngine:
    """Return an engine that has a kernel's machine code.

    Args:
        name: of the kernel.
        write: returns its IR, if it has to be compiled.
    """
    machine = target_machine()
    code = next((store.read(name) for store in _STORES), None)
    if code is None:
        code = compile_module(str(write()), machine)
        for store in _STORES:
            store.keep(name, code)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


def target_machine() -> llvm.TargetMachine:
    """Return this machine as LLVM's target."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features(), opt=3, jit=True
    )


def features() -> str:
    """Return the processor's instruction sets; vectors of 512 bits where it has them."""
    return llvm.get_host_cpu_features().flatten() + ",-prefer-256-bit"


def describe_target() -> str:
    """Return what decides about machine code besides the IR: LLVM and the processor."""
    return f"{llvmlite.__version__} {llvm.get_host_cpu_name()} {features()}"


def compile_module(text: str, machine: llvm.TargetMachine) -> bytes:
    """Return the object file of LLVM IR."""
    module = llvm.parse_assembly(text)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return machine.emit_object(module)

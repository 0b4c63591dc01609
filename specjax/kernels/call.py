"""Kernels as XLA FFI calls, whose tasks run on XLA's thread pool.

A kernel is a function of one task, ``body(frame, task)``; the frame holds the arrays. The structs
are those of XLA's ``c_api.h``, whose major version 0 is stable.
"""

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import jax
from llvmlite import ir

from specjax.kernels import machine_code
from specjax.kernels.ir import I32, I64, POINTER, VOID, Value, Writer

VERSION = 0, 3  # of the interface
# A poll takes about a nanosecond. A caller that fell asleep, for 100 microseconds at least, while a
# helper was at its last task took up to twice the time for products that take 100 microseconds.
PATIENCE, SLEEP = 500_000, 50  # polls of a spin wait; then microseconds of sleep between polls


class Struct:
    """A C struct: names of fields in order, with their types."""

    def __init__(self, **fields: ir.Type):
        self.names = list(fields)
        self.type = ir.LiteralStructType(list(fields.values()))

    def field(self, to: Writer, base: Value, name: str) -> Value:
        """Return the address of a field."""
        number = I32(self.names.index(name))
        return to.at.gep(base, [I32(0), number], source_etype=self.type)

    def get(self, to: Writer, base: Value, name: str) -> Value:
        """Return the value of a field."""
        kind = self.type.elements[self.names.index(name)]
        return to.read(kind, self.field(to, base, name))

    def new(self, to: Writer, **values: Value) -> Value:
        """Return the address of a new one on the stack; ``size`` is set, other fields are zero."""
        base = to.room(self.type)
        to.write(ir.Constant(self.type, None), base)
        for name, value in values.items():
            to.write(value, self.field(to, base, name))
        to.write(self.num_bytes(to), self.field(to, base, "size"))
        return base

    def num_bytes(self, to: Writer) -> Value:
        """Return its size in bytes."""
        end = to.at.gep(ir.Constant(POINTER, None), [I32(1)], source_etype=self.type)
        return to.at.ptrtoint(end, I64)


HEAD: dict[str, ir.Type] = {"size": I64, "extension": POINTER}
FRAME = Struct(
    **HEAD, api=POINTER, context=POINTER, stage=I32,
    args_size=I64, args_extension=POINTER, num_args=I64, arg_types=POINTER, args=POINTER,
    rets_size=I64, rets_extension=POINTER, num_rets=I64, ret_types=POINTER, rets=POINTER,
)  # fmt: skip
BUFFER = Struct(**HEAD, dtype=I32, data=POINTER, rank=I64, dims=POINTER)
EXTENSION = Struct(size=I64, kind=I32, next=POINTER, metadata=POINTER)
FUNCTIONS = (
    *("error_create", "error_get_message", "error_destroy", "handler_register", "stream_get"),
    *("type_register", "context_get", "state_set", "state_get", "memory_allocate"),
    *("memory_free", "schedule", "num_threads"),
)
API = Struct(
    **HEAD, version_size=I64, version_extension=POINTER, major=I32, minor=I32, internal=POINTER,
    **dict.fromkeys(FUNCTIONS, POINTER),
)  # fmt: skip
METADATA = Struct(
    size=I64, version_size=I64, version_extension=POINTER, major=I32, minor=I32, traits=I32,
)  # fmt: skip
SCHEDULE = Struct(**HEAD, context=POINTER, task=POINTER, data=POINTER)
THREADS = Struct(**HEAD, context=POINTER, count=POINTER)
WORK = Struct(frame=POINTER, num_tasks=I64, next=I64, done=I64, users=I64)


def argument(to: Writer, frame: Value, number: int) -> Value:
    """Return the address of an argument's data."""
    return BUFFER.get(to, _buffer(to, frame, "args", number), "data")


def result(to: Writer, frame: Value, number: int = 0) -> Value:
    """Return the address of a result's data."""
    return BUFFER.get(to, _buffer(to, frame, "rets", number), "data")


def dim(to: Writer, frame: Value, number: int, axis: int) -> Value:
    """Return an argument's size along an axis."""
    dims = BUFFER.get(to, _buffer(to, frame, "args", number), "dims")
    return to.read(I64, to.place(dims, axis, 8))


def num_threads(to: Writer, frame: Value) -> Value:
    """Return how many threads XLA runs tasks on."""
    api, context = FRAME.get(to, frame, "api"), FRAME.get(to, frame, "context")
    count = to.variable(I64(1))
    _invoke(to, API.get(to, api, "num_threads"), THREADS.new(to, context=context, count=count))
    return to.read(I64, count)


def _buffer(to: Writer, frame: Value, which: str, number: int) -> Value:
    return to.read(POINTER, to.place(FRAME.get(to, frame, which), number, 8))


CountTasks = Callable[[Writer, Value], Value]  # (to, frame): writes the number of tasks


def write_handler(module: ir.Module, name: str, count_tasks: CountTasks) -> None:
    """Write the FFI handler, which runs ``body(frame, task)`` of the module for every task.

    The caller and the threads that help it take one task after the other; the caller then waits
    only for tasks that have begun.
    """
    worker = Writer(module, "worker", VOID, [POINTER])
    (work,) = worker.function.args
    with worker.while_() as unless:
        task = worker.at.atomic_rmw("add", WORK.field(worker, work, "next"), I64(1), "monotonic")
        unless(worker.less(task, WORK.get(worker, work, "num_tasks")))
        worker.call("body", VOID, WORK.get(worker, work, "frame"), task)
        worker.at.atomic_rmw("add", WORK.field(worker, work, "done"), I64(1), "release")
    worker.at.ret_void()

    helper = Writer(module, "helper", VOID, [POINTER])
    (work,) = helper.function.args
    helper.call("worker", VOID, work)
    _leave(helper, work)
    helper.at.ret_void()

    to = Writer(module, name, POINTER, [POINTER])
    (frame,) = to.function.args
    nothing = ir.Constant(POINTER, None)
    extension = FRAME.get(to, frame, "extension")
    with to.at.if_then(to.at.icmp_unsigned("!=", extension, nothing)):
        metadata = EXTENSION.get(to, extension, "metadata")
        to.write(I32(VERSION[0]), METADATA.field(to, metadata, "major"))
        to.write(I32(VERSION[1]), METADATA.field(to, metadata, "minor"))
        to.write(I32(0), METADATA.field(to, metadata, "traits"))
        to.at.ret(nothing)
    num_tasks = count_tasks(to, frame)
    with to.at.if_then(to.less(num_tasks, 2)):
        with to.loop(0, num_tasks) as task:
            to.call("body", VOID, frame, task)
        to.at.ret(nothing)
    api, context = FRAME.get(to, frame, "api"), FRAME.get(to, frame, "context")
    helpers = to.sub(to.least(num_threads(to, frame), num_tasks), 1)
    work = to.call("malloc", POINTER, WORK.num_bytes(to))
    zero = I64(0)
    counts = {"next": zero, "done": zero, "users": to.add(helpers, 1)}
    for field, value in {"frame": frame, "num_tasks": num_tasks, **counts}.items():
        to.write(value, WORK.field(to, work, field))
    call = SCHEDULE.new(to, context=context, task=helper.function, data=work)
    with to.loop(0, helpers):
        _invoke(to, API.get(to, api, "schedule"), call)
    to.call("worker", VOID, work)
    waited = to.variable(zero)
    with to.while_() as unless:
        done = to.at.load_atomic(WORK.field(to, work, "done"), ordering="acquire", align=8, typ=I64)
        unless(to.less(done, num_tasks))
        # helpers end about when the caller does, unless another process has taken their core
        turns = to.add(to.read(I64, waited), 1)
        to.write(turns, waited)
        with to.at.if_then(to.less(PATIENCE, turns)):
            to.call("usleep", I32, I32(SLEEP))
    _leave(to, work)
    to.at.ret(nothing)


def _leave(to: Writer, work: Value) -> None:
    """Decrement the work's reference count; the last thread frees it."""
    users = to.at.atomic_rmw("sub", WORK.field(to, work, "users"), I64(1), "acq_rel")
    with to.at.if_then(to.at.icmp_signed("==", users, I64(1))):
        to.call("free", VOID, work)


class XlaFunction:
    """A function pointer as llvmlite can call it, which has no such type."""

    type = POINTER
    function_type = ir.FunctionType(POINTER, [POINTER])

    def __init__(self, place: Value):
        self.get_reference = place.get_reference


def _invoke(to: Writer, function: Value, argument: Value) -> None:
    """Call a function of XLA's API, ignoring the error it may return."""
    to.at.call(XlaFunction(function), [argument])


_ENGINES: dict[str, Any] = {}  # own the machine code
_REGISTERING = threading.Lock()  # programs are traced by several threads


def register(name: str, write: Callable[[ir.Module], CountTasks]) -> str:
    """Compile a kernel and register it as an FFI target, once; return its name.

    ``write(module)`` writes ``body(frame, task)`` and returns ``count_tasks``.
    """

    def whole() -> ir.Module:
        module = ir.Module(name)
        write_handler(module, name, write(module))
        return module

    with _REGISTERING:
        if name not in _ENGINES:
            engine = machine_code.load(name, whole)
            address = engine.get_function_address(name)
            jax.ffi.register_ffi_target(name, capsule(address), platform="cpu")
            _ENGINES[name] = engine
    return name


def capsule(address: int) -> Any:
    """Return a function's address as a PyCapsule."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    return new(address, None, None)

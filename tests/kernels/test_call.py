"""The structures through which XLA calls a kernel, held against the header that jaxlib ships."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import pytest

from specjax.kernels import call, machine_code
from specjax.kernels.ir import I32, I64, POINTER
from specjax.kernels.rows import write_take_rows

HEADER = (Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h").read_text()
STRUCT = r"struct XLA_FFI_{name} \{{(.*?)\n\}}"
NUMBERS = {"size_t": I64, "int64_t": I64, "int": I32, "XLA_FFI_Handler_Traits": I32}
INSIDE = ("Api_Version", "Args", "Rets", "Attrs", "Extension_Base", "TypeId")  # held by value


def fields(name: str) -> list[tuple[str, object]]:
    """Return a structure's fields with their types, those of structures inside it in place."""
    found = re.search(STRUCT.format(name=name), HEADER, re.DOTALL)
    assert found, f"c_api.h has no struct XLA_FFI_{name}"
    listed = []
    for line in re.sub(r"//.*", "", found[1]).split(";"):
        words = line.replace("*", " * ").split()
        if not words:
            continue
        if words[0].startswith("_XLA_FFI_API_STRUCT_FIELD("):
            function = words[0].partition("(")[2].removeprefix("XLA_FFI_").rstrip(")")
            listed.append((function, POINTER))
            continue
        kind, field = words[-2], words[-1]
        bare = kind.removeprefix("XLA_FFI_")
        if kind == "*":
            listed.append((field, POINTER))
        elif bare in INSIDE:
            listed += [(f"{field}.{inner}", type) for inner, type in fields(bare)]
        elif re.search(rf"typedef enum {{[^}}]*}} {kind};", HEADER):
            listed.append((field, I32))
        else:
            listed.append((field, NUMBERS[kind]))
    return listed


OURS = {  # the header's structure, ours, and the header's names of our fields
    "CallFrame": (
        call.FRAME,
        "struct_size extension_start api ctx stage args.struct_size args.extension_start args.size "
        "args.types args.args rets.struct_size rets.extension_start rets.size rets.types rets.rets",
    ),
    "Buffer": (call.BUFFER, "struct_size extension_start dtype data rank dims"),
    "Metadata_Extension": (
        call.EXTENSION,
        "extension_base.struct_size extension_base.type extension_base.next metadata",
    ),
    "Metadata": (
        call.METADATA,
        "struct_size api_version.struct_size api_version.extension_start "
        "api_version.major_version api_version.minor_version traits",
    ),
    "ThreadPool_Schedule_Args": (call.SCHEDULE, "struct_size extension_start ctx task data"),
    "ThreadPool_NumThreads_Args": (call.THREADS, "struct_size extension_start ctx num_threads"),
    "Api": (
        call.API,
        "struct_size extension_start api_version.struct_size api_version.extension_start "
        "api_version.major_version api_version.minor_version internal_api "
        "Error_Create Error_GetMessage Error_Destroy Handler_Register Stream_Get Type_Register "
        "ExecutionContext_Get State_Set State_Get DeviceMemory_Allocate DeviceMemory_Free "
        "ThreadPool_Schedule ThreadPool_NumThreads",
    ),
}


@pytest.mark.parametrize("name", OURS)
def test_every_structure_begins_as_the_header_says(name):
    ours, names = OURS[name]
    expected = list(zip(names.split(), ours.type.elements, strict=True))
    assert fields(name)[: len(expected)] == expected


@pytest.mark.parametrize("name", ["ThreadPool_Schedule_Args", "ThreadPool_NumThreads_Args"])
def test_what_is_handed_to_xla_is_whole(name):
    """XLA compares the size that it is told with its own."""
    assert len(fields(name)) == len(OURS[name][0].names)


def test_the_names_of_functions_are_those_of_the_header():
    names = OURS["Api"][1].split()[-len(call.FUNCTIONS) :]
    for ours, theirs in zip(call.FUNCTIONS, names, strict=True):
        assert theirs.replace("_", "").lower().endswith(ours.replace("_", ""))


def test_the_version_is_one_that_xla_keeps():
    major, minor = (
        int(re.findall(rf"#define XLA_FFI_API_{which} (\d+)", HEADER)[0])
        for which in ("MAJOR", "MINOR")
    )
    assert major == call.VERSION[0]
    assert minor >= call.VERSION[1]


def test_the_only_extension_of_a_call_asks_for_metadata():
    """A kernel takes any for that."""
    (kinds,) = re.findall(r"typedef enum {([^}]*)} XLA_FFI_Extension_Type;", HEADER)
    assert [line.split("=")[0].strip() for line in kinds.split(",") if line.strip()] == [
        "XLA_FFI_Extension_Metadata"
    ]


def test_threads_that_trace_at_once_register_a_kernel_once(monkeypatch):
    monkeypatch.setattr(machine_code, "_STORES", [])  # nothing is known from an earlier run

    def write(module):
        written.append(module.name)
        return write_take_rows(3, module)

    written, together = [], threading.Barrier(8)

    def register(_):
        together.wait()
        return call.register("specjax_test_of_threads", write)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(register, range(8))) == {"specjax_test_of_threads"}
    assert written == ["specjax_test_of_threads"]

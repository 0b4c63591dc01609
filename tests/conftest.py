"""What every test runs under: shapes checked, rank promotion refused, one compile cache.

And a tiny pair of checkpoints.
"""

import os
import time
from pathlib import Path

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
if "PYTEST_XDIST_WORKER" in os.environ and hasattr(os, "sched_setaffinity"):
    # a core for each worker: threads of two that share two cores wait for each other all the time
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(WORKER) % len(cores)]})

import jax  # noqa: E402 (counts the cores)
import pytest  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

install_import_hook("specjax", "beartype.beartype")

from specjax.host.compile_cache import enable_compile_cache  # noqa: E402
from tests import tiers  # noqa: E402
from tests.oracle import table  # noqa: E402
from tests.tiny import write_pair  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
enable_compile_cache()
START = time.monotonic()
MOST_MAPS = 15_000
# Laws, goldens, other implementations' numbers, speeds; the rest asks of specjax what it says, by
# itself or beside another way of its own.
AS_SHIPPED = (
    "tests/guides/test_notebooks.py",
    "tests/oracle/",
    "tests/laws/",
    "tests/kernels/",
    "tests/npu_bridge/",
    "tests/audit/",
    "tests/bench/",
    "tests/drafters/",
    "tests/models/",
    "tests/bundled/test_bundled.py",
    "tests/core/test_prng.py",
    "tests/traces/test_laws.py",
    "tests/testing/",
    "tests/verify/",
    "tests/weights/test_parity.py",
)


def pytest_addoption(parser):
    """Add the options of time and of the oracle."""
    parser.addoption(
        "--minutes",
        type=float,
        help="No test begins later than this after the start; the rest are skipped.",
    )
    group = parser.getgroup("oracle")
    group.addoption("--record", action="store_true", help="Keep vLLM's live answers.")
    group.addoption("--table", type=Path, help="Write the table of comparisons into this file.")


def pytest_collection_modifyitems(items):
    """Mark what is slow, and begin with what is compiled as shipped, which also takes longest.

    Left to the end, one worker would be alone with minutes of it.
    """
    for item in items:
        if tiers.is_slow(item.nodeid):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: place(item.nodeid))


def place(name: str) -> int:
    """Return the place of a test's room in ``AS_SHIPPED``; its length, if it is not there."""
    found = (i for i, room in enumerate(AS_SHIPPED) if name.startswith(room))
    return next(found, len(AS_SHIPPED))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Skip a test that would begin after ``--minutes``: a slow machine ends in time too."""
    minutes = item.config.option.minutes
    if minutes is not None and time.monotonic() - START > 60 * minutes:
        pytest.skip(f"the {minutes:g} minutes of --minutes are over; `make test-all` runs it")


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    """Show what was compared with a live vLLM; write it, or replays, where asked if all passed."""
    if hasattr(config, "workerinput"):  # a worker of xdist knows its own tests only
        return
    reports = sorted(terminalreporter.getreports("passed"), key=lambda report: report.nodeid)
    said = [value for report in reports for value in report.user_properties]
    rows = list(dict.fromkeys(tuple(value) for name, value in said if name == "compared"))
    if rows and (config.option.markexpr == "oracle" or config.option.table):
        table.show(rows)
        if config.option.table and exitstatus == 0 and not terminalreporter.getreports("skipped"):
            repairs = {k: v for name, value in said if name == "repairs" for k, v in value.items()}
            table.write(rows, repairs, config.option.table)


@pytest.fixture(autouse=True, scope="module")
def compiled(request):
    """Compile without LLVM's optimisation where only what a program says is asked.

    Those files took 30% less CPU time so; their order keeps such programs from the others. What
    they start is told by the environment.
    """
    quickly = place(request.node.nodeid) == len(AS_SHIPPED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", str(int(quickly)))
        jax.config.update("jax_disable_most_optimizations", quickly)
        yield
        jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(autouse=True, scope="module")
def few_memory_maps():
    """Forget compiled programs in time: each takes several of the 65,530 maps a process may have.

    Linux refuses the next one, and XLA dies of it.
    """
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """Write a random target and draft that share a tokenizer; both continue any text."""
    return write_pair(tmp_path_factory.mktemp("pair"))

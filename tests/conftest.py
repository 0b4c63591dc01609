"""What every test runs under: shapes checked, rank promotion refused, one compile cache."""

from pathlib import Path

import jax
from jaxtyping import install_import_hook

install_import_hook("specjax", "beartype.beartype")

from specjax.compile_cache import enable_compile_cache  # noqa: E402 (after the hook)
from tests.oracle import table  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
enable_compile_cache()


def pytest_addoption(parser):
    """Add the oracle's options."""
    group = parser.getgroup("oracle")
    group.addoption("--record", action="store_true", help="Keep vLLM's live answers.")
    group.addoption("--table", type=Path, help="Write the table of comparisons into this file.")


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    """Show what was compared with a live vLLM, and write it where asked if all of it passed."""
    reports = sorted(terminalreporter.getreports("passed"), key=lambda report: report.nodeid)
    said = [value for report in reports for value in report.user_properties]
    rows = [tuple(value) for name, value in said if name == "compared"]
    if rows and config.option.markexpr == "oracle":
        table.show(rows)
        if config.option.table and exitstatus == 0 and not terminalreporter.getreports("skipped"):
            repairs = {k: v for name, value in said if name == "repairs" for k, v in value.items()}
            table.write(rows, repairs, config.option.table)

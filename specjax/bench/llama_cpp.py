"""llama.cpp, plain and with prompt lookup, in a separate environment and process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from specjax.bench.arms import Complete
from specjax.bench.ours import TIMEOUT, asker
from specjax.host import environments
from specjax.host.environments import GIB, Recipe, cache_folder, pip
from specjax.host.worker import Worker

DRIVER = Path(__file__).with_name("llama_cpp_driver.py")
VARIABLE = "SPECJAX_LLAMA_CPP"  # a folder to keep the environment in, instead of the user's cache
PACKAGES = ("llama-cpp-python==0.3.36", "gguf==0.19.0")
HOW = "run `specjax bench install-llama-cpp` (needs g++ and cmake; builds for some minutes)"


def recipe() -> Recipe:
    """Return the requirements of the environment."""
    place = cache_folder(VARIABLE, "llama-cpp") / PACKAGES[0].replace("==", "-")
    stamped = {"packages": list(PACKAGES)}
    return Recipe(
        "llama.cpp", place, "specjax_llama_cpp.json", stamped, steps, 2 * GIB, VARIABLE, HOW
    )


def steps(own: str) -> Mapping[str, Sequence[Sequence[str]]]:
    """Return the commands that the environment's Python runs to fill it."""
    return {
        **{f"install {package}": [[*pip(own), "install", package]] for package in PACKAGES},
        "import llama_cpp": [[own, "-c", "import gguf, llama_cpp"]],
    }


def install(echo: Callable[[str], None]) -> Path:
    """Create the environment unless it exists. Raises EnvironmentMissing when that fails."""
    return environments.install(recipe(), echo)


@contextmanager
def open_llama_cpp(
    model: Path, *, threads: int, context: int, lookup: tuple[int, int] | None = None
) -> Iterator[tuple[str, Complete]]:
    """Yield llama-cpp-python's version and ``complete`` for a Qwen3 folder, converted to GGUF.

    Prompts are completed one by one, with room for ``context`` tokens. ``lookup`` is the number
    of tokens that prompt lookup drafts per round, and its longest n-gram. Raises
    EnvironmentMissing, and WorkerFailure where llama.cpp fails.
    """
    python = environments.interpreter(recipe())
    job = {"model": str(model.resolve()), "threads": threads, "context": context}
    isolated = "-P"  # this folder has modules of the same names as those it imports
    with Worker("llama.cpp", [str(python), isolated, str(DRIVER)]) as worker:
        version = worker.ask({**job, "lookup": lookup}, timeout=TIMEOUT)
        yield version, asker(worker)

"""What the laws run under: programs as XLA makes them, but their loops left as they come.

The laws compare programs with each other and with references; how well LLVM polishes a model of
two layers does not matter to them, and is a third of the time to compile it.
"""

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def unpolished():
    """Compile quickly for the tests of one file."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)

"""torch_npu, imported over link stubs: only where ``make bridge-npu`` has put it on the path."""

import os
import warnings

import pytest


@pytest.fixture(scope="session")
def torch_npu(tmp_path_factory):
    """Return the real package. Skips, saying so, where it is not installed."""
    pytest.importorskip("yaml", reason="not run: make bridge-npu installs torch_npu")
    if os.environ.get("SPECJAX_BRIDGE_NPU") != "1":
        pytest.skip("not run: make bridge-npu installs torch_npu in an environment of its own")
    from tests.npu_bridge.npu.stubs import import_torch_npu

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, libraries, functions = import_torch_npu(tmp_path_factory.mktemp("stubs"))
    print(f"torch_npu {module.__version__} over {libraries} stub libraries, {functions} functions")
    return module

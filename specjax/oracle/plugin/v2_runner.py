"""vLLM's V2 model runner on a CPU: its Triton kernels are run by Triton's own interpreter.

DSpark, DFlash with layers of two kinds, block verification and synthetic acceptance exist in that
runner alone. ``prepare`` must be called before vLLM is imported, which asks for Triton then.
"""

import os
from types import SimpleNamespace
from typing import Any

import numpy as np


def prepare() -> None:
    """Choose the V2 runner, and let Triton interpret where it would compile."""
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    from triton.backends import backends

    driver = SimpleNamespace(is_active=lambda: True)
    backends.setdefault("cpu", SimpleNamespace(driver=driver, compiler=None))
    repair_masks()
    repair_log1p()


def repair_masks() -> None:
    """Let masks of loads and stores be numbers: the interpreter's C++ takes bools alone."""
    from triton.runtime.interpreter import InterpreterBuilder

    for name, place in (("create_masked_load", 1), ("create_masked_store", 2)):
        stock = getattr(InterpreterBuilder, name)

        def cast(self, *args, stock=stock, place=place):
            mask = args[place]
            if mask.data.dtype != np.bool_:
                mask.data = mask.data.astype(np.bool_)
            return stock(self, *args)

        setattr(InterpreterBuilder, name, cast)


def repair_log1p() -> None:
    """Give ``libdevice.log1p`` a body; the interpreter has none."""
    import triton.language as tl
    from triton.language.extra import libdevice

    libdevice.log1p = lambda x: tl.log(1.0 + x)


def record_proposals(llm: Any) -> dict[str, list[int]]:
    """Return a dict that holds each request's latest draft; the V2 scheduler shows only -1."""
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker
    speculator = getattr(worker, "worker", worker).model_runner.speculator
    latest, propose = {}, speculator.propose

    def recorded(input_batch, *args, **kwargs):
        drafts = propose(input_batch, *args, **kwargs)
        latest.update(zip(input_batch.req_ids, drafts.tolist(), strict=False))
        return drafts

    speculator.propose = recorded
    return latest

"""Ask the oracle: a job goes in, vLLM's answer comes out, or one clear error."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specjax.engine.outputs import RequestOutput
from specjax.oracle.environment import OracleFailure, interpreter

HERE = Path(__file__).parent
DRIVER, PLUGIN = HERE / "driver.py", HERE / "plugin"
KINDS = {  # what each kind of job must hold
    "offline": ("model", "prompts", "sampling_params"),
    "serve": ("model", "requests"),
    "rejection": ("arrays", "num_batches"),
    "ngram": ("cases",),
}
METHODS = (  # that vLLM 0.32.0 runs on a CPU
    *("ngram", "draft_model", "suffix", "eagle", "eagle3", "medusa", "mtp"),
    *("custom_class", "extract_hidden_states"),
)
TABLE_DRAFTS = {"method": "custom_class", "model": "table_drafts.TableDrafts"}
TIMEOUT = 300.0  # seconds
TAIL, WIDTH = 12, 300  # lines of vLLM's log in an error, and their characters


class OracleError(OracleFailure):
    """vLLM refused the job, crashed or hung; the message holds the end of its log."""


def ask(job: Mapping[str, Any], *, timeout: float = TIMEOUT, threads: int = 1) -> dict[str, Any]:
    """Run one job in a vLLM process of its own and return its answer.

    ``driver.py`` says what each kind of job holds and answers. ``repairs`` False asks the
    stock wheel. ``threads`` is OpenMP's: one is fastest for tiny models on a busy machine.

    Raises:
        ValueError: the job has an unknown kind or method, or lacks a field.
        OracleMissing: there is no environment.
        OracleError: vLLM refused, crashed, or took longer than ``timeout`` seconds.
    """
    check(job)
    python = interpreter()
    environment = {
        **os.environ,
        "PYTHONPATH": str(PLUGIN),
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "PYTHONWARNINGS": "ignore",
    }
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            [str(python), str(DRIVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            cwd=tempfile.gettempdir(),
            start_new_session=True,  # so that its workers end with it
        )
        with process:
            try:
                said, _ = process.communicate(json.dumps(job), timeout=timeout)
            except subprocess.TimeoutExpired:
                raise OracleError(f"vLLM gave no answer in {timeout:g} s{tail(log)}") from None
            finally:
                stop(process)
        try:
            answer = json.loads(said)
        except ValueError:
            raise OracleError(f"vLLM died (exit code {process.returncode}){tail(log)}") from None
        if "error" in answer:
            raise OracleError(f"vLLM refused the job: {answer['error']}{tail(log)}")
    return answer


def check(job: Mapping[str, Any]) -> None:
    """Refuse what could only fail after vLLM's long start. Raises ValueError."""
    kind = job.get("kind")
    if kind not in KINDS:
        raise ValueError(f"unknown kind of job {kind!r}; known: {', '.join(KINDS)}")
    missing = [name for name in KINDS[kind] if name not in job]
    if missing:
        raise ValueError(f"a job of kind {kind!r} needs {', '.join(missing)}")
    config = job.get("speculative_config")
    if config is not None and config.get("method") not in METHODS:
        raise ValueError(
            f"vLLM 0.32.0 on CPU has no method {config.get('method')!r}; "
            f"known: {', '.join(METHODS)}"
        )
    model = job.get("model")
    if model is not None and not (Path(model) / "config.json").is_file():
        raise ValueError(f"{model} is not a Hugging Face model folder: no config.json in it")


def stop(process: subprocess.Popen) -> None:
    """End the driver and everything it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def tail(log) -> str:
    """Return the last lines of vLLM's log, to be appended to a message."""
    log.seek(0)
    lines = [line[:WIDTH] for line in log.read().strip().splitlines()[-TAIL:]]
    return ". Its last words:\n" + "\n".join(lines) if lines else ""


def table(outputs: Sequence[RequestOutput]) -> list[tuple[list[int], list[int]]]:
    """Turn what specjax drafted into a job's ``drafts``: (committed tokens, draft) pairs.

    With ``speculative_config`` = ``TABLE_DRAFTS`` and ``num_speculative_tokens``, vLLM then
    verifies any drafter's greedy chains, also of methods it lacks. It verifies no trees.
    """
    pairs = []
    for request in outputs:
        for output in request.outputs:
            text = [*request.prompt_token_ids, *output.token_ids]
            pairs += [(text[:committed], list(draft)) for committed, draft in output.drafts]
    return pairs

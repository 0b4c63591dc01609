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

from specjax.bundled import resolve
from specjax.engine.outputs import RequestOutput
from specjax.oracle.environment import OracleFailure, interpreter

HERE = Path(__file__).parent
DRIVER, PLUGIN = HERE / "driver.py", HERE / "plugin"
KINDS = {  # what each kind of job must hold, and what it may hold
    "offline": (
        ("model", "prompts", "sampling_params"),
        ("speculative_config", "engine", "drafts", "repairs"),
    ),
    "serve": (("model", "requests"), ("arguments", "start_timeout", "repairs")),
    "rejection": (("arrays", "num_batches"), ("repairs",)),
    "ngram": (("cases",), ()),
}
METHODS = (
    *("ngram", "draft_model", "suffix", "eagle", "eagle3", "medusa", "mtp"),
    *("custom_class", "extract_hidden_states"),
)
TABLE_DRAFTS = {"method": "custom_class", "model": "table_drafts.TableDrafts"}
TIMEOUT = 300.0  # seconds
TAIL, WIDTH = 12, 300  # lines of vLLM's log in an error, and their characters


class OracleError(OracleFailure):
    """vLLM refused the job, crashed or hung; then the message holds the end of its log."""


def ask(job: Mapping[str, Any], *, timeout: float = TIMEOUT, threads: int = 1) -> dict[str, Any]:
    """Run one job in a vLLM process of its own and return its answer.

    ``driver.py`` says what each kind of job holds and answers. ``repairs`` False asks the
    stock wheel. ``threads`` is OpenMP's: one is fastest for tiny models on a busy machine.

    Raises:
        ValueError: the job has an unknown kind, field or method, or lacks a field.
        OracleMissing: there is no environment.
        OracleError: vLLM refused, crashed, or took longer than ``timeout`` seconds.
    """
    job, python = check(job), interpreter()
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
            words = tail(log) if job["kind"] == "serve" else ""
            raise OracleError(f"vLLM failed: {answer['error']}{words}")
    return answer


def check(job: Any) -> dict[str, Any]:
    """Refuse what could only fail, or mislead, after vLLM's long start.

    Returns the job with every path made absolute and the shipped checkpoints' names resolved.
    Raises ValueError.
    """
    if not isinstance(job, Mapping):
        raise ValueError(f"a job is a JSON object, got {job!r:.80}")
    if job.get("kind") not in tuple(KINDS):
        raise ValueError(f"unknown kind of job {job.get('kind')!r}; known: {', '.join(KINDS)}")
    needed, optional = KINDS[job["kind"]]
    known = ("kind", *needed, *optional)
    for name in job:
        if name not in known:
            raise ValueError(f"unknown field {name!r} of a job; known: {', '.join(known)}")
    missing = [name for name in needed if name not in job]
    if missing:
        raise ValueError(f"a job of kind {job['kind']!r} needs {', '.join(missing)}")
    checked = dict(job)
    if "model" in job:
        checked["model"] = checkpoint(job["model"])
    if "arrays" in job:
        checked["arrays"] = str(Path(job["arrays"]).resolve())
    if job.get("speculative_config") is not None:
        checked["speculative_config"] = check_config(job["speculative_config"], "drafts" in job)
    return checked


def check_config(config: Any, has_table: bool) -> dict[str, Any]:
    """Check the part of ``speculative_config`` that vLLM would be slow to refuse."""
    if not isinstance(config, Mapping):
        raise ValueError(f"speculative_config is a JSON object, got {config!r:.80}")
    config = dict(config)
    method = config.get("method", "draft_model" if "model" in config else None)
    if method not in METHODS:
        raise ValueError(
            f"vLLM 0.32.0 on CPU is not asked for method {method!r}, only for: {', '.join(METHODS)}"
        )
    if method == "custom_class":
        if config.get("model") == TABLE_DRAFTS["model"] and not has_table:
            raise ValueError("TableDrafts needs the job's drafts: see specjax.oracle.ask.table")
    elif "model" in config and method not in ("ngram", "suffix"):
        config["model"] = checkpoint(config["model"])
    return config


def checkpoint(model: Any) -> str:
    """Return the absolute folder of a checkpoint, or of a shipped one by name."""
    folder = resolve(str(model)).resolve()
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is not a Hugging Face model folder: no config.json in it")
    return str(folder)


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

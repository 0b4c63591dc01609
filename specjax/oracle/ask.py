"""Run a job in the oracle's vLLM process and return its answer, or raise one clear error."""

import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specjax.bundled import resolve
from specjax.engine.outputs import RequestOutput
from specjax.host.worker import Worker, WorkerFailure
from specjax.oracle.environment import OracleFailure, interpreter

HERE = Path(__file__).parent
DRIVER, PLUGIN, ROOT = HERE / "driver.py", HERE / "plugin", HERE.parent.parent
LIBRARIES = "purelib", "platlib"  # where this Python has its packages
KINDS = {  # what each kind of job must hold, and what it may hold
    "offline": (
        ("model", "prompts", "sampling_params"),
        ("speculative_config", "engine", "drafts", "repairs", "beside", "runner"),
    ),
    "session": (("model",), ("speculative_config", "engine", "repairs")),
    "serve": (("model", "requests"), ("arguments", "start_timeout", "repairs")),
    "server": (("model",), ("arguments", "start_timeout", "repairs")),
    "rejection": (("arrays", "num_batches"), ("repairs", "rule", "rates")),
    "draft_noise": (("target", "draft", "num_requests"), ("shared", "repairs")),
    "sglang": (("source", "arrays", "num_batches"), ("block", "repairs")),
    "ngram": (("cases",), ()),
    "suffix": (("worlds",), ()),
}
METHODS = (
    *("ngram", "draft_model", "suffix", "eagle", "eagle3", "medusa", "mtp", "dflash"),
    *("dspark", "custom_class", "extract_hidden_states"),
)
TABLE_DRAFTS = {"method": "custom_class", "model": "table_drafts.TableDrafts"}
TIMEOUT = 600.0  # seconds; of the V2 runner a job takes 200 by itself
EAGER_FLOAT32 = ("--dtype", "float32", "--enforce-eager")  # as jobs other than servers run
Ask = Callable[[Sequence[Sequence[int]], Mapping[str, Any]], dict[str, Any]]


class OracleError(OracleFailure):
    """vLLM refused the job, crashed or hung; then the message holds the end of its log."""


def ask(job: Mapping[str, Any], *, timeout: float = TIMEOUT, threads: int = 1) -> dict[str, Any]:
    """Run one job in a vLLM process of its own and return its answer.

    ``driver.py`` says what each kind of job holds and answers. ``repairs`` False asks the
    stock wheel, which finds threes in memory that nobody wrote. ``beside`` True lets vLLM's
    process import specjax, and of this Python's packages those that vLLM's own environment lacks.
    ``threads`` is OpenMP's: one is fastest for tiny models on a busy machine.

    Raises:
        ValueError: the job has an unknown kind, field or method, or lacks a field.
        OracleMissing: there is no environment.
        OracleError: vLLM refused, crashed, or took longer than ``timeout`` seconds.
    """
    job = check(job)
    with start(threads) as worker:
        return answered(worker, job, timeout=timeout, last=True)


@contextmanager
def open_session(
    model: str,
    *,
    speculative_config: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
    timeout: float = TIMEOUT,
    threads: int = 1,
) -> Iterator[tuple[dict[str, str], Ask]]:
    """Yield vLLM's versions and ``complete(prompts, sampling_params)``, loaded until the end.

    ``complete`` returns {"token_ids", "seconds", "peak_bytes"}: every prompt's completion, vLLM's
    time for all, and its peak memory so far. The arguments are those of an "offline" job: float32
    and eager, unless ``engine`` says otherwise. Raises as ``ask`` does.
    """
    job = {"kind": "session", "model": model, "engine": dict(engine or {})}
    job = check({**job, "speculative_config": speculative_config})
    with start(threads) as worker:
        versions = answered(worker, job, timeout=timeout)["versions"]

        def complete(
            prompts: Sequence[Sequence[int]], sampling_params: Mapping[str, Any]
        ) -> dict[str, Any]:
            wanted = {"prompts": prompts, "sampling_params": dict(sampling_params)}
            return answered(worker, wanted, timeout=timeout)

        yield versions, complete


@contextmanager
def open_server(
    model: str,
    *,
    arguments: Sequence[str] = (),
    repairs: bool = True,
    timeout: float = TIMEOUT,
    threads: int = 1,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[dict[str, Any], str]]:
    """Start ``vllm serve``; yield {"versions", "repairs", "seconds", "log"} and its URL.

    ``arguments`` are of its command line; without any it runs as vLLM does by default
    (``EAGER_FLOAT32`` are the oracle's); ``log()`` is what it has logged so far; ``environment``
    has further variables. The server ends with the ``with`` block. Raises as ``ask`` does.
    """
    job = check(
        {"kind": "server", "model": model, "arguments": list(arguments), "repairs": repairs}
        | {"start_timeout": timeout}
    )
    with start(threads, environment) as worker:
        answer = answered(worker, job, timeout=timeout)
        url = answer.pop("url")
        yield answer | {"log": worker.log}, url


def start(threads: int, environment: Mapping[str, str] | None = None) -> Worker:
    """Return a worker with the driver under vLLM's interpreter, waiting for its job."""
    own = {
        "PYTHONPATH": str(PLUGIN),
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "PYTHONWARNINGS": "ignore",
    }
    return Worker("vLLM", [str(interpreter()), str(DRIVER)], {**own, **(environment or {})})


def answered(worker: Worker, message: Any, *, timeout: float, last: bool = False) -> dict[str, Any]:
    """Return the driver's answer. Raises OracleError for a failure, its or the process's."""
    try:
        answer = worker.ask(message, timeout=timeout, last=last)
    except WorkerFailure as error:
        raise OracleError(str(error)) from None
    if "error" in answer:
        words = worker.last_words() if message.get("kind") in ("serve", "server") else ""
        raise OracleError(f"vLLM failed: {answer['error']}{words}")
    return answer


def check(job: Any) -> dict[str, Any]:
    """Return the job, validated before vLLM's long start.

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
    if job.get("beside"):
        checked["beside"] = [str(ROOT), *sorted({*map(sysconfig.get_path, LIBRARIES)})]
    if job.get("speculative_config") is not None:
        checked["speculative_config"] = check_config(job["speculative_config"], "drafts" in job)
    return checked


def check_config(config: Any, has_table: bool) -> dict[str, Any]:
    """Return a ``speculative_config`` with its model's folder; ValueError if vLLM is not asked it.

    ``has_table``: the job has ``drafts``, which ``TABLE_DRAFTS`` proposes.
    """
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


def table(outputs: Sequence[RequestOutput]) -> list[tuple[list[int], list[int]]]:
    """Return specjax's drafts as a job's ``drafts``: (committed tokens, draft) pairs.

    With ``speculative_config`` = ``TABLE_DRAFTS`` and ``num_speculative_tokens``, vLLM then
    verifies any drafter's greedy chains, also of methods it lacks. It verifies no trees.
    """
    pairs = []
    for request in outputs:
        for output in request.outputs:
            text = [*request.prompt_token_ids, *output.token_ids]
            pairs += [(text[:committed], list(draft)) for committed, draft in output.drafts]
    return pairs

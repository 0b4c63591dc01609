"""What takes the place of vLLM's ``tests/utils.py``: its server fixture, for either server.

It runs under vLLM's Python and imports nothing of ours. The model is the one that the driver laid
out under every name that the tests use; lengths and batches are cut to its size.
"""

import json
import os
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anthropic
import httpx
import openai
import pytest
import requests
from vllm.utils.network_utils import get_open_port

LORA = {"--enable-lora": 0, "--lora-modules": 1, "--max-lora-rank": 1, "--max-cpu-loras": 1}
OTHERS = {"--dtype": 1, "--runner": 1, "--reasoning-parser": 1, "--watermark-config": 1}
LEFT_OUT = {**LORA, **OTHERS}  # options, and whether values follow
LONG, SHORT = 16384, 2048  # tokens; a test that sets no limit writes until the context is full
NEED_LONG = ("test_tokenization", "test_chunked_prompt", "test_messages", "instrumentator")
SECONDS = 600.0  # for a server to start
ROCM_EXTRA_ARGS: list[str] = []
VLLM_PATH = Path(__file__).parent.parent


@pytest.fixture
def local_asset_server() -> None:
    """Stand in for the server of images, which tests of text ask for."""


def multi_gpu_only(*, num_gpus: int = 2) -> Any:
    """Return a mark: there is no GPU here."""
    return pytest.mark.skip(reason=f"needs {num_gpus} GPUs")


def requires_fp8(test: Any) -> Any:
    """Mark a test: there is no GPU here."""
    return pytest.mark.skip(reason="needs a GPU")(test)


def cut(arguments: list[str]) -> list[str]:
    """Return a server's arguments for the driver's model: no LoRA, lengths and batches cut."""
    found, waiting = [], list(arguments)
    while waiting:
        word = waiting.pop(0)
        if word not in LEFT_OUT:
            found.append(word)
        elif LEFT_OUT[word]:
            while waiting and not waiting[0].startswith("--"):
                waiting.pop(0)
    test = os.environ["PYTEST_CURRENT_TEST"]
    context = LONG if any(name in test for name in NEED_LONG) else SHORT
    most = {"--max-model-len": context, "--max-num-seqs": 8}
    for i, name in enumerate(found[:-1]):
        if name in most:
            found[i + 1] = str(min(int(found[i + 1]), most[name]))
    return found


class RemoteOpenAIServer:
    """A server of the driver's choice in a process of its own, with vLLM's arguments."""

    DUMMY_API_KEY = "token-abc123"

    def __init__(
        self,
        model: str,
        vllm_serve_args: list[str],
        *,
        env_dict: dict[str, str] | None = None,
        seed: int | None = 0,
        auto_port: bool = True,
        max_wait_seconds: float | None = None,
        override_hf_configs: dict[str, Any] | None = None,
    ) -> None:
        assert override_hf_configs is None, "not with the driver's model"
        arguments = cut(vllm_serve_args)
        self.uds = arguments[arguments.index("--uds") + 1] if "--uds" in arguments else None
        self.show_hidden_metrics = any("show-hidden-metrics" in one for one in arguments)
        if auto_port and self.uds is None:
            arguments += ["--port", str(get_open_port())]
        if seed is not None:
            arguments += ["--seed", str(seed)]
        self.host = "127.0.0.1" if self.uds is None else None
        self.port = None if self.uds else int(arguments[arguments.index("--port") + 1])
        command = [model if one == "MODEL" else one for one in json.loads(os.environ["PEER"])]
        if "--served-model-name" in arguments:
            at = command.index("--served-model-name")
            del command[at : at + 2]
        own = {**os.environ, "PYTHONPATH": os.environ["PEER_PATH"], **(env_dict or {})}
        self.proc = subprocess.Popen([*command, *arguments], env=own, start_new_session=True)
        self._wait(max(SECONDS, max_wait_seconds or 0.0))

    def _wait(self, seconds: float) -> None:
        """Return when the server answers; raise RuntimeError if it ends before."""
        get = requests.get
        if self.uds:
            get = httpx.Client(transport=httpx.HTTPTransport(uds=self.uds)).get
        until = time.monotonic() + seconds
        while self.proc.poll() is None and time.monotonic() < until:
            try:
                if get(self.url_for("health"), timeout=5).status_code == 200:
                    return
            except (requests.RequestException, httpx.HTTPError):
                time.sleep(0.5)
        self.__exit__(None, None, None)
        raise RuntimeError("the server did not start")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.proc.terminate()
        try:
            self.proc.wait(30)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()

    @property
    def url_root(self) -> str:
        """Return the address."""
        if self.uds:
            return f"http://{self.uds.split('/')[-1]}"
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts: str) -> str:
        """Return the address of a path."""
        return "/".join([self.url_root, *(part.strip("/") for part in parts if part)])

    def _options(self, more: dict[str, Any]) -> dict[str, Any]:
        return {"api_key": self.DUMMY_API_KEY, "max_retries": 0, "timeout": 600, **more}

    def get_client(self, **more: Any) -> openai.OpenAI:
        """Return OpenAI's client."""
        return openai.OpenAI(base_url=self.url_for("v1"), **self._options(more))

    def get_async_client(self, **more: Any) -> openai.AsyncOpenAI:
        """Return OpenAI's asynchronous client."""
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), **self._options(more))

    def get_client_anthropic(self, **more: Any) -> anthropic.Anthropic:
        """Return Anthropic's client."""
        return anthropic.Anthropic(base_url=self.url_for(), **self._options(more))

    def get_async_client_anthropic(self, **more: Any) -> anthropic.AsyncAnthropic:
        """Return Anthropic's asynchronous client."""
        return anthropic.AsyncAnthropic(base_url=self.url_for(), **self._options(more))

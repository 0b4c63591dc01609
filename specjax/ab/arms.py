"""What can be compared: specjax in this process, and any OpenAI-compatible server.

An arm is written LABEL=URL, or LABEL=KIND:CONFIG where KIND is ``specjax`` (in this process),
``serve`` (``specjax serve``, started and stopped) or ``vllm`` (through the oracle's environment,
likewise) and CONFIG its speculative_config as JSON, or nothing for plain decoding. What is started
here runs with its own defaults (vLLM compiled, in the checkpoint's dtype), unless it is given
arguments.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from specjax.ab.records import Record
from specjax.core.metrics import SpecDecodeCounters
from specjax.host.files import parse_json_object

KINDS = ("specjax", "serve", "vllm")


class Spec(NamedTuple):
    """An arm as given on the command line."""

    label: str
    kind: str  # one of KINDS, or "url"
    url: str | None
    config: Mapping[str, Any] | None  # its speculative_config, for the record if a URL
    arguments: tuple[str, ...] = ()  # further ones of its command line, if a server started here


class Ask(NamedTuple):
    """How every request is made."""

    max_tokens: int
    temperature: float
    chat: bool
    ignore_eos: bool
    seed: int
    timeout: float  # s
    extra: Mapping[str, Any]


Messages = Sequence[Mapping[str, str]]  # a conversation


@runtime_checkable
class Arm(Protocol):
    """An engine or server that completes prompts."""

    spec: Spec

    def about(self) -> dict[str, Any]:
        """Return version and settings, for the manifest."""
        ...

    async def complete(
        self, messages: Messages, name: str, began: float, salt: str
    ) -> tuple[Record, str]:
        """Complete a conversation; return its ``Record`` and its text."""
        ...

    async def counters(self) -> SpecDecodeCounters | None:
        """Return its speculative counters; None if it has none."""
        ...

    async def close(self) -> None:
        """Close what belongs to the running event loop."""
        ...

    def score(self, prompt: str, tokens: Sequence[int]) -> list[float]:
        """Return the logprobs of tokens after a prompt, computed in one prefill."""
        ...

    def greedy(self, prompt: str, tokens: int) -> tuple[Sequence[int], Sequence[float] | None]:
        """Return the greedy continuation's token ids, and their logprobs if available."""
        ...


def parse_arm(text: str) -> Spec:
    """Return the arm that one --arm describes. Raises ValueError, with an example."""
    label, found, rest = text.partition("=")
    kind, _, config = rest.partition(":")
    if not (found and label and rest):
        raise ValueError(f"--arm is LABEL=URL or LABEL=KIND:CONFIG, got {text!r}; {EXAMPLE}")
    if kind in ("http", "https"):
        return Spec(label, "url", rest, None)
    if kind not in KINDS:
        raise ValueError(f"--arm {text!r}: unknown kind {kind!r}, not a URL either; {EXAMPLE}")
    return Spec(label, kind, None, parse_json_object(config, f"--arm {label}") if config else None)


def with_arguments(specs: Sequence[Spec], given: Sequence[tuple[str, str]]) -> list[Spec]:
    """Return the arms with further arguments for their command lines, by label.

    Raises ValueError for a label that no arm has, and for an arm that is not started here as a
    server.
    """
    found = {one.label: one for one in specs}
    for label, text in given:
        if label not in found or found[label].kind not in ("serve", "vllm"):
            raise ValueError(f"--arm-arguments {label}={text}: no serve or vllm arm {label!r}")
        found[label] = found[label]._replace(arguments=tuple(shlex.split(text)))
    return [found[one.label] for one in specs]


EXAMPLE = (
    'for example --arm plain=specjax --arm \'ngram=vllm:{"method": "ngram", '
    '"num_speculative_tokens": 3}\' --arm other=http://localhost:8000'
)

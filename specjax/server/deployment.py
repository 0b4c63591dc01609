"""The model that a server serves: from the body of a request to queued request streams."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from specjax.engine.core import EngineCore
from specjax.engine.options.sampling_params import MAX_LOGPROBS, SamplingParams
from specjax.engine.service import Full, RequestStream, Service
from specjax.server.errors import APIError
from specjax.server.protocol import (
    Chat,
    Completion,
    Conversation,
    Message,
    StreamOptions,
    to_sampling,
)
from specjax.server.tool_parsers import FORMATS, REQUIRED, NamedCall, Parser, ToolParser
from specjax.server.tools import Calls, NamedChoice, mistral_id, usual_id, with_objects

Body = TypeVar("Body", bound=Completion | Chat)
MOST_SHOWN = 200  # characters of a wrong model name
LONG = 20_000  # characters: a longer prompt is tokenized in another thread


class Admitted(NamedTuple):
    """A queued sample, and its prompt's text; None if the client gave token ids."""

    stream: RequestStream
    text: str | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Deployment:
    """A service, and the names and limits under which clients use it.

    Args:
        names: what clients may call the model; responses have the first.
        max_queued: the most samples that may wait; a request for more is an error.
        chat_template: jinja source in place of the checkpoint's own.
        tool_call_parser: the format of the model's tool calls, one of ``FORMATS``; None: unknown.
        enable_auto_tool_choice: let the model decide whether to call a tool.
        by_priority: accept requests that name a priority.
        max_logprobs: the most log probabilities that a request may ask for per token, at most
            as many as the engine computes; -1: the whole vocabulary.
        force_include_usage: send the usage in every chunk of a stream, and at its end.
        request_timeout: the most seconds that a request may take; None: no limit.
        tokens_as_token_ids: name tokens by their ids where a request does not say how.
    """

    service: Service
    names: Sequence[str]
    max_queued: int
    chat_template: str | None = None
    tool_call_parser: str | None = None
    enable_auto_tool_choice: bool = False
    by_priority: bool = False
    max_logprobs: int = MAX_LOGPROBS
    force_include_usage: bool = False
    request_timeout: float | None = None
    tokens_as_token_ids: bool = False

    @property
    def core(self) -> EngineCore:
        """Return the engine core."""
        return self.service.core

    @cached_property
    def max_characters(self) -> int:
        """Return the length above which a prompt cannot fit the context, whatever its text."""
        vocabulary = self.core.tokenizer.backend.get_vocab(with_added_tokens=True)
        return max(map(len, vocabulary)) * self.core.max_model_len

    @cached_property
    def default_params(self) -> SamplingParams:
        """Return the sampling parameters that the checkpoint sets."""
        return self.core.default_params

    def check_name(self, name: str | None) -> None:
        """Raise APIError (404) for a model that is not served here."""
        if name is not None and name not in self.names:
            raise APIError(404, f"The model {name[:MOST_SHOWN]!a} does not exist.", "model")

    def with_defaults(self, body: Body) -> Body:
        """Return a request with this server's defaults where it says nothing."""
        found: dict[str, Any] = {}
        if self.tokens_as_token_ids and body.return_tokens_as_token_ids is None:
            found["return_tokens_as_token_ids"] = True
        if self.force_include_usage and body.stream:
            found["stream_options"] = StreamOptions(include_usage=True, continuous_usage_stats=True)
        return body.model_copy(update=found) if found else body

    async def admit(self, body: Completion | Chat) -> list[Admitted]:
        """Check a request and queue all of its samples, or none.

        Raises:
            APIError: 404 for another model, 400 for a wrong request, 503 for a full queue.
        """
        try:
            params = to_sampling(body, self.default_params)
        except ValueError as error:
            raise APIError(400, str(error)) from None
        if body.priority and not self.by_priority:
            raise APIError(
                400,
                f"Got priority {body.priority} but priority scheduling is not enabled: it needs "
                "--scheduling-policy priority.",
                "priority",
            )
        vocab_size = self.core.engine.target.vocab_size
        most = vocab_size if self.max_logprobs == -1 else self.max_logprobs
        try:
            params.limit_logprobs(vocab_size, most)
        except ValueError as error:
            raise APIError(400, str(error), "logprobs") from None
        if isinstance(body, Chat):
            self.check_auto(body)
        prompts, texts = await self.read(body, params)
        await self.compile(params)
        admitted: list[Admitted] = []
        try:
            for ids, text in zip(prompts, texts, strict=True):
                streams = self.service.submit_ids(
                    ids, params, cache_salt=body.cache_salt or "", priority=body.priority or 0
                )
                admitted += [Admitted(stream, text) for stream in streams]
        except (ValueError, Full) as error:
            for one in admitted:
                one.stream.abort()
            raise APIError(503 if isinstance(error, Full) else 400, str(error)) from None
        return admitted

    def check_auto(self, body: Chat) -> None:
        """Raise APIError (400) for a choice of the model's that is not enabled here."""
        if body.choice == "auto" and not self.enable_auto_tool_choice:
            raise APIError(
                400,
                '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to '
                "be set",
                "tool_choice",
            )

    def calls_of(self, body: Completion | Chat) -> Callable[[], Calls] | None:
        """Return what makes the parser of a choice's tool calls; None if there can be none."""
        if not isinstance(body, Chat) or body.choice == "none":
            return None
        most = 1 if body.parallel_tool_calls is False else None
        new_id = mistral_id if self.tool_call_parser == "mistral" else usual_id

        def parser(choice: str | NamedChoice) -> Parser:
            if isinstance(choice, NamedChoice):
                return NamedCall(choice.function.name)
            known = FORMATS.get(self.tool_call_parser or "")
            return ToolParser(known if choice == "auto" and known else REQUIRED)

        return lambda: Calls(parser(body.choice), most, new_id)

    async def compile(self, params: SamplingParams) -> None:
        """Compile a request's grammar on another thread: it may take a second.

        Raises:
            APIError: 400 for a grammar that cannot be compiled.
        """
        form = params.structured_outputs
        if form is None:
            return
        try:
            await asyncio.to_thread(self.core.input_processor.grammars.compile, form)
        except ValueError as error:
            raise APIError(400, str(error)) from None

    async def read(
        self, body: Completion | Chat, params: SamplingParams
    ) -> tuple[list[list[int]], list[str | None]]:
        """Return the token ids and the texts of a request's prompts, checked.

        Raises:
            APIError: 404 for another model, 400 for a wrong prompt.
        """
        self.check_name(body.model)
        try:
            if isinstance(body, Chat) and body.kv_transfer_params is not None:
                texts: list[str | None] = [None]
                given: list[Any] = [body.kv_transfer_params.model_dump()]
                special = False
            elif isinstance(body, Chat):
                texts = given = [await self.render(body.messages, body)]
                special = body.add_special_tokens is True
            else:
                given = body.prompts()
                texts = [prompt if isinstance(prompt, str) else None for prompt in given]
                special = body.add_special_tokens is not False
            bounded = body.truncate_prompt_tokens is None
            encoded = await self.encode(given, special, bounded=bounded)
            prompts = [self.cut(ids, body, params) for ids in encoded]
        except ValueError as error:
            raise APIError(400, str(error)) from None
        self.check_size(body, prompts, params)
        return prompts, texts

    async def read_chat(self, body: Chat) -> list[int]:
        """Return the token ids of a chat's prompt. Raises APIError (400) for a wrong one."""
        try:
            text = await self.render(body.messages, body)
            return (await self.encode([text], body.add_special_tokens is True))[0]
        except ValueError as error:
            raise APIError(400, str(error)) from None

    def cut(self, ids: list[int], body: Completion | Chat, params: SamplingParams) -> list[int]:
        """Return a prompt's ids, truncated to ``truncate_prompt_tokens``; -1: as many as fit.

        The last ones are kept (``truncation_side`` "left"), or the first ones ("right").
        """
        most = body.truncate_prompt_tokens
        if most is None:
            return ids
        if most == -1:
            most = max(1, self.core.max_model_len - max(params.max_tokens or 1, 1))
        if most == 0:
            raise ValueError("the decoder prompt cannot be empty: truncate_prompt_tokens is 0.")
        return ids[:most] if body.truncation_side == "right" else ids[-most:]

    def check_size(
        self, body: Completion | Chat, prompts: Sequence[list[int]], params: SamplingParams
    ) -> None:
        """Raise APIError (400) for more samples or tokens than the service can ever hold."""
        if len(prompts) * params.n > self.max_queued:
            raise APIError(
                400,
                f"{len(prompts)} prompts times n={params.n} is more than the "
                f"{self.max_queued} samples that may wait here.",
                "n",
            )
        longest, room = max(map(len, prompts)), self.core.max_model_len
        to_come = max(params.max_tokens or 1, params.min_tokens)
        if longest + to_come > room:
            raise APIError(
                400,
                f"This model's maximum context length is {room} tokens. However, you requested "
                f"{longest} in the prompt and {to_come} to come: ask for less.",
                "max_tokens",
            )

    async def encode(
        self,
        prompts: Sequence[str | dict[str, Any]],
        add_special_tokens: bool,
        *,
        bounded: bool = True,
    ) -> list[list[int]]:
        """Return prompts' token ids, checked; long ones are tokenized on another thread.

        Args:
            bounded: refuse a text before it is tokenized that is too long for the context.

        Raises:
            ValueError: a prompt is wrong.
        """
        lengths = [len(prompt) for prompt in prompts if isinstance(prompt, str)]
        if bounded and max(lengths, default=0) > self.max_characters:
            raise ValueError(
                f"This model's maximum context length is {self.core.max_model_len} tokens. "
                f"However, the prompt has {max(lengths)} characters, which cannot be that few "
                "tokens."
            )

        def tokenize() -> list[list[int]]:
            return [self.encode_one(prompt, add_special_tokens) for prompt in prompts]

        return await asyncio.to_thread(tokenize) if sum(lengths) > LONG else tokenize()

    def encode_one(self, prompt: str | dict[str, Any], add_special_tokens: bool) -> list[int]:
        """Return one prompt's token ids, checked. Raises ValueError for a wrong prompt."""
        if isinstance(prompt, str):
            ids = self.core.tokenizer.encode(prompt, add_special_tokens)
            prompt = {"prompt_token_ids": ids}
        return self.core.input_processor.prompt_ids(prompt)

    async def render(self, messages: Sequence[Message], body: Conversation) -> str:
        """Return the text of a chat by the template, rendered on a thread of its own.

        Raises:
            ValueError: the template fails.
        """
        try:
            return await asyncio.to_thread(
                self.core.tokenizer.apply_chat_template,
                [with_objects(message.model_dump(exclude_unset=True)) for message in messages],
                body.add_generation_prompt,
                chat_template=self.chat_template,
                continue_final_message=body.continue_final_message,
                **body.variables(),
            )
        except (ArithmeticError, LookupError, AttributeError, RecursionError) as error:
            kind = type(error).__name__  # a template is a program: it may fail in any way
            raise ValueError(f"the chat template failed on these messages ({kind}).") from None

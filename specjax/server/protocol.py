"""The bodies of requests: OpenAI's fields and vLLM's, checked and turned into SamplingParams.

Types are strict (a number is no string, a bool no number) and numbers finite. Unknown fields are
ignored, as in OpenAI; known ones that are not supported and would change the text are errors.
Lists have a limit and are checked up to their first error: pydantic would report every error of a
list of millions, for most of a minute.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from specjax.engine.options.sampling_params import MAX_LOGPROB_TOKEN_IDS, SamplingParams
from specjax.engine.options.structured_outputs import StructuredOutputsParams
from specjax.server.errors import APIError
from specjax.server.fields import MOST_WORD, Bias, Body, Count, Flag, Text, Tokens, Word
from specjax.server.tools import MOST_TOOLS, NamedChoice, Tool, call_form

MOST_STOPS = 4  # stop strings per request, as in OpenAI and vLLM
MOST_PROMPTS = 1024  # per request, as in vLLM
MOST_STOP_IDS = 64  # stop token ids per request: more have no program
ALL = 2**31  # tokens: more than any vocabulary has
MOST_MESSAGES = 4096  # of a chat, and parts of a message
IGNORED = (  # fields of vLLM's that change no text here
    "include_reasoning", "session_id", "stream_interval", "user",
)  # fmt: skip
UNSUPPORTED: dict[str, tuple] = {  # name -> values that have no effect
    "best_of": (1,), "chat_template": (), "ec_transfer_params": (), "function_call": ("none",),
    "functions": (), "guided_choice": (), "guided_grammar": (), "guided_json": (),
    "guided_regex": (), "kv_transfer_params": (),
    "logits_processors": (), "media_io_kwargs": (), "mm_payload": (),
    "mm_processor_kwargs": (), "modalities": (["text"],), "prompt_embeds": (),
    "repetition_detection": (), "return_mm_kwargs": (), "return_token_offsets": (),
    "routed_experts_prompt_start": (), "suffix": (), "thinking_token_budget": (-1,),
    "watermarking": (),
}  # fmt: skip
RESERVED = (  # names that chat_template_kwargs may not set
    "messages", "chat_template", "add_generation_prompt", "continue_final_message", "tools",
)  # fmt: skip
NOT_OF_BEAMS = (  # fields that a beam search has no use for
    "stream", "logprobs", "prompt_logprobs", "echo", "seed", "top_p", "top_k", "min_p",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "stop", "stop_token_ids",
    "bad_words", "min_tokens", "logit_bias", "allowed_token_ids", "vllm_xargs",
    "logprob_token_ids",
    "response_format", "structured_outputs",
)  # fmt: skip
SAMPLING = (  # fields that reach SamplingParams under their own names
    "n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p",
    "top_k", "min_p", "seed", "stop", "stop_token_ids", "bad_words",
    "include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens",
    "spaces_between_special_tokens", "allowed_token_ids", "logprob_token_ids",
)  # fmt: skip


class StreamOptions(Body):
    """The options of a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ExtraArgs(Body):
    """vLLM's ``vllm_xargs``: what becomes ``SamplingParams.extra_args``."""

    num_speculative_tokens: Count | None = None


class Schema(Body):
    """OpenAI's ``json_schema``; it holds whether ``strict`` or not."""

    name: Text
    description: Text | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's ``response_format``."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = None

    @model_validator(mode="after")
    def check_schema(self):
        """Raise ValueError for a schema that is missing."""
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("json_schema is needed where type is 'json_schema'")
        return self

    def form(self) -> dict[str, Any]:
        """Return the fields of StructuredOutputsParams that it sets."""
        if self.type == "json_schema" and self.json_schema is not None:
            return {"json": self.json_schema.schema_}
        return {"json_object": True} if self.type == "json_object" else {}


class Generation(Body):
    """The fields of completions and chats; None is the checkpoint's default, then OpenAI's."""

    model: Text | None = None
    n: int | None = None
    max_tokens: Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Word | Annotated[list[Word], Field(fail_fast=True, max_length=MOST_STOPS)] | None = None
    stop_token_ids: Annotated[Tokens, Field(max_length=MOST_STOP_IDS)] | None = None
    bad_words: Annotated[list[Word], Field(fail_fast=True, max_length=128)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    logit_bias: Bias | None = None
    allowed_token_ids: Tokens | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: Annotated[Tokens, Field(max_length=MAX_LOGPROB_TOKEN_IDS)] | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    use_beam_search: bool | None = None
    length_penalty: Annotated[float, Field(ge=-100, le=100)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    request_id: Annotated[str, Field(pattern=r"^[\w.:-]{1,128}$")] | None = None
    vllm_xargs: ExtraArgs | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MOST_WORD)] | None = None

    @model_validator(mode="after")
    def check_beams(self):
        """Raise APIError (400) for fields that contradict a beam search, or need one."""
        for name in NOT_OF_BEAMS if self.use_beam_search else ():
            if getattr(self, name) not in (None, False):
                raise APIError(400, f"{name} cannot be combined with use_beam_search.", name)
        if self.length_penalty not in (None, 1.0) and not self.use_beam_search:
            raise APIError(400, "length_penalty needs use_beam_search.", "length_penalty")
        return self

    def form(self) -> StructuredOutputsParams | None:
        """Return the form that the text must have; None: any.

        Raises:
            APIError: 400 for more than one form, or a wrong one.
        """
        given = dict(self.structured_outputs or {})
        if self.response_format is not None:
            given |= self.response_format.form()
        name = "response_format" if self.structured_outputs is None else "structured_outputs"
        try:
            return StructuredOutputsParams.from_dict(given) if given else None
        except ValueError as error:
            raise APIError(400, str(error), name) from None

    @model_validator(mode="after")
    def refuse_unsupported(self):
        """Raise APIError (400) for fields that are not supported and would change the text."""
        for name, value in (self.model_extra or {}).items():
            if name in UNSUPPORTED and value and value not in UNSUPPORTED[name]:
                raise APIError(400, f"{name} is not supported here: leave it out.", name)
        if self.logprob_token_ids and getattr(self, "logprobs", None) in (None, False):
            raise APIError(
                400,
                "when using `logprob_token_ids`, `logprobs` must be set.",
                "logprob_token_ids",
            )
        if self.stream_options is not None and not self.stream:
            raise APIError(400, "stream_options needs stream=true.", "stream_options")
        if self.stream and self.prompt_logprobs is not None:
            raise APIError(400, "log probabilities of the prompt do not stream.", "prompt_logprobs")
        return self


def shown(likeliest: int | None, named: Sequence[int] | None) -> int | None:
    """Return how many tokens are shown: ``logprob_token_ids`` and the token, or the likeliest."""
    if likeliest == -1:
        return ALL
    return likeliest if likeliest is None or not named else max(likeliest, len(named) + 1)


class Completion(Generation):
    """``POST /v1/completions``."""

    prompt: (
        Text
        | Annotated[Tokens, Field(min_length=1)]
        | Annotated[list[Text], Field(fail_fast=True, min_length=1, max_length=MOST_PROMPTS)]
        | Annotated[list[Tokens], Field(fail_fast=True, min_length=1, max_length=MOST_PROMPTS)]
    )
    logprobs: int | None = None

    @model_validator(mode="before")
    @classmethod
    def check_prompt(cls, given: Any) -> Any:
        """Return the body. Raises APIError (400) without a prompt, with vLLM's message."""
        if isinstance(given, dict) and given.get("prompt") is None:
            raise APIError(
                400, "Either prompt or prompt_embeds must be provided and non-empty.", "prompt"
            )
        return given

    @property
    def num_shown(self) -> int | None:
        """Return how many tokens of each position are shown with log probabilities."""
        return shown(self.logprobs, self.logprob_token_ids)

    def prompts(self) -> list[str | dict[str, Any]]:
        """Return the prompts, each as ``engine.input_processor`` takes it."""
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        several: list[Any] = [self.prompt] if one else list(self.prompt)
        return [p if isinstance(p, str) else {"prompt_token_ids": p} for p in several]


class Part(Body):
    """A part of a message's content."""

    type: Annotated[str, Field(pattern="^text$")]
    text: Text


class Message(Body):
    """One turn of a chat; other fields reach the chat template."""

    role: Text
    content: (
        Text | Annotated[list[Part], Field(fail_fast=True, max_length=MOST_MESSAGES)] | None
    ) = None

    @model_validator(mode="after")
    def check_content(self):
        """Raise ValueError for a message without content, unless it calls a tool."""
        calls = self.role == "assistant" and (self.model_extra or {}).get("tool_calls")
        if self.content is None and not calls:
            raise ValueError(f"the {self.role} message has no content")
        return self


Messages = Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=MOST_MESSAGES)]


class Conversation(Body):
    """What a chat template renders, in chats and in ``/tokenize``."""

    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MOST_TOOLS)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    documents: list[dict[str, Text]] | None = None
    reasoning_effort: Text | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def check_continue(self):
        """Raise APIError (400) for a message that is to be continued and to be followed."""
        if self.continue_final_message and self.add_generation_prompt:
            raise APIError(
                400,
                "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
                "continue_final_message",
            )
        for name in self.chat_template_kwargs or ():
            if name in RESERVED:
                raise APIError(
                    400, f"chat_template_kwargs may not hold {name!r}.", "chat_template_kwargs"
                )
        return self

    def variables(self) -> dict[str, Any]:
        """Return the request's variables for the chat template: its kwargs, documents, tools."""
        tools = [tool.model_dump() for tool in self.tools or ()] or None
        given = {"documents": self.documents, "reasoning_effort": self.reasoning_effort}
        given |= {"tools": tools}
        set_here = {name: value for name, value in given.items() if value is not None}
        return {**(self.chat_template_kwargs or {}), **set_here}


class Forwarded(Body):
    """``kv_transfer_params`` of a chat whose prompt another server has tokenized."""

    prompt_token_ids: Annotated[Tokens, Field(min_length=1)]

    @model_validator(mode="after")
    def check_alone(self):
        """Raise APIError (400) for other parameters: keys and values are not transferred."""
        if self.model_extra:
            raise APIError(
                400,
                "kv_transfer_params may only hold prompt_token_ids here.",
                "kv_transfer_params",
            )
        return self


class Chat(Generation, Conversation):
    """``POST /v1/chat/completions``; ``max_tokens`` is the old name of max_completion_tokens."""

    messages: Messages
    kv_transfer_params: Forwarded | None = None
    max_completion_tokens: Count | None = None
    logprobs: Flag | None = None
    top_logprobs: Annotated[int, Field(ge=-1)] | None = None
    return_prompt_text: bool | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def num_shown(self) -> int | None:
        """Return how many tokens of each position are shown with log probabilities."""
        return shown((self.top_logprobs or 0) if self.logprobs else None, self.logprob_token_ids)

    @property
    def choice(self) -> str | NamedChoice:
        """Return ``tool_choice``, with tools by default "auto"."""
        return self.tool_choice or ("auto" if self.tools else "none")

    @model_validator(mode="after")
    def check_tools(self):
        """Raise APIError (400) for a choice among tools that are not there."""
        choice, names = self.choice, [tool.function.name for tool in self.tools or ()]
        if choice != "none" and not names:
            raise APIError(400, "When using `tool_choice`, `tools` must be set.", "tool_choice")
        if isinstance(choice, NamedChoice) and choice.function.name not in names:
            raise APIError(
                400,
                "The tool specified in `tool_choice` does not match any of the specified `tools`.",
                "tool_choice",
            )
        if len(set(names)) < len(names):
            raise APIError(400, "two tools have the same name.", "tools")
        if names and self.use_beam_search:
            raise APIError(400, "tools cannot be combined with use_beam_search.", "tools")
        return self

    def form(self) -> StructuredOutputsParams | None:
        """Return the form of the answer: forced tool calls, of which there is no other form.

        Raises:
            APIError: 400 for a wrong form.
        """
        choice = self.choice
        if not self.tools or choice in ("none", "auto"):
            return super().form()
        try:
            return call_form(self.tools, choice, several=self.parallel_tool_calls is not False)
        except ValueError as error:
            raise APIError(400, str(error), "tools") from None

    @model_validator(mode="after")
    def check_logprobs(self):
        """Raise ValueError for top_logprobs without logprobs, with vLLM's message."""
        if self.top_logprobs and not self.logprobs:
            raise ValueError("when using top_logprobs, logprobs must be set to true")
        return self


class Tokenize(Conversation):
    """``POST /tokenize``: a prompt or a chat."""

    model: Text | None = None
    prompt: Text | None = None
    messages: Messages | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def check_one(self):
        """Raise ValueError for both of prompt and messages, and for neither."""
        if "chat_template" in (self.model_extra or {}):
            raise APIError(400, "chat_template is not supported here.", "chat_template")
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class Detokenize(Body):
    """``POST /detokenize``."""

    model: Text | None = None
    tokens: Tokens


def to_sampling(body: Completion | Chat, defaults: SamplingParams) -> SamplingParams:
    """Return the sampling parameters of a request, ``defaults`` where it sets none.

    Raises:
        ValueError: a value is out of range.
    """
    given = {name: getattr(body, name) for name in SAMPLING}
    given = {name: value for name, value in given.items() if value is not None}
    if body.logit_bias is not None:
        given["logit_bias"] = {int(token): bias for token, bias in body.logit_bias.items()}
    most = None if body.vllm_xargs is None else body.vllm_xargs.num_speculative_tokens
    if most is not None:
        given["extra_args"] = {"num_speculative_tokens": most}
    form = body.form()
    if form is not None:
        given["structured_outputs"] = form
    if isinstance(body, Chat):
        if body.choice == "auto":  # what begins tool calls may be a special token
            given["skip_special_tokens"] = False
        limit = body.max_completion_tokens
        given["max_tokens"] = body.max_tokens if limit is None else limit
        if body.logprobs:
            given["logprobs"] = body.top_logprobs or 0
        return replace(defaults, prompt_logprobs=body.prompt_logprobs, **given)
    given["logprobs"], given["prompt_logprobs"] = body.logprobs, body.prompt_logprobs
    if body.echo and body.prompt_logprobs is None:
        given["prompt_logprobs"] = body.logprobs
    if body.max_tokens is not None:
        given["max_tokens"] = body.max_tokens or (1 if body.echo else 0)  # 0: the prompt alone
    return replace(defaults, **given)

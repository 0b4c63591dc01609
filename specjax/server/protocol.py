"""What clients send: OpenAI's fields and vLLM's, checked once and turned into parameters.

Types are strict (a number is no string, a bool no number) and numbers finite. Fields that
nobody here knows are ignored, as OpenAI asks; those that would change the text are refused.
"""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from specjax.engine.chat import ROLES
from specjax.engine.params import SamplingParams

MOST_STOPS = 4  # stop strings per request, as in OpenAI and vLLM
MOST_PROMPTS = 1024  # per request, as in vLLM
UNSUPPORTED: dict[str, tuple] = {  # name -> values that ask for nothing
    "best_of": (1,), "chat_template": (), "continue_final_message": (), "function_call": ("none",),
    "functions": (), "guided_choice": (), "guided_grammar": (), "guided_json": (),
    "guided_regex": (), "kv_transfer_params": (), "length_penalty": (1,),
    "logits_processors": (), "logprob_token_ids": (), "modalities": (["text"],),
    "prompt_embeds": (), "priority": (), "repetition_detection": (),
    "response_format": ({"type": "text"},), "structured_outputs": (), "suffix": (),
    "thinking_token_budget": (-1,), "tool_choice": ("none", "auto"), "tools": (),
    "truncate_prompt_tokens": (), "use_beam_search": (), "watermarking": (),
}  # fmt: skip
SAMPLING = (  # fields that reach SamplingParams under their own names
    "n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p",
    "top_k", "min_p", "seed", "stop", "stop_token_ids", "bad_words",
    "include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens",
    "spaces_between_special_tokens", "allowed_token_ids",
)  # fmt: skip


def check_unicode(text: str) -> str:
    """Refuse half a character, which JSON can say and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a lone surrogate at {error.start} is not valid Unicode") from None
    return text


Text = Annotated[str, AfterValidator(check_unicode)]
Token = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=0, lt=2**31)]


class Body(BaseModel):
    """A JSON object."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")


class StreamOptions(Body):
    """What else a stream tells."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Generation(Body):
    """What completions and chats share; None is the checkpoint's default, then OpenAI's."""

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
    seed: int | None = None
    stop: Text | Annotated[list[Text], Field(max_length=MOST_STOPS)] | None = None
    stop_token_ids: list[Token] | None = None
    bad_words: Annotated[list[Text], Field(max_length=128)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    logit_bias: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], float] | None = None
    allowed_token_ids: list[Token] | None = None
    return_token_ids: bool | None = None

    @model_validator(mode="after")
    def refuse_unsupported(self):
        """Refuse what would silently be another text."""
        for name, value in (self.model_extra or {}).items():
            if name in UNSUPPORTED and value and value not in UNSUPPORTED[name]:
                raise ValueError(f"{name} is not supported here: leave it out")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream=true")
        return self


class Completion(Generation):
    """``POST /v1/completions``."""

    prompt: (
        Text
        | Annotated[list[Token], Field(min_length=1)]
        | Annotated[list[Text], Field(min_length=1, max_length=MOST_PROMPTS)]
        | Annotated[list[list[Token]], Field(min_length=1, max_length=MOST_PROMPTS)]
    )
    echo: bool | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    add_special_tokens: bool | None = None

    def prompts(self) -> list[str | dict[str, Any]]:
        """Return the prompts one by one, as ``engine.intake`` takes them."""
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        several: list[Any] = [self.prompt] if one else list(self.prompt)
        return [p if isinstance(p, str) else {"prompt_token_ids": p} for p in several]


class Part(Body):
    """A piece of a message."""

    type: Annotated[str, Field(pattern="^text$")]
    text: Text


class Message(Body):
    """One turn of a chat; other fields reach the chat template."""

    role: Annotated[str, Field(pattern=f"^({'|'.join(ROLES)})$")]
    content: Text | list[Part] | None = None

    @model_validator(mode="after")
    def check_content(self):
        """Refuse a message that says nothing, unless it calls a tool."""
        calls = self.role == "assistant" and (self.model_extra or {}).get("tool_calls")
        if self.content is None and not calls:
            raise ValueError(f"the {self.role} message has no content")
        return self


Messages = Annotated[list[Message], Field(min_length=1)]


class Chat(Generation):
    """``POST /v1/chat/completions``; ``max_tokens`` is the older name of the other."""

    messages: Messages
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def check_logprobs(self):
        """Refuse alternatives without logprobs, in vLLM's words."""
        if self.top_logprobs and not self.logprobs:
            raise ValueError("when using top_logprobs, logprobs must be set to true")
        return self


class Tokenize(Body):
    """``POST /tokenize``: a prompt or a chat."""

    model: Text | None = None
    prompt: Text | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def check_one(self):
        """Refuse both and neither."""
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class Detokenize(Body):
    """``POST /detokenize``."""

    model: Text | None = None
    tokens: list[Token]


def to_sampling(asked: Completion | Chat, defaults: SamplingParams) -> SamplingParams:
    """Turn a request's fields into parameters.

    Raises ValueError for a value outside its range.
    """
    given = {name: getattr(asked, name) for name in SAMPLING}
    given = {name: value for name, value in given.items() if value is not None}
    if asked.logit_bias is not None:
        given["logit_bias"] = {int(token): bias for token, bias in asked.logit_bias.items()}
    if isinstance(asked, Chat):
        limit = asked.max_completion_tokens
        given["max_tokens"] = asked.max_tokens if limit is None else limit
        if asked.logprobs:
            given["logprobs"] = asked.top_logprobs or 0
        return replace(defaults, **given)
    given["logprobs"], given["prompt_logprobs"] = asked.logprobs, asked.prompt_logprobs
    if asked.echo and asked.prompt_logprobs is None:
        given["prompt_logprobs"] = asked.logprobs
    if asked.max_tokens is not None:
        given["max_tokens"] = asked.max_tokens or (1 if asked.echo else 0)  # 0: the prompt alone
    return replace(defaults, **given)

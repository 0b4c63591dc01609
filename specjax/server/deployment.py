"""One model that is being served, and how a request becomes tickets."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from specjax.engine.intake import prompt_ids
from specjax.engine.llm import LLM
from specjax.engine.params import SamplingParams
from specjax.engine.service import Full, Service, Ticket
from specjax.server.errors import Refusal
from specjax.server.protocol import Chat, Completion, Message, to_sampling

LONG = 20_000  # characters: tokenizing more than that is left to another thread
OURS = ("messages", "chat_template", "add_generation_prompt", "tools", "documents")


@dataclass(frozen=True, kw_only=True, eq=False)
class Deployment:
    """What is served.

    Args:
        names: what clients may call the model; answers say the first.
        max_queued: samples that may wait; a request of more is refused for good.
        chat_template: jinja source in place of the checkpoint's own.
    """

    llm: LLM
    service: Service
    names: Sequence[str]
    max_queued: int
    chat_template: str | None = None

    @cached_property
    def most_characters(self) -> int:
        """Return how long a prompt may be before it is not even worth tokenizing."""
        vocabulary = self.llm.intake.tokenizer.backend.get_vocab(with_added_tokens=True)
        return max(map(len, vocabulary)) * self.llm.max_model_len

    @cached_property
    def defaults(self) -> SamplingParams:
        """Return what the checkpoint asks for."""
        return self.llm.get_default_sampling_params()

    @property
    def depth(self) -> int:
        """Return how many tokens a round drafts; 0: none."""
        return self.llm.engine.drafter.depth

    def check_name(self, name: str | None) -> None:
        """Refuse a model that is not served here."""
        if name is not None and name not in self.names:
            raise Refusal(404, f"The model {name!a} does not exist.", "model")

    async def admit(self, asked: Completion | Chat) -> list[Ticket]:
        """Check a request from end to end, then queue all of it or nothing.

        Raises Refusal: 404 for another model, 400 for a bad request, 503 for a full queue.
        """
        self.check_name(asked.model)
        try:
            params = to_sampling(asked, self.defaults)
            if isinstance(asked, Chat):
                prompts = [await self.encode(self.render(asked.messages, asked), False)]
            else:
                special = asked.add_special_tokens is not False
                prompts = [await self.encode(prompt, special) for prompt in asked.prompts()]
        except ValueError as error:
            raise Refusal(400, str(error)) from None
        self.check_size(asked, prompts, params)
        tickets: list[Ticket] = []
        try:
            for ids in prompts:
                tickets += self.service.submit({"prompt_token_ids": ids}, params)
        except (ValueError, Full) as error:
            for ticket in tickets:
                ticket.abort()
            raise Refusal(503 if isinstance(error, Full) else 400, str(error)) from None
        return tickets

    def check_size(
        self, asked: Completion | Chat, prompts: Sequence[list[int]], params: SamplingParams
    ) -> None:
        """Refuse what could never be done."""
        if len(prompts) * params.n > self.max_queued:
            raise Refusal(
                400,
                f"{len(prompts)} prompts times n={params.n} is more than the "
                f"{self.max_queued} samples that may wait here.",
                "n",
            )
        if asked.stream and params.prompt_logprobs is not None:
            raise Refusal(400, "log probabilities of the prompt do not stream.", "stream")
        longest, room = max(map(len, prompts)), self.llm.max_model_len
        to_come = max(params.max_tokens or 1, params.min_tokens)
        if longest + to_come > room:
            raise Refusal(
                400,
                f"This model's maximum context length is {room} tokens. However, you requested "
                f"{longest} in the prompt and {to_come} to come: ask for less.",
                "max_tokens",
            )

    async def encode(self, prompt: str | dict[str, Any], add_special_tokens: bool) -> list[int]:
        """Return a prompt's token ids; raises ValueError for a bad one."""
        if not isinstance(prompt, str):
            return prompt_ids(self.llm.intake, prompt)
        if len(prompt) > self.most_characters:
            raise ValueError(
                f"This model's maximum context length is {self.llm.max_model_len} tokens. However, "
                f"the prompt has {len(prompt)} characters, which cannot be that few tokens."
            )
        tokenize = self.llm.intake.tokenizer.encode
        if len(prompt) > LONG:
            ids = await asyncio.to_thread(tokenize, prompt, add_special_tokens)
        else:
            ids = tokenize(prompt, add_special_tokens)
        return prompt_ids(self.llm.intake, {"prompt_token_ids": ids})

    def render(self, messages: Sequence[Message], asked: Any) -> str:
        """Write a chat out as the template says; raises ValueError if it will not."""
        extra = getattr(asked, "chat_template_kwargs", None) or {}
        for name in extra:
            if name in OURS:
                raise ValueError(f"chat_template_kwargs may not hold {name!r}.")
        try:
            return self.llm.intake.tokenizer.apply_chat_template(
                [message.model_dump(exclude_unset=True) for message in messages],
                asked.add_generation_prompt,
                chat_template=self.chat_template,
                **extra,
            )
        except (ArithmeticError, LookupError, AttributeError, RecursionError) as error:
            kind = type(error).__name__  # a template is a program: it may fail in any way
            raise ValueError(f"the chat template failed on these messages ({kind}).") from None

"""What clients get back: answers and chunks, in the words of completions and of chats."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from specjax.engine.outputs import CompletionOutput
from specjax.engine.service import Delta, Ticket, Times
from specjax.engine.tokenizer import Tokenizer
from specjax.server import logprobs
from specjax.server.protocol import Chat, Completion


@dataclass
class Exchange:
    """A request that is being answered: its tickets, prompt by prompt and sample by sample."""

    asked: Completion | Chat
    tickets: Sequence[Ticket]
    model: str
    tokenizer: Tokenizer
    depth: int  # draft tokens per round; 0: nothing is drafted
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self):
        self.dialect = CHAT if isinstance(self.asked, Chat) else COMPLETION
        self.id = f"{self.dialect.prefix}-{uuid.uuid4().hex}"
        self.num_said = [0] * len(self.tickets)  # tokens per choice
        self.offsets = [0] * len(self.tickets)  # where their next token's text starts

    def answer(self) -> dict[str, Any]:
        """Write the whole answer; every ticket has finished."""
        choices = []
        for index, ticket in enumerate(self.tickets):
            output = ticket.completion()
            self.num_said[index] = len(output.token_ids)
            choices.append(self.dialect.choice(self, index, ticket, output))
        told = {"usage": self.usage(), "metrics": self.metrics()}
        if isinstance(self.asked, Chat) and self.asked.return_token_ids:
            told["prompt_token_ids"] = list(self.tickets[0].prompt_token_ids)
        return self.envelope(self.dialect.whole, choices) | told

    def chunk(self, index: int, delta: Delta) -> dict[str, Any]:
        """Write what one choice has said since its last chunk."""
        choice = self.dialect.piece(self, index, self.tickets[index], delta)
        self.num_said[index] += len(delta.token_ids)
        choice |= {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}
        if self.asked.return_token_ids:
            choice["token_ids"] = delta.token_ids
        chunk = self.envelope(self.dialect.part, [choice])
        options = self.asked.stream_options
        if options is not None and options.continuous_usage_stats:
            prompt, said = len(self.tickets[index].prompt_token_ids), self.num_said[index]
            chunk["usage"] = usage(prompt, said)
        return chunk

    def last_chunk(self) -> dict[str, Any]:
        """Write the chunk without choices that tells the usage."""
        told = {"usage": self.usage(), "metrics": self.metrics()}
        return self.envelope(self.dialect.part, []) | told

    def envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Write what every answer and every chunk has."""
        names = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**names, "choices": choices}

    def usage(self) -> dict[str, int]:
        """Count the tokens of all choices, a prompt once for its n samples."""
        prompts = [ticket.prompt_token_ids for ticket in self.tickets if ticket.index == 0]
        return usage(sum(map(len, prompts)), sum(self.num_said))

    def metrics(self) -> dict[str, Any] | None:
        """Write one sample's times and speculation where vLLM does; None for several."""
        if len(self.tickets) > 1:
            return None
        (ticket,) = self.tickets
        speculation = ticket.completion().spec_decode_metrics
        told = timing(ticket.times, self.num_said[0])
        if speculation is not None:
            own = {**speculation.to_dict(), "num_spec_tokens": self.depth}
            told["speculative_decoding"] = own
        return told


class Dialect(NamedTuple):
    """How one of the two endpoints speaks."""

    prefix: str  # of ids
    whole: str  # the kind of an answer
    part: str  # the kind of a chunk
    choice: Callable[[Exchange, int, Ticket, CompletionOutput], dict[str, Any]]
    piece: Callable[[Exchange, int, Ticket, Delta], dict[str, Any]]


def completion_choice(
    self: Exchange, index: int, ticket: Ticket, output: CompletionOutput
) -> dict[str, Any]:
    """Write a completion; an echo puts the prompt before it, in text and log probabilities."""
    asked, prompt = self.asked, list(ticket.prompt_token_ids)
    assert isinstance(asked, Completion)
    if asked.max_tokens == 0:  # the prompt alone
        self.num_said[index] = 0
        output = replace(output, text="", token_ids=(), logprobs=output.logprobs and ())
    text, ids, scored = output.text, list(output.token_ids), output.logprobs
    before = ticket.prompt_logprobs()
    if asked.echo:
        text, ids = self.tokenizer.decode(prompt) + text, [*prompt, *ids]
        scored = None if before is None or scored is None else [*before, *scored]
    choice = {
        "index": index,
        "text": text,
        "logprobs": None
        if asked.logprobs is None or scored is None
        else logprobs.of_completion(ids, scored, asked.logprobs, self.tokenizer, 0),
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
    }
    if asked.prompt_logprobs is not None:
        choice["prompt_logprobs"] = logprobs.of_prompt(before)
    if asked.return_token_ids:
        choice |= {"token_ids": list(output.token_ids), "prompt_token_ids": prompt}
    return choice


def completion_piece(self: Exchange, index: int, ticket: Ticket, delta: Delta) -> dict[str, Any]:
    """Write a piece of a completion; an echoed prompt comes before the first."""
    asked, text, first = self.asked, delta.text, not self.num_said[index]
    assert isinstance(asked, Completion)
    prompt = list(ticket.prompt_token_ids)
    if first and asked.echo:
        text = self.tokenizer.decode(prompt) + text
    scored = None
    if asked.logprobs is not None and delta.logprobs is not None:
        offset, wanted = self.offsets[index], asked.logprobs
        args = delta.token_ids, delta.logprobs, wanted, self.tokenizer, offset
        scored = logprobs.of_completion(*args)
        self.offsets[index] += sum(map(len, scored["tokens"]))
    choice = {"index": index, "text": text, "logprobs": scored}
    if first and asked.return_token_ids:
        choice["prompt_token_ids"] = prompt
    return choice


def chat_choice(
    self: Exchange, index: int, ticket: Ticket, output: CompletionOutput
) -> dict[str, Any]:
    """Write a message."""
    choice = {
        "index": index,
        "message": {"role": "assistant", "content": output.text},
        "logprobs": chat_logprobs(self, output.token_ids, output.logprobs),
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
    }
    if self.asked.return_token_ids:
        choice["token_ids"] = list(output.token_ids)
    return choice


def chat_piece(self: Exchange, index: int, ticket: Ticket, delta: Delta) -> dict[str, Any]:
    """Write a piece of a message; the first says whose it is."""
    said = {} if self.num_said[index] else {"role": "assistant"}
    scored = chat_logprobs(self, delta.token_ids, delta.logprobs)
    return {"index": index, "delta": {**said, "content": delta.text}, "logprobs": scored}


def chat_logprobs(self: Exchange, token_ids: Sequence[int], scored: Any) -> dict | None:
    """Write the log probabilities that a chat asked for."""
    assert isinstance(self.asked, Chat)
    if not self.asked.logprobs or scored is None:
        return None
    return logprobs.of_chat(token_ids, scored, self.asked.top_logprobs or 0)


COMPLETION = Dialect(
    "cmpl", "text_completion", "text_completion", completion_choice, completion_piece
)
CHAT = Dialect("chatcmpl", "chat.completion", "chat.completion.chunk", chat_choice, chat_piece)


def usage(num_prompt: int, num_said: int) -> dict[str, int]:
    """Count tokens as OpenAI does."""
    total = num_prompt + num_said
    return {"prompt_tokens": num_prompt, "completion_tokens": num_said, "total_tokens": total}


def timing(times: Times, num_tokens: int) -> dict[str, Any]:
    """Write vLLM's times of a finished sample in milliseconds.

    The first token's counts from when the prompt is read; queueing comes before that. Nothing
    but the queue is known of a sample that was aborted before.
    """
    started, first, finished = times.started, times.first_token, times.finished
    if started is None or first is None or finished is None:
        return {}
    generation = finished - first
    return {
        "time_to_first_token_ms": (first - started) * 1000,
        "generation_time_ms": generation * 1000,
        "queue_time_ms": (started - times.arrived) * 1000,
        "mean_itl_ms": generation / (num_tokens - 1) * 1000 if num_tokens > 1 else None,
        "tokens_per_second": num_tokens / max(finished - started, 1e-9),
    }

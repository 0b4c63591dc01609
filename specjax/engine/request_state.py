"""The state of a request while it runs: its tokens, round by round."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from specjax.core.types import FAILED, RUNNING, STOPPED, StepInfo
from specjax.engine.grammar import GrammarState
from specjax.engine.rows import Request

FinishReason = Literal["stop", "length", "abort", "error"]


class Round(NamedTuple):
    """The result of one round for one request; ``tokens`` are committed, ``drafted`` proposed."""

    tokens: list[int]
    drafted: list[int]
    num_accepted: int
    logprobs: Any  # per token: (ids, values, rank), or None


@dataclass(eq=False)
class RequestState:
    """A request, and what has been generated for it so far."""

    index: int
    request: Request
    rounds: list[Round] = field(default_factory=list)  # rounds[0] is the undrafted first token
    tokens: list[int] = field(default_factory=list)  # of all rounds, kept since each round reads it
    prompt_logprobs: list[Any] = field(default_factory=list)
    num_cached: int = 0  # prompt tokens that were read for another request
    num_stored: int = 0  # prompt tokens that were read for this one, and kept for others
    finish_reason: FinishReason | None = None
    kv_transfer_params: Mapping[str, str] | None = None  # what the loop's ``export`` returned
    grammar: GrammarState | None = field(init=False)

    def __post_init__(self):
        form = self.request.grammar
        self.grammar = None if form is None else form.start()

    @property
    def length(self) -> int:
        """Return the number of tokens, prompt and output together."""
        return len(self.request.prompt) + len(self.tokens)

    def cut(self, num_tokens: int) -> None:
        """Keep the first ``num_tokens`` output tokens and the rounds that made them."""
        del self.tokens[num_tokens:]
        kept = []
        for one in self.rounds:
            if num_tokens <= 0:
                break
            logprobs = one.logprobs and one.logprobs[:num_tokens]
            kept.append(one._replace(tokens=one.tokens[:num_tokens], logprobs=logprobs))
            num_tokens -= len(one.tokens)
        self.rounds = kept

    def extend(self, infos: StepInfo, slot: int, rounds: int) -> None:
        """Append the tokens of a slot from the infos of some rounds, and its finish reason."""
        wanted = self.request.params.num_logprobs
        for r in range(rounds):
            count = int(infos.num_emitted[r, slot])
            if not count:
                continue
            logprobs = None
            if infos.logprobs is not None and wanted is not None:
                ids, values, ranks = (leaf[r, slot, :count] for leaf in infos.logprobs)
                logprobs = list(zip(ids, values, ranks, strict=True))
            tokens = infos.tokens[r, slot, :count].tolist()
            drafted = [token for token in infos.drafted[r, slot].tolist() if token >= 0]
            accepted = int(infos.num_accepted[r, slot])
            self.rounds.append(Round(tokens, drafted, accepted, logprobs))
            self.tokens += tokens
        reason = int(infos.reason[rounds - 1, slot])
        if reason != RUNNING:
            names = {STOPPED: "stop", FAILED: "error"}
            self.finish_reason = names.get(reason, "length")  # pyright: ignore
        if self.grammar_failed:
            self.finish_reason = "error"

    @property
    def grammar_failed(self) -> bool:
        """Return whether the request's grammar has exceeded its limits."""
        return self.grammar is not None and bool(self.grammar.error)

    @property
    def failure(self) -> str:
        """Return why the request failed, if its ``finish_reason`` is "error"."""
        if self.grammar is not None and self.grammar.error:
            return f"the grammar: {self.grammar.error}"
        return "the model's output was not finite"

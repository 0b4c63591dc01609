"""Log probabilities as completions and chats write them."""

from collections.abc import Mapping, Sequence
from typing import Any

from specjax.engine.outputs import Logprob
from specjax.engine.tokenizer import Tokenizer

LEAST = -9999.0  # stands for -inf, which JSON cannot say

Scored = Sequence[Mapping[int, Logprob] | None]  # per token; None where there is none


def of_completion(
    token_ids: Sequence[int], scored: Scored, wanted: int, tokenizer: Tokenizer, offset: int
) -> dict[str, list]:
    """Write the token itself and the ``wanted`` likeliest, in four lists, as OpenAI once did.

    ``offset`` is where the first token's text starts; texts of single tokens are counted, so
    that a character cut between tokens counts as more than one.
    """
    tokens, offsets, values, tops = [], [], [], []
    for token, entry in zip(token_ids, scored, strict=True):
        own = None if entry is None else entry[token]
        text = tokenizer.decode([token], False) if own is None else str(own.decoded_token)
        tokens.append(text)
        offsets.append(offset)
        offset += len(text)
        values.append(own and finite(own))
        tops.append(entry and by_text(best(entry, wanted, token)))
    return {
        "text_offset": offsets,
        "token_logprobs": values,
        "tokens": tokens,
        "top_logprobs": tops,
    }


def of_chat(token_ids: Sequence[int], scored: Scored, wanted: int) -> dict[str, list]:
    """Write one entry per token, with its bytes and the ``wanted`` likeliest."""
    content = []
    for token, entry in zip(token_ids, scored, strict=True):
        assert entry is not None  # only prompts have tokens without
        ranked = sorted(entry.values(), key=lambda one: one.rank or 0)
        content.append({**spelt(entry[token]), "top_logprobs": [*map(spelt, ranked[:wanted])]})
    return {"content": content}


def of_prompt(scored: Scored | None) -> list[dict[str, Any] | None] | None:
    """Write a prompt's log probabilities as vLLM does: by token id, None for the first."""
    if scored is None:
        return None
    return [None if entry is None else by_id(entry) for entry in scored]


def by_id(entry: Mapping[int, Logprob]) -> dict[str, Any]:
    """Index what is known of a position's tokens by their ids."""
    return {str(i): one._replace(logprob=finite(one))._asdict() for i, one in entry.items()}


def best(entry: Mapping[int, Logprob], wanted: int, token: int) -> list[Logprob]:
    """Return the token and the likeliest ``wanted``, as OpenAI counts them: one more at most."""
    return [one for other, one in entry.items() if other == token or (one.rank or 0) <= wanted]


def by_text(entries: Sequence[Logprob]) -> dict[str, float]:
    """Index log probabilities by text; of tokens that read alike the likeliest counts."""
    found: dict[str, float] = {}
    for one in entries:
        text = str(one.decoded_token)
        found[text] = max(found.get(text, LEAST), finite(one))
    return found


def spelt(one: Logprob) -> dict[str, Any]:
    """Write one token of a chat."""
    text = str(one.decoded_token)
    return {"token": text, "logprob": finite(one), "bytes": list(text.encode())}


def finite(one: Logprob) -> float:
    """Return a number that JSON can hold."""
    return max(one.logprob, LEAST)

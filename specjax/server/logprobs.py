"""The JSON of log probabilities, for completions and for chats."""

from collections.abc import Mapping, Sequence
from typing import Any

from specjax.engine.outputs import Logprob
from specjax.engine.text.tokenizer import Tokenizer

LEAST = -9999.0  # in place of -inf, which JSON lacks

Scored = Sequence[Mapping[int, Logprob] | None]  # per token; None where there is none


def of_completion(
    token_ids: Sequence[int],
    scored: Scored,
    wanted: int,
    tokenizer: Tokenizer,
    offset: int,
    as_ids: bool = False,
) -> dict[str, list]:
    """Return a completion's logprobs: each token and its ``wanted`` likeliest, in four lists.

    ``offset`` is where the first token's text starts; offsets add up the texts of single tokens,
    so a character split between tokens counts more than once. It is negative where tokens precede
    the text, as a BOS does; their offset is 0. ``as_ids`` writes a token as "token_id:5".
    """
    tokens, offsets, values, tops = [], [], [], []
    for token, entry in zip(token_ids, scored, strict=True):
        own = None if entry is None else entry[token]
        text = tokenizer.token_text(token) if own is None else str(own.decoded_token)
        tokens.append(named(token, text, as_ids))
        offsets.append(max(0, offset))
        offset += len(text)
        values.append(own and finite(own))
        tops.append(entry and by_name(best(entry, wanted, token), as_ids))
    return {
        "text_offset": offsets,
        "token_logprobs": values,
        "tokens": tokens,
        "top_logprobs": tops,
    }


def of_chat(
    token_ids: Sequence[int], scored: Scored, wanted: int, as_ids: bool = False
) -> dict[str, list]:
    """Return a chat's logprobs: one entry per token, with its bytes and ``wanted`` likeliest."""
    content = []
    for token, entry in zip(token_ids, scored, strict=True):
        assert entry is not None  # only a prompt's first token has none
        ranked = sorted(entry.items(), key=lambda pair: pair[1].rank or 0)
        top = [token_entry(i, one, as_ids) for i, one in ranked[:wanted]]
        content.append({**token_entry(token, entry[token], as_ids), "top_logprobs": top})
    return {"content": content}


def of_prompt(scored: Scored | None) -> list[dict[str, Any] | None] | None:
    """Return a prompt's logprobs as vLLM does: by token id, None for the first token."""
    if scored is None:
        return None
    return [None if entry is None else by_id(entry) for entry in scored]


def by_id(entry: Mapping[int, Logprob]) -> dict[str, Any]:
    """Return one position's logprobs by token id."""
    return {str(i): one._replace(logprob=finite(one))._asdict() for i, one in entry.items()}


def best(entry: Mapping[int, Logprob], wanted: int, token: int) -> dict[int, Logprob]:
    """Return the ``wanted`` likeliest and the token itself if it is not among them."""
    return {i: one for i, one in entry.items() if i == token or (one.rank or 0) <= wanted}


def by_name(entries: Mapping[int, Logprob], as_ids: bool) -> dict[str, float]:
    """Return log probabilities by token text; the largest of tokens with the same text."""
    found: dict[str, float] = {}
    for token, one in entries.items():
        name = named(token, str(one.decoded_token), as_ids)
        found[name] = max(found.get(name, LEAST), finite(one))
    return found


def token_entry(token: int, one: Logprob, as_ids: bool) -> dict[str, Any]:
    """Return one token's entry in a chat's logprobs."""
    name = named(token, str(one.decoded_token), as_ids)
    return {"token": name, "logprob": finite(one), "bytes": list(name.encode())}


def named(token: int, text: str, as_ids: bool) -> str:
    """Return how a response names a token: its text, or its id."""
    return f"token_id:{token}" if as_ids else text


def finite(one: Logprob) -> float:
    """Return the log probability as a finite number."""
    return max(one.logprob, LEAST)

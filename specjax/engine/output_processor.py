"""Turn finished requests into vLLM's output records."""

from typing import Any, NamedTuple

from specjax.engine.input_processor import Prompt
from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.outputs import CompletionOutput, Logprob, RequestOutput, SpecDecodeMetrics
from specjax.engine.request_state import RequestState
from specjax.engine.text.tokenizer import Tokenizer
from specjax.engine.transcript import Transcript


class Sample(NamedTuple):
    """One of a request's n samples: its tokens and its text so far."""

    request_state: RequestState
    transcript: Transcript


def steps(request_state: RequestState) -> tuple[list[int], list[int]]:
    """Return the drafted and accepted counts of each decode round, without prefill's token."""
    rounds = request_state.rounds[1:]
    return [len(r.drafted) for r in rounds], [r.num_accepted for r in rounds]


def drafts(request_state: RequestState) -> list[tuple[int, list[int]]]:
    """Return (number of committed tokens, draft tokens) of each round that drafted."""
    committed, found = len(request_state.request.prompt), []
    for one in request_state.rounds:
        if one.drafted:
            found.append((committed, one.drafted))
        committed += len(one.tokens)
    return found


def request_output(
    request_id: str, prompt: Prompt, samples: list[Sample], tokenizer: Tokenizer, depth: int
) -> RequestOutput:
    """Return a request's record with all its samples; ``depth`` 0 is plain decoding."""
    first = samples[0].request_state
    wanted, prompt_logprobs = first.request.params.prompt_logprobs, None
    if wanted is not None:
        prompt_logprobs = [None, *logprobs(first.prompt_logprobs, wanted, tokenizer)]
    return RequestOutput(
        request_id=request_id,
        prompt=prompt if isinstance(prompt, str) else prompt.get("prompt"),
        prompt_token_ids=list(first.request.prompt),
        prompt_logprobs=prompt_logprobs,
        outputs=[completion(i, one, tokenizer, depth) for i, one in enumerate(samples)],
        finished=True,
        kv_transfer_params=first.kv_transfer_params,
    )


def completion(index: int, sample: Sample, tokenizer: Tokenizer, depth: int) -> CompletionOutput:
    """Return one sample's record."""
    request_state, transcript = sample
    params, total, found = request_state.request.params, None, None
    if params.num_logprobs is not None:
        scored = [token for one in request_state.rounds for token in one.logprobs]
        total = float(sum(values[0] for _, values, _ in scored))
        found = output_logprobs(scored, params, tokenizer)
    return CompletionOutput(
        index=index,
        text=transcript.text,
        token_ids=request_state.tokens,
        cumulative_logprob=total,
        logprobs=found,
        finish_reason=request_state.finish_reason,
        stop_reason=transcript.stop_reason,
        spec_decode_metrics=SpecDecodeMetrics.from_steps(*steps(request_state), depth)
        if depth
        else None,
        drafts=drafts(request_state),
    )


def output_logprobs(
    scored: list[Any], params: SamplingParams, tokenizer: Tokenizer
) -> list[dict[int, Logprob]]:
    """Return the mapping of each output token: with ``logprob_token_ids`` these, and the token."""
    wanted, found = params.logprob_token_ids, []
    if wanted is None:
        return logprobs(scored, params.logprobs or 0, tokenizer)
    for ids, values, rank in scored:
        token, by_id = int(ids[0]), dict(zip(ids.tolist(), values.tolist(), strict=True))
        entry = {token: Logprob(by_id[token], int(rank), tokenizer.token_text(token))}
        for place, one in enumerate(wanted, 1):
            if one != token:
                entry[one] = Logprob(by_id[one], place, tokenizer.token_text(one))
        found.append(entry)
    return found


def logprobs(scored: list[Any], wanted: int, tokenizer: Tokenizer) -> list[dict[int, Logprob]]:
    """Return vLLM's mapping (token id -> Logprob) per token: the token, then the likeliest.

    Args:
        scored: (ids, log probabilities, rank of the token itself) per token.
        wanted: how many of the likeliest.
    """
    found = []
    for ids, values, rank in scored:
        ranks = [int(rank), *range(1, wanted + 1)]
        triples = zip(ids[: wanted + 1].tolist(), values.tolist(), ranks, strict=False)
        entry: dict[int, Logprob] = {}
        for token, value, place in triples:
            entry.setdefault(token, Logprob(value, place, tokenizer.token_text(token)))
        found.append(entry)
    return found

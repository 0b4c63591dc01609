"""What a finished request becomes: vLLM's output records."""

from typing import Any, NamedTuple

from specjax.engine.intake import Prompt
from specjax.engine.outputs import CompletionOutput, Logprob, RequestOutput, SpecDecodeMetrics
from specjax.engine.rounds import Progress
from specjax.engine.tokenizer import Tokenizer
from specjax.engine.transcript import Transcript


class Sample(NamedTuple):
    """One sample of a request: its tokens and its text, both as far as they have come."""

    progress: Progress
    transcript: Transcript


def steps(progress: Progress) -> tuple[list[int], list[int]]:
    """Return drafted and accepted counts per speculative step; the first token had none."""
    rounds = progress.rounds[1:]
    return [len(r.drafted) for r in rounds], [r.num_accepted for r in rounds]


def drafts(progress: Progress) -> list[tuple[int, list[int]]]:
    """Return (committed tokens, draft) for every step that drafted something."""
    committed, found = len(progress.request.prompt), []
    for one in progress.rounds:
        if one.drafted:
            found.append((committed, one.drafted))
        committed += len(one.tokens)
    return found


def request_output(
    request_id: str, prompt: Prompt, samples: list[Sample], tokenizer: Tokenizer, depth: int
) -> RequestOutput:
    """Gather a request's samples; ``depth`` 0 means that nothing was ever drafted."""
    first = samples[0].progress
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
    """Describe one sample."""
    progress, transcript = sample
    wanted, total, said = progress.request.params.logprobs, None, None
    if wanted is not None:
        scored = [token for one in progress.rounds for token in one.logprobs]
        total = float(sum(values[0] for _, values, _ in scored))
        said = logprobs(scored, wanted, tokenizer)
    return CompletionOutput(
        index=index,
        text=transcript.text,
        token_ids=progress.tokens,
        cumulative_logprob=total,
        logprobs=said,
        finish_reason=progress.finish_reason,
        stop_reason=transcript.stop_reason,
        spec_decode_metrics=SpecDecodeMetrics.from_steps(*steps(progress), depth)
        if depth
        else None,
        drafts=drafts(progress),
    )


def logprobs(scored: list[Any], wanted: int, tokenizer: Tokenizer) -> list[dict[int, Logprob]]:
    """Turn (ids, values, rank) into vLLM's mappings: the token itself, then the best."""
    found = []
    for ids, values, rank in scored:
        ranks = [int(rank), *range(1, wanted + 1)]
        triples = zip(ids[: wanted + 1].tolist(), values.tolist(), ranks, strict=False)
        entry: dict[int, Logprob] = {}
        for token, value, place in triples:
            entry.setdefault(token, Logprob(value, place, tokenizer.decode([token], False)))
        found.append(entry)
    return found

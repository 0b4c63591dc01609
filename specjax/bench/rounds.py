"""Count rounds, including those without a draft, which vLLM's metrics leave out."""

from collections.abc import Sequence

from specjax.engine.outputs import RequestOutput


def num_rounds(output: RequestOutput) -> int:
    """Return the number of rounds behind a request's samples, with or without a draft.

    The first token of a sample is the prefill's.
    """
    total, prompt = 0, len(output.prompt_token_ids)
    for one in output.outputs:
        metrics, end = one.spec_decode_metrics, prompt + 1
        accepted = () if metrics is None else metrics.per_step_accepted
        for (committed, _), count in zip(one.drafts, accepted, strict=True):
            total += committed - end + 1
            end = committed + count + 1
        total += max(prompt + len(one.token_ids) - end, 0)  # the last round may have been cut
    return total


def tokens_per_round(outputs: Sequence[RequestOutput]) -> float:
    """Return emitted tokens / rounds, without the first token of each sample."""
    done = [one for output in outputs for one in output.outputs]
    return gained([one.token_ids for one in done], list(map(num_rounds, outputs)))


def gained(samples: Sequence[Sequence[int]], rounds: Sequence[int]) -> float:
    """Return ``tokens_per_round`` of the tokens of samples and numbers of rounds."""
    return sum(len(one) - 1 for one in samples) / max(sum(rounds), 1)

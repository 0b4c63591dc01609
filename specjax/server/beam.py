"""``use_beam_search`` as in vLLM: apart from speculation, one token of every beam at a time.

Each step asks the engine for the likeliest next tokens of every beam, which reads its whole text
again; the best ``width`` continuations are the next beams. Beams that end (EOS) leave the search.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple

from starlette.requests import Request

from specjax.engine.options.sampling_params import MAX_LOGPROBS, SamplingParams
from specjax.engine.outputs import Logprob
from specjax.engine.service import Failed, Full, RequestStream, Service
from specjax.server.deployment import Deployment
from specjax.server.errors import APIError
from specjax.server.protocol import Chat, Completion, to_sampling
from specjax.server.responses import CHAT, COMPLETION, envelope, usage
from specjax.server.streams import until_disconnected

MOST_BEAMS = MAX_LOGPROBS // 2  # a step needs the log probabilities of 2 * width tokens


class Beam(NamedTuple):
    """One of the texts that compete."""

    tokens: tuple[int, ...]  # prompt and output together
    score: float  # the sum of the output's log probabilities
    ended: bool = False  # by an end-of-text token, which is not in ``tokens``

    def normalized(self, length_penalty: float) -> float:
        """Return the score by which beams are compared at the end, as in vLLM."""
        return self.score / len(self.tokens) ** length_penalty


async def search(
    service: Service,
    prompt: Sequence[int],
    width: int,
    max_tokens: int,
    *,
    length_penalty: float = 1.0,
    ignore_eos: bool = False,
) -> list[Beam]:
    """Return the ``width`` best continuations of a prompt, the best first.

    Raises:
        ValueError: the beams are too many, or the prompt leaves no room for ``max_tokens``.
        Full: the queue is full.
        Failed: the engine failed.
    """
    if not 1 <= width <= MOST_BEAMS:
        raise ValueError(f"a beam search has 1 to {MOST_BEAMS} beams (n), got {width}.")
    eos_ids = () if ignore_eos else service.core.input_processor.eos_ids
    beams, ended = [Beam(tuple(prompt), 0.0)], list[Beam]()
    for _ in range(max_tokens):
        found = await next_tokens(service, beams, 2 * width)
        going: list[Beam] = []
        for beam, scored in zip(beams, found, strict=True):
            for token, one in scored.items():
                score = beam.score + one.logprob
                if token in eos_ids:
                    ended.append(Beam(beam.tokens, score, ended=True))
                else:
                    going.append(Beam((*beam.tokens, token), score))
        beams = sorted(going, key=lambda one: -one.score)[:width]
        if not beams:
            break
    return sorted([*ended, *beams], key=lambda one: -one.normalized(length_penalty))[:width]


async def next_tokens(
    service: Service, beams: Sequence[Beam], count: int
) -> list[dict[int, Logprob]]:
    """Return the ``count`` likeliest next tokens of each beam, with their log probabilities."""
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=count, ignore_eos=True)
    streams: list[RequestStream] = []
    try:
        for beam in beams:
            streams += service.submit_ids(beam.tokens, params)
        return list(await asyncio.gather(*map(first, streams)))
    finally:
        for stream in streams:
            if stream.times.finished is None:
                stream.abort()


async def first(stream: RequestStream) -> dict[int, Logprob]:
    """Return the log probabilities at the first token of a stream."""
    found: list[dict[int, Logprob]] = []
    async for delta in stream:
        found += delta.logprobs or []
    return found[0]


async def respond(
    request: Request, served: Deployment, body: Completion | Chat, request_id: str | None
) -> dict[str, Any] | None:
    """Return the response to a request for a beam search; None if the client disconnects.

    Raises:
        APIError: 404 for another model, 400 for a wrong request, 503 for a full queue, 504 for
            one that took too long.
    """
    width = body.n or 1
    try:
        params = to_sampling(body.model_copy(update={"n": 1}), served.default_params)
        prompts, texts = await served.read(body, params)
        searches = [
            search(
                served.service,
                prompt,
                width,
                params.max_tokens or served.core.max_model_len - len(prompt),
                length_penalty=1.0 if body.length_penalty is None else body.length_penalty,
                ignore_eos=params.ignore_eos,
            )
            for prompt in prompts
        ]
        async with asyncio.timeout(served.request_timeout):
            found = await until_disconnected(request, together(searches))
    except TimeoutError:
        raise APIError(504, f"the request took longer than {served.request_timeout} s.") from None
    except (ValueError, Full) as error:
        raise APIError(503 if isinstance(error, Full) else 400, str(error)) from None
    except Failed as error:
        raise APIError(500, str(error)) from None
    if found is None:
        return None
    pairs = list(zip(prompts, found, strict=True))
    choices = [
        choice(served, body, i * width + j, prompt, beam)
        for i, (prompt, beams) in enumerate(pairs)
        for j, beam in enumerate(beams)
    ]
    num_output = sum(len(beam.tokens) - len(prompt) for prompt, beams in pairs for beam in beams)
    dialect = CHAT if isinstance(body, Chat) else COMPLETION
    whole = envelope(dialect, request_id, served.names[0], choices)
    whole["usage"] = usage(sum(map(len, prompts)), num_output)
    if isinstance(body, Chat):
        whole["prompt_token_ids"] = prompts[0] if body.return_token_ids else None
        whole["prompt_text"] = texts[0] if body.return_prompt_text else None
    return whole


async def together(searches: Sequence[Awaitable[list[Beam]]]) -> list[list[Beam]]:
    """Return the results of all searches, which run at once."""
    return await asyncio.gather(*searches)


def choice(
    served: Deployment, body: Completion | Chat, index: int, prompt: Sequence[int], beam: Beam
) -> dict[str, Any]:
    """Return a beam as a choice of a completion or a chat."""
    ids = list(beam.tokens[len(prompt) :])
    text = served.core.tokenizer.decode(ids, body.skip_special_tokens is not False)
    made: dict[str, Any] = {"index": index, "logprobs": None}
    if isinstance(body, Chat):
        made["message"] = {"role": "assistant", "content": text}
    else:
        made |= {"text": text, "prompt_logprobs": None}
        made["prompt_token_ids"] = list(prompt) if body.return_token_ids else None
    why = {"finish_reason": "stop" if beam.ended else "length", "stop_reason": None}
    return {**made, **why, "token_ids": ids if body.return_token_ids else None}

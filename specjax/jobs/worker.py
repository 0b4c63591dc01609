"""What completes shards: an engine, started once, in this process or in a Ray actor."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.outputs import CompletionOutput, RequestOutput
from specjax.host.compile_cache import enable_compile_cache
from specjax.host.group import is_first
from specjax.jobs.folder import write_shard
from specjax.jobs.prompt_file import PromptFile, read_shard


class Setting(NamedTuple):
    """All that a worker needs; plain values, so that it can be sent to another process."""

    model: str
    options: dict[str, Any]  # of LLM
    sampling: dict[str, Any]  # of SamplingParams
    file: PromptFile
    out: Path
    job: str  # ``Job.key``


class Done(NamedTuple):
    """What completing one shard took."""

    shard: int
    num_prompts: int
    num_tokens: int
    seconds: float


class Worker:
    """An engine that completes shards of a prompt file into a job's folder."""

    def __init__(self, setting: Setting):
        enable_compile_cache()
        self.setting = setting
        self.llm = LLM(setting.model, **setting.options)
        self.sampling = SamplingParams(**setting.sampling)

    def complete(self, shard: int) -> Done:
        """Complete a shard's prompts and write its file.

        A prompt's seed comes from its number in the whole file, so the texts do not depend on the
        shards. Raises ValueError, with the shard's prompts, for a prompt that is too long.
        """
        start, file = time.monotonic(), self.setting.file
        prompts, first = read_shard(file, shard), shard * file.shard_size
        self.llm.num_requests = first
        try:
            outputs = self.llm.generate(list(prompts), self.sampling)
        except ValueError as error:
            raise ValueError(
                f"prompts {first} to {first + len(prompts) - 1} of {file.path}: {error}"
            ) from None
        if is_first():
            write_shard(self.setting.out, shard, rows(outputs, first, self.setting.job))
        tokens = sum(len(one.token_ids) for output in outputs for one in output.outputs)
        return Done(shard, len(prompts), tokens, time.monotonic() - start)


def rows(outputs: list[RequestOutput], first: int, job: str) -> Iterator[Mapping[str, Any]]:
    """Yield a line's JSON values for each completion; ``number`` counts the file's prompts."""
    for number, output in enumerate(outputs, start=first):
        for completion in output.outputs:
            yield {"number": number, "job": job, **to_json(output, completion)}


def to_json(output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
    """Return a completion as plain JSON values."""
    metrics = completion.spec_decode_metrics
    return {
        "prompt": output.prompt,
        "index": completion.index,
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "spec_decode_metrics": None if metrics is None else metrics.to_dict(),
    }

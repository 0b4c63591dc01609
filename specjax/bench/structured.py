"""``specjax bench structured``: what a grammar costs, per round and in tokens per second.

Two services complete the same prompts without and with a JSON schema, plainly and with a drafter,
in turns. The schema asks for more than ``TOKENS`` tokens, so that no text ends earlier. What the
host does for a request in a round is timed apart, on the drafts of such a run: cutting the draft,
for which the device waits, and the masks, which are computed while the target runs.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from specjax.bench.report import Row, compare, machine_row, print_rows, write_rows, write_section
from specjax.bench.services import open_services
from specjax.bundled import prompts
from specjax.engine.grammar import EVERYTHING, Nodes, num_words
from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.options.structured_outputs import StructuredOutputsParams
from specjax.engine.outputs import CompletionOutput
from specjax.engine.service import Service
from specjax.host.markdown import around_section
from specjax.measure.load import closed_loop
from specjax.measure.turns import median_in_turns

TOKENS, LENGTH = 128, 512  # of a text; of prompt and text at most
ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "count": {"type": "integer", "minimum": 0, "maximum": 99999},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "unknown"]}, "maxItems": 3},
    },
    "required": ["name", "count", "tags"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": ITEM, "minItems": TOKENS}
FORM = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)


def bench_structured(
    model: str,
    speculative_config: Any,
    json_file: Path | None,
    *,
    batch_size: int = 8,
    reps: int = 9,
    readme: Path | None = None,
    console: Console | None = None,
) -> list[Row]:
    """Return, print and write the speeds. Raises ValueError for a bad model or config.

    ``readme`` is a Markdown file, in whose section "structured" to put them as well.
    """
    if readme is not None:
        around_section(readme, "structured")
    console = console or Console(highlight=False)
    texts = [entry["turns"][0] for entry in prompts()]
    texts = [texts[i % len(texts)] for i in range(batch_size)]
    configs = {"plain": None, "drafted": speculative_config}
    models = {
        name: LLM(model, speculative_config=config, max_num_seqs=batch_size, max_model_len=LENGTH)
        for name, config in configs.items()
    }
    with open_services(models, max_waiting=batch_size) as services:
        calls = [
            partial(complete, service, texts, form)
            for service in services.values()
            for form in (None, FORM)
        ]
        rates = median_in_turns([rate_of(one) for one in calls], reps, warm_up=2)
        plain, masked, drafted, both = rates
        cut, masks, nodes = host_costs(models["drafted"], calls[-1]())
    rows = [
        machine_row(),
        Row(name="plain", value=plain, unit="tokens/s"),
        compare("plain, schema", masked, "tokens/s", plain, "plain", at_least=0.9),
        Row(name="drafted", value=drafted, unit="tokens/s"),
        compare("drafted, schema", both, "tokens/s", drafted, "drafted", at_least=0.9),
        compare(
            "speedup, schema", both / masked, "x", drafted / plain, "without a schema", at_least=1.0
        ),
        Row(name="cutting a draft, per request and round", value=cut, unit="us"),
        Row(name="masks, per request and round", value=masks, unit="us"),
        Row(name="masks, per node", value=masks / nodes, unit="us"),
    ]
    print_rows(rows, console)
    if json_file is not None:
        write_rows(rows, json_file)
    if readme is not None:
        note = (
            f"{model}, drafted with `{json.dumps(speculative_config)}`: a service with "
            f"{batch_size} requests side by side, {TOKENS} greedy tokens each, medians of "
            f"{reps} interleaved runs."
        )
        write_section(rows, readme, "structured", [note])
    return rows


def complete(
    service: Service, texts: Sequence[str], form: StructuredOutputsParams | None
) -> list[CompletionOutput]:
    """Return the completions of texts side by side, each with ``TOKENS`` tokens."""
    params = SamplingParams(
        temperature=0.0, max_tokens=TOKENS, ignore_eos=True, structured_outputs=form
    )

    async def read(text: str) -> CompletionOutput:
        (stream,) = service.submit(text, params)
        async for _ in stream:
            pass
        return stream.completion()

    return asyncio.run(closed_loop(read, texts, len(texts)))


def rate_of(run: Callable[[], list[CompletionOutput]]) -> Callable[[], float]:
    """Return a function that runs another and returns its tokens per second."""

    def rate() -> float:
        start = time.perf_counter()
        found = run()
        return sum(len(one.token_ids) for one in found) / (time.perf_counter() - start)

    return rate


def host_costs(llm: LLM, found: list[CompletionOutput]) -> tuple[float, float, float]:
    """Return the microseconds of a cut and of masks per request and round, and nodes per round."""
    compiler, seconds, nodes, rounds = llm.core.input_processor.grammars, np.zeros(2), 0, 0
    words = np.full(
        (llm.core.depth + 1, num_words(llm.core.engine.target.vocab_size)), EVERYTHING, np.int32
    )
    for output in found:
        state = compiler.compile(FORM).start()
        prompt = min((start for start, _ in output.drafts), default=1) - 1
        for start, drafted in output.drafts:
            state.follow(output.token_ids[: start - prompt])
            size = len(drafted) + 1
            parents = np.maximum(np.arange(size) - 1, 0)
            draft = Nodes(np.array([0, *drafted]), parents, np.ones(size, bool))
            times = [time.perf_counter()]
            _, allowed = state.cut(draft)
            times.append(time.perf_counter())
            state.masks(draft._replace(valid=allowed), words)
            times.append(time.perf_counter())
            seconds += np.diff(times)
            nodes, rounds = nodes + size, rounds + 1
    cut, masks = (1e6 * seconds / max(rounds, 1)).tolist()
    return cut, masks, nodes / max(rounds, 1)

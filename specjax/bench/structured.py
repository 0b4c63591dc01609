"""``specjax bench structured``: what a grammar costs, per round and in tokens per second.

The same prompts are completed without and with a JSON schema, plainly and with a drafter, in turns.
The schema asks for more than ``TOKENS`` tokens, so that no text ends earlier. What the host does
for a request in a round is timed apart, on the drafts of such a run: cutting the draft, for which
the device waits, and the masks, which are computed while the target runs.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from specjax.bench.report import Row, compare, machine_row, print_rows, write_rows, write_section
from specjax.bundled import prompts
from specjax.engine.grammar import EVERYTHING, Nodes, num_words
from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.options.structured_outputs import StructuredOutputsParams
from specjax.engine.outputs import CompletionOutput
from specjax.host.markdown import around_section
from specjax.measure.turns import median_in_turns

TOKENS = 128
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
    reps: int = 5,
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
    models = [
        LLM(model, speculative_config=config, max_num_seqs=batch_size)
        for config in (None, speculative_config)
    ]
    calls = [completer(llm, texts, form) for llm in models for form in (None, FORM)]
    plain, masked, drafted, both = median_in_turns([rate_of(one) for one in calls], reps, warm_up=1)
    cut, masks, nodes = host_costs(models[-1], calls[-1]())
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
            f"{model}, drafted with `{json.dumps(speculative_config)}`: {batch_size} requests side "
            f"by side, {TOKENS} greedy tokens each, medians of {reps} interleaved runs."
        )
        write_section(rows, readme, "structured", [note])
    return rows


def completer(
    llm: LLM, texts: list[str], form: StructuredOutputsParams | None
) -> Callable[[], list[CompletionOutput]]:
    """Return a function that completes the texts, each with ``TOKENS`` tokens."""
    params = [
        SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, structured_outputs=form)
        for _ in texts
    ]

    def run() -> list[CompletionOutput]:
        return [one.outputs[0] for one in llm.generate(texts, params, use_tqdm=False)]

    return run


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

"""``specjax generate``: prompts in, completions on stdout, the rest on stderr."""

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams
from specjax.host.compile_cache import enable_compile_cache
from specjax.jobs.prompt_file import parse_prompt
from specjax.jobs.worker import to_json
from specjax.viz.live import show

EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 4}'


def read_prompts(prompts: Sequence[str], file: Path | None) -> list[str]:
    """Return the prompts of options and of a file.

    A .jsonl file has one prompt per line: a string, ``{"prompt": ...}``, or
    ``{"turns": [prompt, ...]}`` as the shipped ones. Any other file is one prompt.

    Raises:
        ValueError: no prompt, an unreadable line, or text that is not UTF-8.
        OSError: the file cannot be read.
    """
    found = list(prompts)
    if file is not None:
        try:
            text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not UTF-8 text: {error}") from None
        found += parse_lines(file, text) if file.suffix == ".jsonl" else [text]
    if not found:
        raise ValueError("no prompt: pass --prompt TEXT or --prompt-file FILE.")
    return found


def parse_lines(file: Path, text: str) -> list[str]:
    """Return the prompts of a .jsonl file's lines."""
    return [
        parse_prompt(line, f"{file} line {number}")
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    ]


def parse_config(text: str) -> Any:
    """Return the value of --speculative-config.

    Raises:
        ValueError: it is not JSON, most often because of a shell's quotes.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(
            f"--speculative-config is not valid JSON: {error}; got {text}. In a shell, put single "
            f"quotes around it: --speculative-config '{EXAMPLE}'"
        ) from None


def check_model(model: str) -> None:
    """Raise ValueError if ``model`` is a folder of ``specjax train lm``, not a checkpoint."""
    folder = Path(model).expanduser()
    inner = folder / "model"
    if not (folder / "config.json").is_file() and (inner / "config.json").is_file():
        raise ValueError(f"{model} is a training run's folder: pass its model, --model {inner}")


def check_length(llm: LLM, prompts: Sequence[str], max_tokens: int | None) -> None:
    """Warn if a prompt leaves less room than ``max_tokens``."""
    longest = max(len(llm.get_tokenizer().encode(prompt)) for prompt in prompts)
    limit = llm.core.max_model_len
    room = limit - longest
    if max_tokens is not None and 0 < room < max_tokens:
        warnings.warn(
            f"--max-tokens {max_tokens} does not fit: max_model_len={limit} leaves "
            f"{room} tokens after a prompt of {longest}; completions end there.",
            stacklevel=2,
        )


def complete(
    model: str,
    options: Mapping[str, Any],
    prompts: Sequence[str],
    sampling: SamplingParams,
    *,
    stream: bool,
    json_lines: bool,
    trace: Path | None = None,
) -> None:
    """Complete the prompts and print the completions."""
    if stream and (json_lines or sampling.n > 1):
        raise ValueError("--stream shows one completion per prompt: not with --json or --n.")
    if stream and trace is not None:
        raise ValueError("--trace logs prompts that run side by side: not with --stream.")
    check_model(model)
    enable_compile_cache()
    llm = LLM(model, **options)
    check_length(llm, prompts, sampling.max_tokens)
    console, notes = Console(highlight=False), Console(stderr=True, highlight=False)
    if stream:
        for number, prompt in enumerate(prompts):
            heading(notes, number, len(prompts))
            show(llm, prompt, sampling, console)
    else:
        for number, output in enumerate(llm.generate(list(prompts), sampling, trace=trace)):
            for completion in output.outputs:
                if json_lines:
                    print(json.dumps(to_json(output, completion)))
                    continue
                heading(notes, number, len(prompts), completion.index, sampling.n)
                if console.is_terminal:
                    console.print(Text(output.prompt or "", style="dim"), end="", soft_wrap=True)
                print(completion.text)
    if trace is not None:
        notes.print(f"wrote {trace}; read it with specjax explain --trace", markup=False)
    counters = llm.counters
    if counters.num_drafts:
        notes.print(
            f"mean acceptance length {counters.mean_acceptance_length:.2f}, acceptance rate "
            f"{counters.acceptance_rate:.0%} ({counters.num_accepted_tokens} of "
            f"{counters.num_draft_tokens} drafted tokens)"
        )
    elif llm.core.speculative_config is not None:
        notes.print("nothing was drafted: every round was a plain step")


def heading(notes: Console, number: int, prompts: int, sample: int = 0, samples: int = 1) -> None:
    """Print which completion follows, if there are several."""
    if prompts * samples > 1:
        which = f", sample {sample + 1} of {samples}" if samples > 1 else ""
        notes.print(f"--- prompt {number + 1} of {prompts}{which}", style="bold")

"""The guides' offline snippets run with only the model path (and the import) changed."""

import ast
import re
import warnings
from pathlib import Path

import pytest

from specjax import LLM

GUIDES = Path(__file__).parents[3] / "shared" / "guides"
LATER = ("eagle", "suffix", "extract_hidden_states", "ibm-fms")  # methods of later versions
TARGETS = (
    "meta-llama/Meta-Llama-3.1-8B-Instruct",
    "facebook/opt-6.7b",
    "meta-llama/Llama-3.1-70B-Instruct",
)
DRAFTS = ("facebook/opt-125m", "meta-llama/Llama-3.2-1B-Instruct")

MODERN = """
from vllm import LLM, SamplingParams

prompts = ["import os", "def main():"]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)
llm = LLM(
    model="facebook/opt-6.7b",
    tensor_parallel_size=1,
    speculative_config={"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4},
)
outputs = llm.generate(prompts, sampling_params)
for output in outputs:
    print(f"Prompt: {output.prompt!r}, Generated text: {output.outputs[0].text!r}")
"""
LEGACY_DRAFT = MODERN.replace(
    'speculative_config={"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4},',
    'speculative_model="facebook/opt-125m", num_speculative_tokens=5, use_v2_block_manager=True,',
)
LEGACY_NGRAM = MODERN.replace(
    'speculative_config={"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4},',
    'speculative_model="[ngram]", num_speculative_tokens=5, ngram_prompt_lookup_max=4,',
)


def snippets() -> dict[str, str]:
    """Cut from the guides every piece that imports LLM and parses as Python."""
    found = {}
    for path in sorted(GUIDES.glob("*.txt")):
        lines = path.read_text(encoding="utf-8").splitlines()
        starts = [i for i, line in enumerate(lines) if re.match(r"\s*from vllm import LLM", line)]
        for start in starts:
            indent = len(lines[start]) - len(lines[start].lstrip())
            body: list[str] = []
            best = ""
            for line in lines[start:]:
                body.append(line[indent:])
                source = "\n".join(body)
                try:
                    ast.parse(source)
                except SyntaxError:
                    continue
                best = source
            if "LLM(" in best and not any(word in best for word in LATER):
                found[f"{path.stem}:{start + 1}"] = best
    return found


def run(source: str) -> dict:
    """Run a snippet with our names in it, and return what it leaves; it may deserve warnings."""
    source = source.replace("from vllm import", "from specjax import")
    for name in TARGETS:
        source = source.replace(name, "bundled")
    for name in DRAFTS:
        source = source.replace(name, "bundled:draft")
    left: dict = {"__name__": "__main__"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(source, "snippet", "exec"), left)
    return left


@pytest.mark.parametrize(
    "source", [MODERN, LEGACY_DRAFT, LEGACY_NGRAM], ids=["modern", "draft", "ngram"]
)
def test_snippets_written_like_the_guides_run(source, capsys):
    run(source)
    assert capsys.readouterr().out.count("Generated text:") == 2


@pytest.mark.skipif(
    not GUIDES.is_dir(), reason="the guides are read from ../shared/guides, which is not here"
)
def test_the_guides_own_snippets_run():
    """Where the guide lost a loop's indentation, the snippet is run up to that loop."""
    found = snippets()
    assert len(found) >= 4
    for source in found.values():
        left = run(source)
        assert isinstance(left["llm"], LLM)
        assert left["llm"].speculative_config is not None
        if "outputs" in source:
            assert all(output.outputs[0].token_ids for output in left["outputs"])

"""The guides' offline snippets run with only the model path (and the import) changed."""

import ast
import re
import warnings
from pathlib import Path

import pytest

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


def run(source: str, capsys) -> str:
    """Run a snippet with our names in it; deprecations it deserves are not failures."""
    source = source.replace("from vllm import", "from specjax import")
    for name in TARGETS:
        source = source.replace(name, "bundled")
    for name in DRAFTS:
        source = source.replace(name, "bundled:draft")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(source, "snippet", "exec"), {"__name__": "__main__"})
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "source", [MODERN, LEGACY_DRAFT, LEGACY_NGRAM], ids=["modern", "draft", "ngram"]
)
def test_snippets_written_like_the_guides_run(source, capsys):
    assert run(source, capsys).count("Generated text:") == 2


@pytest.mark.skipif(
    not GUIDES.is_dir(), reason="the guides are read from ../shared/guides, which is not here"
)
def test_the_guides_own_snippets_run(capsys):
    found = snippets()
    assert len(found) >= 3
    for source in found.values():
        printed = run(source, capsys)
        assert "Generated text:" in printed or "outputs" not in source

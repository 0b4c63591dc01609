"""The guides' offline snippets run with only the import, model paths and sizes changed."""

import ast
import json
import re
import warnings
from pathlib import Path

import pytest

from specjax import LLM, SamplingParams
from tests.checkpoints.cycle import build
from tests.checkpoints.language import HIDDEN
from tests.checkpoints.speculator import write_speculator

GUIDES = Path(__file__).parents[3] / "shared" / "guides"
PATHS = {  # the guides' name: ours, a tiny checkpoint
    "meta-llama/Meta-Llama-3.1-8B-Instruct": "llama",
    "meta-llama/Llama-3.1-70B-Instruct": "llama",
    "meta-llama/Meta-Llama-3.1-70B-Instruct": "llama",
    "Qwen/Qwen3-8B": "llama",
    "facebook/opt-6.7b": "llama",
    "facebook/opt-125m": "draft",
    "meta-llama/Llama-3.2-1B-Instruct": "draft",
    "yuhuili/EAGLE-LLaMA3.1-Instruct-8B": "eagle",
    "path/to/eagle-head": "eagle",
    "ibm-fms/llama3-70b-accelerator": "speculator",
}
SIZES = {"tensor_parallel_size=4": "tensor_parallel_size=1", "[2, 18, 34]": "[1, 2, 3]"}

MODERN = """
from vllm import LLM, SamplingParams

prompts = ["The future of AI is"]
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
OPTIONS = re.search(r"    speculative_config=.*\n", MODERN)[0]
WRITTEN = {
    "ngram": MODERN,
    "suffix": MODERN.replace(
        OPTIONS,
        """    enforce_eager=True,
    speculative_config={"method": "suffix", "num_speculative_tokens": 15},
""",
    ),
    "eagle": MODERN.replace("tensor_parallel_size=1", "tensor_parallel_size=4").replace(
        OPTIONS,
        """    distributed_executor_backend="mp",
    enforce_eager=True,
    async_scheduling=True,
    speculative_config={
        "method": "eagle",
        "model": "yuhuili/EAGLE-LLaMA3.1-Instruct-8B",
        "draft_tensor_parallel_size": 1,
        "num_speculative_tokens": 2,
    },
""",
    ),
    "legacy draft": MODERN.replace(
        OPTIONS,
        """    speculative_model="facebook/opt-125m",
    num_speculative_tokens=5,
    use_v2_block_manager=True,
""",
    ),
    "legacy ngram": MODERN.replace(
        OPTIONS,
        """    speculative_model="[ngram]",
    num_speculative_tokens=5,
    ngram_prompt_lookup_max=4,
""",
    ),
    "legacy eagle": MODERN.replace(
        OPTIONS,
        """    speculative_model="path/to/eagle-head",
    speculative_method="eagle",
    num_speculative_tokens=2,
""",
    ),
    "legacy MLP speculator": MODERN.replace(
        OPTIONS,
        """    speculative_model="ibm-fms/llama3-70b-accelerator",
    speculative_draft_tensor_parallel_size=1,
    use_v2_block_manager=True,
""",
    ),
}
EXTRACT = """
import tempfile

from safetensors import safe_open
from vllm import LLM, SamplingParams


def main():
    with tempfile.TemporaryDirectory() as tmpdirname:
        llm = LLM(
            model="Qwen/Qwen3-8B",
            tensor_parallel_size=1,
            speculative_config={
                "method": "extract_hidden_states",
                "num_speculative_tokens": 1,
                "draft_model_config": {
                    "hf_config": {"eagle_aux_hidden_state_layer_ids": [2, 18, 34]},
                },
            },
            kv_transfer_config={
                "kv_connector": "ExampleHiddenStatesConnector",
                "kv_role": "kv_producer",
                "kv_connector_extra_config": {"shared_storage_path": tmpdirname},
            },
        )
        prompts = ["Hello, how are you?", "What is machine learning?"]
        outputs = llm.generate(prompts, SamplingParams(max_tokens=1))
        for output in outputs:
            path = output.kv_transfer_params.get("hidden_states_path")
            with safe_open(path, "pt") as f:
                print("Tokens:", len(output.prompt_token_ids), f.get_tensor("token_ids").shape)
                print("Shape:", f.get_tensor("hidden_states").shape)


if __name__ == "__main__":
    main()
"""
MTP = """
vllm serve /deepseek-ai/DeepSeek-V3.2-Exp-W8A8 \\
--speculative-config '{"num_speculative_tokens": 2, "method":"deepseek_mtp", \
"disable_padded_drafter_batch": "False"}'
"""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    """Write the cycle language's checkpoints and an MLP speculator for its target."""
    folder = tmp_path_factory.mktemp("cycle")
    speculator = write_speculator(folder / "speculator", tied=True, scale_input=True)
    return build(folder) | {"speculator": speculator}


def snippets() -> dict[str, str]:
    """Cut from the guides every piece that imports LLM and parses as Python."""
    found = {}
    for path in sorted(GUIDES.glob("*.txt")):
        lines = path.read_text(encoding="utf-8").splitlines()
        starts = [i for i, line in enumerate(lines) if re.match(r"\s*from vllm import LLM", line)]
        for start in starts:
            while re.match(r"\s*(from|import) ", lines[start - 1]) or not lines[start - 1].strip():
                start -= 1
            while not lines[start].strip():
                start += 1
            indent = len(lines[start]) - len(lines[start].lstrip())
            body: list[str] = []
            best = ""
            for line in lines[start:]:
                body.append(re.sub(r"\)[^\x00-\x7f]+$", ")", line[indent:]))  # a title, glued on
                source = "\n".join(body)
                try:
                    ast.parse(source)
                except SyntaxError:
                    continue
                best = source
            if "LLM(" in best:
                found[f"{path.stem}:{start + 1}"] = best
    return found


def run(source: str, checkpoints: dict[str, Path]) -> dict:
    """Run a snippet with our names in it, and return what it leaves; it may deserve warnings."""
    source = source.replace("from vllm import", "from specjax import")
    for theirs, ours in PATHS.items():
        source = source.replace(f'"{theirs}"', f'"{checkpoints[ours]}"')
    for theirs, ours in SIZES.items():
        source = source.replace(theirs, ours)
    left: dict = {"__name__": "__main__"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(source, "snippet", "exec"), left)
    return left


def serve_options(text: str) -> list[str]:
    """Return the --speculative-config of every `vllm serve` in a text that asks for MTP."""
    found = re.findall(r"--speculative-config '(\{.*?\})'", text, re.DOTALL)
    return [options for options in found if "mtp" in options]


def run_mtp(options: str, checkpoints: dict[str, Path]) -> None:
    """Draft with the target's own layer, as the guide asks its server to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        llm = LLM(checkpoints["mimo"], speculative_config=json.loads(options))
    params = SamplingParams(temperature=0.8, top_p=0.95, ignore_eos=True)
    llm.generate("The future of AI is", params, use_tqdm=False)
    assert llm.counters.num_draft_tokens > 0


@pytest.mark.parametrize("source", WRITTEN.values(), ids=WRITTEN)
def test_snippets_written_like_the_guides_run(source, checkpoints, capsys):
    assert source == MODERN or OPTIONS not in source
    run(source, checkpoints)
    assert capsys.readouterr().out.count("Generated text:") == 1


def test_extraction_written_like_the_guides_runs(checkpoints, capsys):
    pytest.importorskip("torch")
    run(EXTRACT, checkpoints)
    one = f"Tokens: 4 torch.Size([4])\nShape: torch.Size([4, 3, {HIDDEN}])\n"
    assert capsys.readouterr().out == one * 2


def test_mtp_written_like_the_guides_runs(checkpoints):
    (options,) = serve_options(MTP)
    run_mtp(options, checkpoints)


guides = pytest.mark.skipif(
    not GUIDES.is_dir(), reason="the guides are read from ../shared/guides, which is not here"
)


@guides
def test_the_guides_own_snippets_run(checkpoints, capsys):
    """Where the guide lost a loop's indentation, the snippet is run up to that loop."""
    found = snippets()
    assert len(found) == 8
    for source in found.values():
        extracts = "extract_hidden_states" in source
        if extracts:
            pytest.importorskip("torch")
        left = run(source, checkpoints)
        said = capsys.readouterr().out
        if extracts:
            assert said.count("Shape: torch.Size") == 2
            continue
        assert isinstance(left["llm"], LLM)
        assert left["llm"].core.speculative_config is not None
        if "outputs" in source:
            assert all(output.outputs[0].token_ids for output in left["outputs"])


@guides
def test_the_guides_own_mtp_options_run(checkpoints):
    texts = [path.read_text(encoding="utf-8") for path in sorted(GUIDES.glob("*.txt"))]
    found = [options for text in texts for options in serve_options(text)]
    assert found
    for options in found:
        run_mtp(options, checkpoints)

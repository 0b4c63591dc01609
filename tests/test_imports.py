"""Nothing heavy is imported before it is used: in a fresh process, by module names."""

import subprocess
import sys

import pytest

ENGINE = {"jax", "flax", "tokenizers"}
PLOTS_AND_STATISTICS = {"matplotlib", "scipy"}
TRAINING = {"orbax", "tensorstore"}
FOREIGN = {"torch", "transformers", "torch_npu", "vllm"}
SERVERS = {"fastapi", "uvicorn", "aiohttp", "httpx"}
UNUSED = PLOTS_AND_STATISTICS | TRAINING | FOREIGN | SERVERS
HELP = """
import sys
sys.argv = ["specjax", "--help"]
from specjax.cli.app import main
try:
    main()
except SystemExit as end:
    assert not end.code
"""
GENERATE = """
from specjax import LLM, SamplingParams
llm = LLM({target!r}, speculative_config={{"method": "ngram", "num_speculative_tokens": 2}})
assert llm.generate("def f(x):", SamplingParams(max_tokens=4))[0].outputs[0].token_ids
"""


def imported(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after ``code``."""
    code += "\nimport sys\nprint(*sorted({name.split('.')[0] for name in sys.modules}))\n"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("code", ["import specjax", HELP], ids=["import", "help"])
def test_neither_the_import_nor_the_help_loads_jax(code):
    assert not imported(code) & (UNUSED | ENGINE | {"numpy"})


def test_an_offline_generation_loads_nothing_for_plots_training_servers_or_other_engines(pair):
    loaded = imported(GENERATE.format(target=pair.target))
    assert loaded >= ENGINE
    assert not loaded & UNUSED

"""Ray actors complete every prompt once, with the texts of one process, though one is killed.

Ray listens on all addresses of a host, so the test runs it in a network namespace of its own.
"""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams
from specjax.jobs.folder import MERGED
from specjax.jobs.on_ray import complete_on_ray
from specjax.jobs.prompt_file import PromptFile
from specjax.jobs.worker import Setting
from tests.jobs.namespace import has_namespace, run_inside

TEXTS = [f"def f{i}(x):" for i in range(12)]
SETTING = Setting("m", {}, {}, PromptFile(Path("p"), "0", 1, 1, (0, 1), (1,)), Path("out"), "job")
DRIVER = Path(__file__).parent / "ray_driver.py"


def test_ray_absent_is_one_clear_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'specjax\[ray\]'"):
        list(complete_on_ray(SETTING, [0], 1))


def test_no_actors_are_refused():
    with pytest.raises(ValueError, match="--num-actors must be at least 1, got 0"):
        list(complete_on_ray(SETTING, [0], 0))


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray is not installed: pip install 'specjax[ray]', as root, and run this file",
)
@pytest.mark.skipif(not has_namespace(), reason="unshare -n is refused: run this file as root")
def test_an_actor_that_is_killed_loses_nothing(pair, tmp_path):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out"
    prompts.write_text("".join(json.dumps(text) + "\n" for text in TEXTS))
    run = run_inside(tmp_path, DRIVER, pair.target, prompts, out, timeout=600)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert len(found["killed"]) == 1
    assert sorted(found["shards"]) == [0, 1, 2, 3, 4, 5]
    rows = [json.loads(line) for line in (out / MERGED).read_text().splitlines()]
    sampling = SamplingParams(temperature=0.8, max_tokens=12)
    whole = LLM(pair.target).generate(TEXTS, sampling, use_tqdm=False)
    assert [row["text"] for row in rows] == [one.outputs[0].text for one in whole]

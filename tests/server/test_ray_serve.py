"""docs/deploy/ray_serve.py: the texts are those of one process, and a killed replica is replaced.

Ray listens on all addresses of a host, so this runs in a network namespace of its own.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams
from tests.jobs.namespace import has_namespace, run_inside

DRIVER = Path(__file__).with_name("ray_serve_driver.py")
FREE = SamplingParams(temperature=1.5, max_tokens=24, ignore_eos=True)


@pytest.mark.skipif(not has_namespace(), reason="unshare -n is refused: run this file as root")
def test_replicas_under_ray_serve_write_our_texts_and_one_may_be_killed(pair, tmp_path):
    known = subprocess.run([sys.executable, "-c", "import ray.serve"], capture_output=True)
    if known.returncode:
        pytest.skip("Ray Serve is not installed: pip install 'ray[serve]', and run this file")
    run = run_inside(tmp_path, DRIVER, pair.target, timeout=600)
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    prompt = {"prompt_token_ids": [7, 8, 9]}
    llm = LLM(pair.target)
    (whole,) = llm.generate(
        [prompt], SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    )
    assert set(found["texts"]) == {whole.outputs[0].text}
    assert found["replicas"] == 2
    assert found["after"]["answered"] == 16
    # Each replica numbers its requests from 0, so with one seed for both, texts would come twice.
    assert max(Counter(found["sampled"]).values()) == 1

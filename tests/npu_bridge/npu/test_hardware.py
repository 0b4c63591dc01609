"""Tier 2: on an Ascend NPU. Elsewhere every test reports "not run"."""

import pytest

from npu_bridge.certificate import KV_LENGTHS, certify
from npu_bridge.runtime import NpuUnavailable, open_device
from specjax import LLM, SamplingParams

pytestmark = pytest.mark.npu


@pytest.fixture(autouse=True)
def device():
    try:
        return open_device("npu")
    except NpuUnavailable as unavailable:
        pytest.skip(f"not run: {unavailable}")


def test_numbers_at_critical_lengths_are_near_the_truth():
    hardware = certify(num_prompts=1, max_tokens=8)["hardware"]
    assert hardware["run"]
    assert len(hardware["bfloat16_rms_error"]) == 2 * len(KV_LENGTHS)
    assert max(hardware["bfloat16_rms_error"].values()) < 0.02


def test_a_captured_graph_follows_changing_lengths():
    llm = LLM("bundled", device="npu", speculative_config={"method": "ngram",
              "num_speculative_tokens": 3, "prompt_lookup_max": 4})  # fmt: skip
    plain = LLM("bundled", device="npu")
    asked = SamplingParams(temperature=0.0, max_tokens=64)
    texts = [one.generate(["import os\nimport "], asked)[0].outputs[0] for one in (llm, plain)]
    assert len(texts[0].token_ids) == len(texts[1].token_ids)

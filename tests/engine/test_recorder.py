"""The log of a call names its samples, ends where their text does, and is refused in time."""

import pytest

from specjax import LLM, SamplingParams
from specjax.traces import read_trace

SAMPLING = SamplingParams(n=2, temperature=0.9, max_tokens=12, seed=3)


@pytest.fixture(scope="module")
def llm(pair):
    """Make a tiny pair speculate."""
    return LLM(pair.target, speculative_config={"model": pair.draft, "num_speculative_tokens": 2})


def test_samples_are_requests_of_their_own_and_calls_count_on(llm, tmp_path):
    first = llm.num_requests
    path = tmp_path / "new" / "trace.jsonl"
    outputs = llm.generate(["import", "return x"], SAMPLING, trace=path, use_tqdm=False)
    trace = read_trace(path)
    assert trace.names == tuple(f"{first + i}-{j}" for i in (0, 1) for j in (0, 1))
    lengths = [len(one.token_ids) for output in outputs for one in output.outputs]
    assert [int(trace.emitted[trace.request == i].sum()) for i in range(4)] == lengths


def test_a_stop_string_ends_the_log_too(llm, tmp_path):
    one = SamplingParams(temperature=0.9, max_tokens=40, seed=5)
    (free,) = llm.generate("import", one, use_tqdm=False)
    text = free.outputs[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    path = tmp_path / "trace.jsonl"
    cut = SamplingParams(temperature=0.9, max_tokens=40, seed=5, stop=[stop])
    (output,) = llm.generate("import", cut, trace=path, use_tqdm=False)
    assert output.outputs[0].stop_reason == stop
    assert read_trace(path).emitted.sum() == len(output.outputs[0].token_ids) < 40


def test_a_folder_is_no_log_and_a_failed_call_writes_none(llm, tmp_path):
    with pytest.raises(ValueError, match="is a folder: name a file"):
        llm.generate("import", SAMPLING, trace=tmp_path, use_tqdm=False)
    with pytest.raises(ZeroDivisionError):
        llm.generate(
            "import", SAMPLING, trace=tmp_path / "t.jsonl", on_progress=lambda done, of: 1 / 0
        )
    assert list(tmp_path.iterdir()) == []

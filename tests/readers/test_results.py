"""Results of load generators, in the layouts that they write."""

import json

import pytest

from specjax.readers.results import read_result

BENCH = {"duration": 10.0, "completed": 5, "total_output_tokens": 500, "total_input_tokens": 50,
         "mean_ttft_ms": 30.0, "median_ttft_ms": 20.0, "std_ttft_ms": 5.0, "p99_ttft_ms": 90.0,
         "mean_tpot_ms": 12.0}  # fmt: skip
SGLANG = {**BENCH, "backend": "sglang", "accept_length": 2.5, "mean_e2e_latency_ms": 1000.0,
          "concurrency": 4.5}  # fmt: skip


def saved(tmp_path, content, name="result.json"):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_sglang_appends_a_line_per_run(tmp_path):
    path = saved(tmp_path, json.dumps(SGLANG) + "\n")
    seen = read_result(path)
    assert (seen.engine, seen.running, seen.mean_acceptance_length) == ("sglang", 4.5, 2.5)
    assert seen.tpot.mean == pytest.approx(0.012)
    assert seen.ttft.p99 == pytest.approx(0.09)
    assert seen.e2e.mean == pytest.approx(1.0)
    two = saved(tmp_path, (json.dumps(SGLANG) + "\n") * 2, "two.jsonl")
    with pytest.raises(ValueError, match=r"holds 2 runs \(1: 4.5 requests .*choose one with --run"):
        read_result(two)
    assert read_result(two, 2).generation_throughput == 50


def test_guidellm(tmp_path):
    def of(mean):
        return {"successful": {"mean": mean, "median": mean, "std_dev": 1.0, "count": 8,
                               "percentiles": {"p90": 2 * mean, "p99": 3 * mean}}}  # fmt: skip

    metrics = {"time_to_first_token_ms": of(40.0), "inter_token_latency_ms": of(10.0),
               "time_per_output_token_ms": of(14.0), "request_latency": of(1.5),
               "request_concurrency": of(3.0), "output_token_count": of(100.0)}  # fmt: skip
    seen = read_result(saved(tmp_path, {"benchmarks": [{"metrics": metrics, "duration": 20.0}]}))
    assert seen.tpot.mean == pytest.approx(0.010)  # without the first token
    assert seen.tpot.p90 == pytest.approx(0.020)
    assert seen.e2e.mean == pytest.approx(1.5)
    assert (seen.running, seen.generation_tokens) == (3.0, 800.0)


def test_aisbench_reads_the_files_beside_its_summary(tmp_path):
    stage = {"Benchmark Duration": {"total": "20000.0 ms"}, "Concurrency": {"total": 7.5},
             "Success Requests": {"total": 10}, "Total Generated Tokens": {"total": 900},
             "Output Token Throughput": {"total": "45.0 token/s"}}  # fmt: skip
    (tmp_path / "gsm8k.csv").write_text(
        "Performance Parameters,Stage,Average,Max,Min,Median,P75,P90,P99,N\n"
        "TPOT,total,20.5 ms,30 ms,10 ms,20 ms,22 ms,25 ms,29 ms,10\n"
    )
    data = {"num_drafts": 100, "draft_tokens": 300, "accepted_tokens": 150,
            "acceptance_rate": 50.0,
            "per_position_acceptance_rates": {"0": 0.8, "1": 0.5, "2": 0.2}}  # fmt: skip
    (tmp_path / "spec_decode_h_80.json").write_text(json.dumps({"status": "ok", "data": data}))
    seen = read_result(saved(tmp_path, stage, "gsm8k.json"))
    assert seen.tpot.mean == pytest.approx(0.0205)
    assert seen.acceptance_rate == 0.5  # theirs is in percent
    assert seen.acceptance_per_position == (0.8, 0.5, 0.2)
    assert (seen.seconds, seen.running, seen.generation_throughput) == (20.0, 7.5, 45.0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("hello", "is no JSON result of vllm bench serve, .* begins with 'hello'"),
        ({"a": 1}, "is no result of .*: it holds a"),
        ("[]", "is no JSON result"),
        ({"benchmarks": [{"metrics": {"output_token_count": 5}}]}, "no 'successful' distribution"),
    ],
)
def test_other_files_are_one_error(tmp_path, content, said):
    with pytest.raises(ValueError, match=said):
        read_result(saved(tmp_path, content))

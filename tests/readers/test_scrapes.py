"""What two scrapes of a server say; those of vLLM 0.32 were recorded here, on a CPU."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from specjax.readers.metrics import observe, read_metrics, read_scrape
from specjax.readers.results import read_result
from specjax.readers.scrape import parse_scrape, summarise

SAMPLES = Path(__file__).parent / "samples"
BEFORE, AFTER = SAMPLES / "vllm-0.32-before.prom", SAMPLES / "vllm-0.32-after.prom"


def scrape(text, name="one.prom"):
    return parse_scrape(text, name)


def test_the_server_and_its_client_agree():
    """Recorded at once: acceptance is equal, TPOT within 1%, requests side by side within 10%."""
    seen = read_metrics(str(AFTER), BEFORE, 20.0)
    client = read_result(SAMPLES / "vllm-0.32-bench.json")
    for name in (
        "num_drafts",
        "num_draft_tokens",
        "num_accepted_tokens",
        "acceptance_per_position",
    ):
        assert getattr(seen, name) == getattr(client, name)
    assert seen.acceptance_rate == pytest.approx(client.acceptance_rate)
    assert seen.mean_acceptance_length == pytest.approx(client.mean_acceptance_length)
    assert seen.tpot.mean == pytest.approx(client.tpot.mean, rel=0.01)
    assert seen.running == pytest.approx(client.running, rel=0.1)
    assert seen.generation_tokens == client.generation_tokens == 96 * 96
    assert seen.num_requests == client.num_requests == 96
    assert seen.generation_throughput == pytest.approx(96 * 96 / 20)
    assert seen.itl.mean / seen.mean_acceptance_length == pytest.approx(seen.tpot.mean, rel=0.02)
    assert seen.model == "bundled"


def test_one_scrape_is_all_since_the_start():
    seen = read_metrics(str(AFTER))
    assert seen.num_drafts > read_metrics(str(AFTER), BEFORE).num_drafts
    assert isinstance(seen.start, datetime)
    assert seen.generation_throughput is None
    assert "pass --seconds" in seen.why("generation_throughput")


def test_quantiles_are_prometheus_and_never_above_what_the_mean_allows():
    buckets = {"0.1": 2.0, "0.2": 8.0, "0.4": 10.0, "+Inf": 10.0}
    found = summarise(buckets, 10, 1.5)
    assert found.p50 == pytest.approx(0.1 + 0.1 * 3 / 6)
    assert found.p90 == pytest.approx(0.2 + 0.2 * 1 / 2)
    assert summarise({"0.3": 10.0, "+Inf": 10.0}, 10, 1e-4).p50 == pytest.approx(2e-5)


V0 = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="m"}} 3.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{model_name="m"}} {tokens}
# TYPE vllm:spec_decode_efficiency gauge
vllm:spec_decode_efficiency{{model_name="m"}} 0.598
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{{model_name="m"}} 8547
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{{model_name="m"}} 13311
# TYPE vllm:spec_decode_num_emitted_tokens_total counter
vllm:spec_decode_num_emitted_tokens_total{{model_name="m"}} 10616
"""


def test_version_0_counts_accepted_tokens_behind_a_rejection_too():
    """K = 3 follows from its efficiency; the length from emitted, not from accepted tokens."""
    seen = observe([scrape(V0.format(tokens=12000))])
    assert seen.num_drafts == 13311 / 3
    assert seen.mean_acceptance_length == pytest.approx(10616 / 4437)
    assert seen.acceptance_rate == pytest.approx((10616 - 4437) / 13311)
    assert seen.acceptance_per_position is None
    assert "version 0" in seen.why("acceptance_per_position")


SGLANG = """# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0"} 4.0
sglang:num_running_reqs{model_name="m",tp_rank="1"} 4.0
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{model_name="m",tp_rank="0"} 2.5
# TYPE sglang:spec_accept_rate gauge
sglang:spec_accept_rate{model_name="m",tp_rank="0"} 0.625
# TYPE sglang:spec_num_draft_tokens gauge
sglang:spec_num_draft_tokens{model_name="m",tp_rank="0"} 4.0
# TYPE sglang:spec_verify_calls_total counter
sglang:spec_verify_calls_total{model_name="m"} 100.0
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{model_name="m"} 250.0
"""


def test_sglangs_rate_is_computed_from_its_length():
    """Its own rate is (accepted + 1) / (K + 1) in some versions: 0.625 here, where 0.5 is meant."""
    seen = observe([scrape(SGLANG)])
    assert seen.running == 4
    assert seen.acceptance_rate == pytest.approx(0.5)
    assert (seen.num_drafts, seen.num_draft_tokens, seen.num_accepted_tokens) == (100, 300, 150)


TGI = """# TYPE tgi_queue_size gauge
tgi_queue_size 0
# TYPE tgi_request_skipped_tokens histogram
tgi_request_skipped_tokens_bucket{le="+Inf"} 60
tgi_request_skipped_tokens_sum 40
tgi_request_skipped_tokens_count 60
# TYPE tgi_request_generated_tokens histogram
tgi_request_generated_tokens_bucket{le="+Inf"} 10
tgi_request_generated_tokens_sum 100
tgi_request_generated_tokens_count 10
"""


def test_tgi_counts_a_message_per_round():
    seen = observe([scrape(TGI)])
    assert seen.num_drafts == 50
    assert seen.mean_acceptance_length == pytest.approx(1.8)
    assert seen.ttft is None
    assert "no histogram" in seen.why("ttft")


def vllm(tokens, started=1000):
    return scrape(
        f"# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total {tokens}\n"
        f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {started}\n",
        f"at{tokens}.prom",
    )


@pytest.mark.parametrize(
    ("scrapes", "said"),
    [
        (
            (vllm(9), vllm(5)),
            "falls from 9 in at9.prom to 5 in at5.prom: the scrapes are in the wrong",
        ),
        ((vllm(9), vllm(5, 2000)), "server was restarted between the scrapes, which reset its"),
        ((vllm(5, 2000), vllm(9)), "the scrapes are in the wrong order. Swap them."),
        ((vllm(9), vllm(9)), "nothing was generated between at9.prom and at9.prom: scrape while"),
        ((scrape("# TYPE up gauge\nup 1\n"),), "no metrics of vLLM, SGLang or TGI, but up"),
    ],
)
def test_wrong_scrapes_are_one_error(scrapes, said):
    with pytest.raises(ValueError, match=said):
        observe(scrapes)


def test_files_of_another_kind_are_one_error(tmp_path):
    for name, content, said in (
        (
            "a.json",
            json.dumps({"a": 1}),
            "not Prometheus's text format .* begins with '{\"a\": 1}'",
        ),
        ("empty.prom", "", "holds no metrics"),
        ("page.html", "<!doctype html>", "is not Prometheus's text format"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=said):
            read_scrape(tmp_path / name)
    (tmp_path / "weights").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not text"):
        read_scrape(tmp_path / "weights")


def test_of_two_models_one_is_chosen(tmp_path):
    path = tmp_path / "two.prom"
    path.write_text(
        "# TYPE vllm:generation_tokens_total counter\n"
        'vllm:generation_tokens_total{model_name="a"} 5\n'
        'vllm:generation_tokens_total{model_name="b"} 7\n'
    )
    with pytest.raises(ValueError, match="has 2 models, a, b: choose one with --served-model"):
        read_metrics(str(path))
    assert read_metrics(str(path), served_model="b").generation_tokens == 7
    with pytest.raises(ValueError, match="has no model c, but a, b"):
        read_metrics(str(path), served_model="c")

"""What servers' own log lines say; vLLM 0.32's were recorded here, others are as published."""

from datetime import datetime

import pytest

from specjax.bundled import SERVER_LOG
from specjax.core.metrics import SpecDecodeCounters
from specjax.engine.service import Stats
from specjax.readers.anything import read_anything, read_log_file
from specjax.readers.log import OTHERS, read_log
from specjax.server.log import lines as our_lines
from tests.readers.test_scrapes import SAMPLES

V0 = (
    "INFO 10-16 19:05:47 metrics.py:345] Avg prompt throughput: 10.0 tokens/s, Avg generation "
    "throughput: 90.0 tokens/s, Running: 3 reqs, Swapped: 0 reqs, Pending: 1 reqs, GPU KV cache "
    "usage: 0.3%, CPU KV cache usage: 0.0%.",
    "INFO 10-16 19:05:47 metrics.py:367] Speculative metrics: Draft acceptance rate: 0.642, System "
    "efficiency: 0.598, Number of speculative tokens: 3, Number of accepted tokens: 8547, Number "
    "of draft tokens: 13311, Number of emitted tokens: 10616.",
)
SGLANG = (
    "[2026-04-05 20:02:51 TP0] Prefill batch, #new-seq: 1, #new-token: 158, #queue-req: 0",
    "[2026-04-05 20:02:51 TP0] Decode batch, #running-req: 32, #token: 11179, token usage: 0.08, "
    "accept len: 2.50, accept rate: 0.62, cuda graph: True, gen throughput (token/s): 1600.00, "
    "#queue-req: 2, ",
    "[2026-04-05 20:02:53 TP0] Decode batch. #running-req: 16, #token: 9000, token usage: 0.06, "
    "accept len: 2.20, accept rate: 0.55, cuda graph: False, gen throughput (token/s): 800.00, "
    "#queue-req: 0, ",
)
ASCEND = (
    "INFO 12-05 08:51:00 [acl_graph.py:187] Replaying aclgraph",
    "INFO 12-05 08:51:10 [loggers.py:127] Engine 000: Avg prompt throughput: 7.3 tokens/s, Avg "
    "generation throughput: 20.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: "
    "1.0%, Prefix cache hit rate: 0.0%",
)


def test_the_recorded_log_has_the_servers_counts():
    """The lines leave out the number of drafts; it follows from drafted tokens and rates."""
    seen = read_log_file(str(SERVER_LOG))
    assert seen.engine == "vLLM"
    assert (seen.num_drafts, seen.num_draft_tokens) == (5270, 15810)
    assert seen.num_accepted_tokens == 6090
    assert sum(seen.acceptance_per_position) == pytest.approx(6090 / 5270, abs=0.001)
    assert seen.mean_acceptance_length == pytest.approx(1 + 6090 / 5270)
    assert len(seen.parts) == 6
    assert seen.seconds == 70
    assert seen.start.strftime("%m-%d %H:%M:%S") == "11-23 21:36:47"
    assert 0.010 < seen.tpot.mean < 0.020
    assert "running requests" in seen.derived["tpot"]


def test_version_0():
    seen = read_log(V0, "v0.log")
    assert seen.num_drafts == 13311 / 3
    assert seen.mean_acceptance_length == pytest.approx(10616 / 4437)
    assert seen.tpot.mean == pytest.approx(3 / 90)
    assert (seen.running, seen.waiting) == (3, 1)


def test_sglang():
    seen = read_log(SGLANG, "sglang.log")
    assert seen.engine == "SGLang"
    assert seen.mean_acceptance_length == pytest.approx((32 * 2.5 + 16 * 2.2) / 48)
    assert seen.tpot.mean == pytest.approx(48 / 2400)
    assert seen.end == datetime(2026, 4, 5, 20, 2, 53)
    assert seen.num_drafts is None
    assert "no counts" in seen.why("num_drafts")
    assert seen.unread == {OTHERS: 1}


def test_vllm_ascend_is_told_by_its_modules():
    seen = read_log(ASCEND, "npu.log")
    assert seen.engine == "vllm-ascend"
    assert seen.num_drafts is None
    assert "nothing was drafted" in seen.why("num_drafts")


def test_our_server_logs_what_vllm_logs():
    idle = Stats(0, 0, 4, 4, 64, 0.0, 0, 0, {}, 0, None, 0, (), SpecDecodeCounters.zeros(2))
    counted = SpecDecodeCounters(10, 20, 12, (8, 4))
    busy = idle._replace(counters=counted, num_generation_tokens=22, running=1)
    logged = [f"INFO 11-23 21:00:00 {line}" for line in our_lines(idle, busy, 10.0)]
    seen = read_log(logged, "ours.log")
    assert (seen.num_drafts, seen.num_draft_tokens, seen.num_accepted_tokens) == (10, 20, 12)
    assert seen.acceptance_per_position == (0.8, 0.4)
    assert seen.tpot.mean == pytest.approx(1 / 2.2)


def test_lines_that_look_known_and_are_not_are_counted_and_named():
    seen = read_log((*V0, "INFO SpecDecoding metrics: Fresh words 5", "hello"), "v0.log")
    assert seen.unread == {"INFO SpecDecoding metrics: Fresh words #": 1, OTHERS: 1}


def test_other_files_are_one_error():
    with pytest.raises(ValueError, match=r"no line with statistics .* it begins with 'hello'"):
        read_log(("hello",), "x.log")
    with pytest.raises(ValueError, match="lines of vLLM and of SGLang"):
        read_log((*V0, *SGLANG), "both.log")


@pytest.mark.parametrize(
    ("name", "word"),
    [
        (SERVER_LOG, ".log"),
        ("vllm-0.32-after.prom", "vLLM's names"),
        ("vllm-0.32-bench.json", "vllm bench serve"),
    ],
)
def test_the_kind_of_a_file_is_found_out(name, word):
    assert word in read_anything(str(SAMPLES / name)).source

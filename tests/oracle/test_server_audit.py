"""``specjax audit server`` on vLLM: the stock wheel is flagged, the repaired one passes.

What the servers answered is kept, and `make test` judges it again.
"""

import json
from contextlib import ExitStack
from dataclasses import asdict

import pytest

from specjax.audit.server import PROMPTS, Plan, collect, judge
from specjax.oracle.ask import EAGER_FLOAT32, open_server
from specjax.oracle.environment import OracleMissing
from tests.oracle import recordings
from tests.oracle.conftest import LIVE, weights

DRAFT = {
    "method": "draft_model",
    "model": "bundled:draft",
    "draft_sample_method": "probabilistic",
    "num_speculative_tokens": 2,
}
ARGUMENTS = ("--served-model-name", "bundled", "--max-model-len", "256", "--max-num-seqs", "256")
PLANS = {
    "against a server without speculation": Plan(prompts=PROMPTS[:2], tv=0.08, batch=256),
    "against its own logprobs": Plan(prompts=PROMPTS[:2], tv=0.08, batch=256, temperature=1.0),
}
STATE = {False: "stock", True: "repaired"}
CASES = [(repairs, against) for repairs in (False, True) for against in PLANS]


@pytest.fixture(params=["recorded", LIVE], scope="module")
def answers(request, checkpoints):
    """Return what was collected in each of the cases, recorded or now."""
    names = {
        (repairs, against): f"audit_{STATE[repairs]}_{against.split()[-1]}"
        for repairs, against in CASES
    }
    jobs = {
        case: {
            "kind": "audit",
            "model": "bundled",
            "speculative_config": DRAFT,
            "arguments": ARGUMENTS,
            "plan": asdict(PLANS[case[1]]),
            "repairs": case[0],
        }
        for case in CASES
    }
    held = {case: weights(job, checkpoints) for case, job in jobs.items()}
    if request.param == "recorded":
        return {
            case: recordings.replay(names[case], job, held[case])["collected"]
            for case, job in jobs.items()
        }
    from specjax.audit.client import Server

    folders = {name: str(folder) for name, folder in checkpoints.items()}
    config = json.dumps(DRAFT | {"model": folders["bundled:draft"]})
    found = {}
    with ExitStack() as stack:

        def start(repairs: bool, *arguments: str):
            every = [*EAGER_FLOAT32, *ARGUMENTS, *arguments]
            server = open_server(folders["bundled"], arguments=every, repairs=repairs)
            facts, url = stack.enter_context(server)
            return facts, Server(url)

        try:
            _, plain = start(False)
        except OracleMissing as missing:
            pytest.skip(str(missing))
        servers = {
            repairs: start(repairs, "--speculative-config", config) for repairs in (False, True)
        }
        for case, job in jobs.items():
            repairs, against = case
            facts, base = servers[repairs]
            alone = PLANS[against].temperature == 1
            found[case] = collect(base, None if alone else plain, PLANS[against])
            if request.config.option.record:
                answer = {**facts, "collected": found[case]}
                recordings.record(names[case], job, held[case], answer)
    return found


@pytest.mark.parametrize(("repairs", "against"), CASES)
def test_stock_vllm_is_flagged_and_repaired_vllm_passes(repairs, against, answers, compared):
    report = judge(answers[repairs, against])
    assert report.passed == repairs, report.findings
    assert all(one.passed for one in report.greedy), report.greedy
    assert report.warnings == ()
    least = min(found.adjusted_p for found in report.findings)
    assert repairs or least < 1e-6
    draws, plan = report.findings[0].draws, PLANS[against]
    compared(
        f"`specjax audit server`, {STATE[repairs]} vLLM, draft_model, T > 0",
        against,
        f"{len(plan.prompts)} prompts x {draws} draws (90% power at TV {plan.tv:g})",
        f"same law, p = {least:.2f}" if repairs else f"flagged, p < {max(least, 1e-300):.0e}",
    )

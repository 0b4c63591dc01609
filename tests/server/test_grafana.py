"""The dashboard's queries ask for metrics, and labels, that vLLM and this server both have."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BOARD = json.loads((ROOT / "docs" / "grafana.json").read_text(encoding="utf-8"))
VLLM = ROOT / "tests" / "readers" / "samples" / "vllm-0.32-after.prom"
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
LABELS = {"position", "finished_reason", "le"}


def series(text):
    """Return the labels of every metric in Prometheus's text format."""
    found = {}
    for line in text.splitlines():
        match = re.match(r"(vllm:\w+)\{(.*)\} ", line)
        if match:
            found.setdefault(match[1], set()).update(re.findall(r'(\w+)="', match[2]))
    return found


@pytest.fixture(params=["vLLM", "specjax"])
def known(request, call):
    if request.param == "vLLM":
        return series(VLLM.read_text(encoding="utf-8"))
    call("POST", "/v1/completions", {"prompt": [7, 8, 9, 7, 8, 9, 7], "max_tokens": 9})
    return series(call("GET", "/metrics").body.decode())


def test_every_query_has_its_metrics_and_labels(known):
    for query in QUERIES:
        names = re.findall(r"(vllm:\w+)\{model_name=~", query)
        assert names, query
        for name in names:
            assert name in known, name
            assert "model_name" in known[name]
        for label in re.findall(r"sum by \((\w+)\)", query):
            assert label in LABELS & known[names[0]], query


def test_panels_do_not_overlap_and_say_what_they_show():
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in BOARD["panels"]]
    assert len(set(places)) == len(places)
    for panel in BOARD["panels"]:
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"] in ("short", "s", "percentunit")
        assert all(target["legendFormat"] for target in panel["targets"])
    (metric,) = re.findall(r"vllm:\w+", json.dumps(BOARD["templating"]))
    assert metric == "vllm:generation_tokens_total"

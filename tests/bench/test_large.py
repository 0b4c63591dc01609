"""``bench large``: the shapes are the published ones, and every engine has its rows."""

import pytest

from specjax.bench import large
from specjax.bench.large import SHAPES, bench_large
from specjax.bench.shapes import num_bytes
from specjax.oracle.environment import OracleFailure
from specjax.weights.hf_config import parse_config

SMALL = {"vocab_size": 2100, "hidden_size": 32, "moe_intermediate_size": 16, "num_experts": 8}
SMALL |= {"num_experts_per_tok": 2}


def test_the_shapes_are_those_of_the_published_models():
    """All layers of each are as many parameters as its name says."""
    for name, layers, billions in (("qwen3-30b-a3b", 48, 30.5), ("qwen3-next", 48, 79.7)):
        whole = num_bytes(parse_config(SHAPES[name] | {"num_hidden_layers": layers})) / 2
        assert abs(whole / 1e9 - billions) < 0.3


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_loads_and_decodes_plainly_and_with_drafts(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    arms = [("specjax", "plain"), ("specjax", "ngram")]
    shapes = {name: SHAPES[name] | SMALL}
    rows = bench_large(None, only=[name], shapes=shapes, num_tokens=4, reps=1, arms=arms)
    for method in ("plain", "ngram"):
        found = {row.unit: row.value for row in rows if f"specjax, {method}" in row.name}
        assert set(found) == {"tokens/s", "s", "MB"}
        assert min(found.values()) > 0
    assert not list((tmp_path / "specjax-bench").iterdir())


def test_a_vllm_that_fails_is_left_out_with_its_reason(tmp_path, monkeypatch):
    def fail(*args):
        raise OracleFailure("not enough memory")

    monkeypatch.setattr(large, "open_arms", fail)
    said, key = [], ("vLLM", "plain")
    assert large.run(key, tmp_path, {"vocab_size": 100}, 4, 1, said.append) == []
    assert said == ["vLLM, plain: left out; not enough memory"]


def test_an_unknown_shape_is_refused_before_any_work():
    with pytest.raises(ValueError, match="unknown shape 'gpt-2': use some of qwen3-30b-a3b"):
        bench_large(None, only=["gpt-2"])

"""docs/how/add-a-drafter.md is true: its drafter passes, runs in LLM and has a name of its own."""

import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from specjax import LLM, SamplingParams, SpeculativeConfig
from specjax.engine.options import custom

PAGE = Path(__file__).parents[2] / "docs" / "how" / "add-a-drafter.md"
DRAFTER, CHECK, USE = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
OWN = {"method": "custom_class", "model": "my_drafters:bigram", "num_speculative_tokens": 4}


@pytest.fixture(scope="module", autouse=True)
def saved(tmp_path_factory):
    """Save the page's drafter as the file that it names."""
    folder = tmp_path_factory.mktemp("cookbook")
    (folder / "my_drafters.py").write_text(DRAFTER)
    (folder / "others.py").write_text("import nothing_of_this_name")
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))
    sys.modules.pop("my_drafters", None)


def test_the_drafter_passes_the_check_of_its_page():
    names = {}
    exec(compile(CHECK, "the page's check", "exec"), names)
    assert names["report"].tokens_per_round > 1


def test_the_drafter_runs_and_the_text_is_that_of_plain_decoding():
    names = {}
    exec(compile(USE, "the page's use", "exec"), names)
    completion = names["output"].outputs[0]
    assert completion.spec_decode_metrics.mean_acceptance_length > 1
    asked = "def add(a, b):", SamplingParams(temperature=0, max_tokens=16)
    assert LLM("bundled").generate(*asked)[0].outputs[0].text == completion.text


def test_an_entry_point_gives_it_a_name(monkeypatch):
    point = EntryPoint("bigram", "my_drafters:bigram", custom.GROUP)
    others = [EntryPoint("twice", f"package{i}:factory", custom.GROUP) for i in range(2)]

    def entry_points(group, name):
        return [one for one in (point, *others) if (one.group, one.name) == (group, name)]

    monkeypatch.setattr(custom, "entry_points", entry_points)
    named = {"method": "bigram", "num_speculative_tokens": 4}
    assert SpeculativeConfig.from_dict(named) == SpeculativeConfig.from_dict(OWN)
    with pytest.raises(ValueError, match="is the entry point my_drafters:bigram, and takes no mod"):
        SpeculativeConfig.from_dict({**named, "model": "x"})
    with pytest.raises(ValueError, match="several installed packages add the method 'twice'"):
        SpeculativeConfig.from_dict({**named, "method": "twice"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "needs model='package.module:factory'.* got None"),
        ({"model": "my_drafters.bigram"}, r"got 'my_drafters\.bigram'"),
        ({"model": "no_such_package:factory"}, "cannot be imported: No module named 'no_such"),
        ({"model": "others:factory"}, "cannot be imported: No module named 'nothing_of_this_name"),
        ({"model": "my_drafters:trigram"}, "cannot be imported: .* no attribute 'trigram'"),
        ({"model": "specjax:LLM"}, "vLLM's custom classes draft on the host"),
        ({"drafter_options": {"least": 2}}, "unexpected keyword argument 'least'"),
        (
            {"tree": {"depth": 2, "top_k": 2, "num_nodes": 4}},
            "shapes its drafts itself",
        ),
    ],
)
def test_what_cannot_be_built_is_refused_before_weights_are_read(change, message, monkeypatch):
    monkeypatch.setattr("specjax.engine.core.load", None)
    with pytest.raises(ValueError, match=message):
        LLM("bundled", speculative_config={**OWN, **change})

"""Structured outputs that cannot be kept are refused with one clear error, before any work."""

import sys

import numpy as np
import pytest

from specjax import LLM, SamplingParams, StructuredOutputsParams
from specjax.engine.grammar import EVERYTHING, Nodes, num_words
from tests.laws import grammars as g
from tests.laws import harness as h


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "takes one of json, regex, choice, grammar, json_object, got none"),
        ({"regex": "a", "choice": ["b"]}, "got regex and choice"),
        ({"regx": "a"}, "'regx' is not supported; known are json, regex"),
        ({"structural_tag": "{}"}, "'structural_tag' is not supported"),
        ({"regex": ""}, "regex must be a text that is not empty, got ''"),
        ({"json": 3}, "json must be a JSON schema, a mapping or text, got 3"),
        ({"json": {"a": {1, 2}}}, "the JSON schema is no JSON"),
        ({"json": {"a": float("nan")}}, "the JSON schema is no JSON"),
        ({"choice": []}, r"choice must be a list of texts that are not empty, got \[\]"),
        ({"choice": "yes"}, "choice must be a list of texts"),
        ({"choice": ["a"] * 5000}, "choice: at most 4096 texts, got 5000"),
        ({"json_object": "yes"}, "json_object must be True or False, got 'yes'"),
        ({"regex": "a" * (1 << 21)}, "regex: at most"),
        ("json", "structured_outputs must be an object, got 'json'"),
    ],
)
def test_wrong_options_are_refused_by_name(given, message):
    with pytest.raises(ValueError, match=message):
        StructuredOutputsParams.from_dict(given)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"json": {"type": "objekt"}}, "json cannot be compiled: Invalid type: objekt"),
        ({"json": {"not": {"type": "null"}}}, "json cannot be compiled: Unimplemented keys"),
        ({"json": "{"}, "json cannot be compiled: the schema is no JSON"),
        ({"json": "[1]"}, r"json cannot be compiled: a schema is an object, got \[1\]"),
        ({"regex": "("}, "regex cannot be compiled"),
        ({"regex": "(?=a)b"}, "look-ahead"),
        ({"grammar": "start: start"}, "grammar allows no text at all"),
        ({"grammar": "start: nothing"}, 'grammar cannot be compiled: .*unknown name: "nothing"'),
    ],
)
def test_a_form_that_cannot_be_compiled_is_refused_with_the_reason(form, message):
    with pytest.raises(ValueError, match=message) as error:
        g.compiler().compile(StructuredOutputsParams(**form))
    assert "\n" not in str(error.value)


def test_the_library_may_be_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    fresh = type(g.compiler())(g.tokenizer(), (g.EOS,), h.VOCAB)
    with pytest.raises(ValueError, match=r"pip install 'specjax\[structured\]'"):
        fresh.compile(StructuredOutputsParams(regex="a"))


def test_a_model_without_eos_is_refused():
    fresh = type(g.compiler())(g.tokenizer(), (), h.VOCAB)
    with pytest.raises(ValueError, match="needs a model with an EOS token"):
        fresh.compile(StructuredOutputsParams(regex="a"))


def test_sampling_params_take_the_class_alone():
    with pytest.raises(ValueError, match="must be StructuredOutputsParams"):
        SamplingParams(structured_outputs={"regex": "a"})


def test_a_rule_that_accepts_whatever_comes_is_refused():
    config = {
        "method": "ngram", "num_speculative_tokens": 2, "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": 2,
    }  # fmt: skip
    with pytest.warns(UserWarning, match="synthetic"):
        llm = LLM("bundled", speculative_config=config)
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a+"))
    with pytest.raises(ValueError, match="accepts tokens at given rates"):
        llm.generate("a", params)


def test_grammars_are_compiled_once():
    one = g.compiler().compile(StructuredOutputsParams(regex="a+b"))
    assert g.compiler().compile(StructuredOutputsParams(regex="a+b")) is one


def tokens_of(words):
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: h.VOCAB]
    return {g.PIECES[i] for i in np.flatnonzero(bits)}


def test_a_tree_is_masked_at_every_node_and_leaves_the_state_as_it_was():
    state = g.compiler().compile(StructuredOutputsParams(regex="a(b|c+)d?")).start()
    state.follow([g.PIECES.index("a")])
    tokens = [0, *(g.PIECES.index(one) for one in ("b", "c", "d", "c", "d", "e")), g.EOS]
    tree = Nodes(np.array(tokens), np.array([0, 0, 0, 1, 2, 4, 2, 3]), np.ones(8, bool))
    for _ in range(2):
        found, allowed = state.cut(tree)
        assert found.tolist() == tokens
        assert allowed.tolist() == [True, True, True, True, True, True, False, True]
        words = np.full((8, num_words(h.VOCAB)), EVERYTHING, np.int32)
        state.masks(tree._replace(valid=allowed), words)
        after = [tokens_of(one) for one in words[allowed]]
        end = {"<eos>"}
        assert after == [{"b", "c"}, {"d"} | end, {"c", "d"} | end, end, {"c", "d"} | end, end, end]
        assert (words[6] == EVERYTHING).all()


def test_forced_tokens_stop_at_the_depth_that_is_asked_for():
    state = g.compiler().compile(StructuredOutputsParams(choice=["true12"])).start()
    chain = Nodes(np.zeros(5, int), np.array([0, 0, 1, 2, 3]), np.arange(5) < 1)
    for most, expected in ((0, 0), (1, 1), (4, 3)):  # true, 12, EOS or shorter tokens
        _, allowed = state.cut(chain, most)
        assert allowed[1:].sum() >= min(expected, most)
        assert allowed[1:].sum() <= most

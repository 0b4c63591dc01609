"""Tokenizers loaded from folders."""

import json

import pytest

from specjax.engine.text.tokenizer import load_tokenizer
from tests.engine.text.backends import byte_fallback, byte_level, unigram, word_level


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Save a backend and the given JSON files into a new folder and load it."""

    def save_and_load(backend, **files):
        folder = tmp_path_factory.mktemp("model")
        backend.save(str(folder / "tokenizer.json"))
        for name, value in files.items():
            (folder / f"{name}.json").write_text(json.dumps(value))
        return load_tokenizer(folder)

    return save_and_load


@pytest.fixture(scope="module")
def kinds(load):
    config = {"eos_token": "</s>"}
    return {
        "byte_level": load(byte_level(), tokenizer_config={"eos_token": "<|im_end|>"}),
        "unigram": load(unigram(), tokenizer_config=config),
        "byte_fallback": load(byte_fallback(), tokenizer_config=config),
        "word_level": load(word_level()),
    }

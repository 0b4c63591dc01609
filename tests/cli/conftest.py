"""A tiny pair of checkpoints, and the command line as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

import specjax
from specjax.config import ModelConfig
from specjax.models.build import init_params
from specjax.train.tokenizer import END_OF_TEXT, save_tokenizer, train_tokenizer
from specjax.weights.save import save_model


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """Write a random target and draft that share a tokenizer; both continue any text."""
    folder = tmp_path_factory.mktemp("pair")
    words = train_tokenizer([Path(specjax.__file__).read_text() * 20], 260)
    end = words.token_to_id(END_OF_TEXT)
    for name, num_layers in (("target", 2), ("draft", 1)):
        config = ModelConfig(
            vocab_size=260,
            hidden_size=32,
            intermediate_size=48,
            num_layers=num_layers,
            num_heads=4,
            num_kv_heads=2,
            head_dim=8,
            max_position_embeddings=512,
            qk_norm=True,
            tie_word_embeddings=True,
        )
        (folder / name).mkdir()
        weights = init_params(config, jax.random.key(num_layers))
        save_model(folder / name, config, weights, end=end)
        save_tokenizer(words, folder / name, 512)
    return SimpleNamespace(target=str(folder / "target"), draft=str(folder / "draft"))


@pytest.fixture(scope="session")
def specjax_command(tmp_path_factory):
    """Return a function that runs ``python -m specjax`` in a fresh folder."""
    home = tmp_path_factory.mktemp("home")

    def run(*args, timeout=300, **environment):
        return subprocess.run(
            [sys.executable, "-m", "specjax", *map(str, args)],
            cwd=home,
            env={**os.environ, "COLUMNS": "200", **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run

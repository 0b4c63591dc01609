"""A random target and draft model, too small to take time."""

from pathlib import Path
from types import SimpleNamespace

import jax

import specjax
from specjax.models.build import init_params
from specjax.models.config import ModelConfig
from specjax.train.tokenizer import END_OF_TEXT, save_tokenizer, train_tokenizer
from specjax.weights.save import save_model


def write_pair(folder: Path) -> SimpleNamespace:
    """Write a target and a draft that share a tokenizer; both continue any text."""
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

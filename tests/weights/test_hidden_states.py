"""Files of hidden states and the manifest of a folder: what comes back, what is refused."""

import re
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.weights.hf_config import read_config
from specjax.weights.hidden_states import (
    Manifest,
    Origin,
    file_name,
    is_done,
    open_folder,
    read_hidden_states,
    read_manifest,
    trace_origin,
    write_hidden_states,
)

ORIGIN = Origin("ab12", "bfloat16", (0, 2), 4)
TOKENS = [5, 7, 11]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "x.safetensors"
    states = np.arange(24).reshape(3, 2, 4).astype(jnp.bfloat16)
    write_hidden_states(path, TOKENS, states)
    return path


def test_a_file_comes_back_in_its_dtype(file):
    found = read_hidden_states(file)
    assert found.token_ids.dtype == np.int64
    assert found.token_ids.tolist() == TOKENS
    assert found.hidden_states.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found.hidden_states.astype(int).ravel(), np.arange(24))
    assert [path.name for path in file.parent.iterdir()] == ["x.safetensors"]


def test_a_file_is_done_if_text_layers_size_and_dtype_are_the_same(file):
    assert is_done(file, TOKENS, ORIGIN)
    assert not is_done(file.with_name("y.safetensors"), TOKENS, ORIGIN)
    others = [
        ([5, 7, 12], ORIGIN),
        ([5, 7], ORIGIN),
        (TOKENS, ORIGIN._replace(layers=(0,))),
        (TOKENS, ORIGIN._replace(hidden_size=8)),
        (TOKENS, ORIGIN._replace(dtype="float32")),
    ]
    for tokens, origin in others:
        with pytest.raises(ValueError, match="holds another text or model"):
            is_done(file, tokens, origin)


def test_a_damaged_file_is_named(file):
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"x\.safetensors is damaged: remove it"):
        is_done(file, TOKENS, ORIGIN)
    with pytest.raises(ValueError, match=r"x\.safetensors is not a file of hidden states"):
        read_hidden_states(file)


def test_texts_of_other_tokens_have_other_names():
    texts = [[1], [2], [1, 2], [2, 1], [1, 2, 0], [258]]
    assert len({file_name(text) for text in texts}) == len(texts)
    assert file_name([1, 2]) == file_name((1, 2))


def test_a_folder_belongs_to_one_model_and_its_layers(tmp_path):
    manifest = Manifest("models/a", ORIGIN, (file_name(TOKENS),))
    folder = tmp_path / "new" / "folder"
    open_folder(folder, manifest)
    assert read_manifest(folder) == manifest
    more = manifest._replace(model="moved/a", files=(*manifest.files, "b"))
    open_folder(folder, more)
    assert read_manifest(folder) == more
    for name, value in {"weights": "cd", "layers": (1,), "dtype": "float32"}.items():
        other = manifest._replace(origin=ORIGIN._replace(**{name: value}))
        words = re.escape(f"not {value!r}: choose another folder")
        with pytest.raises(ValueError, match=f"was made with {name}=.*{words}"):
            open_folder(folder, other)
    assert read_manifest(folder) == more


def test_a_folder_of_unknown_files_is_left_alone(file):
    with pytest.raises(ValueError, match=r"has files and no manifest\.json"):
        open_folder(file.parent, Manifest("a", ORIGIN, ()))
    with pytest.raises(ValueError, match=r"has no manifest\.json"):
        read_manifest(file.parent)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not valid JSON"),
        ('{"format": "other"}', "the format is 'other'"),
        ('{"format": "specjax hidden states 1"}', "is damaged"),
        ('{"format": "specjax hidden states 1", "origin": {}, "files": []}', "is damaged"),
    ],
)
def test_a_manifest_that_is_none_is_named(tmp_path, text, words):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=words):
        read_manifest(tmp_path)


def test_an_origin_is_the_content_of_a_checkpoint_not_its_place(pair, tmp_path):
    config, _ = read_config(pair.target)
    moved = shutil.copytree(pair.target, tmp_path / "moved")
    origin = trace_origin(Path(pair.target), config, (1,))
    assert trace_origin(moved, config, (1,)) == origin
    assert trace_origin(Path(pair.draft), config, (1,)).weights != origin.weights
    (moved / "config.json").write_text("{}")
    assert trace_origin(moved, config, (1,)).weights != origin.weights

"""The random prompts are what their seed draws, and nobody chose them."""

import hashlib
import json

import pytest

from specjax.bench.random_prompts import LENGTHS, NUM_PROMPTS, draw, piece, to_lines
from specjax.bundled import BUNDLED, HERE, PROMPTS, prompts
from specjax.engine.text.tokenizer import load_tokenizer
from specjax.train.data import Document, is_held_out, read_documents

SHA256 = "6d64329fe8af89f53b60a750eec05b148fd0752ab087fabd3d6eaf497baaf214"
encode = load_tokenizer(BUNDLED["bundled"]).encode


def test_they_are_frozen():
    assert hashlib.sha256(PROMPTS["random"].read_bytes()).hexdigest() == SHA256


def test_they_come_from_files_that_were_held_out_and_are_as_long_as_the_shipped_ones():
    files = {path: held_out for path, _, _, held_out in manifest()}
    found = prompts("random")
    paths = [path_of(one) for one in found]
    assert len({one["id"] for one in found}) == len(found) == NUM_PROMPTS
    assert all(files[path] and is_held_out(path) for path in paths)
    for one in found:
        assert LENGTHS[0] <= len(encode(one["turns"][0])) <= LENGTHS[1]


def test_the_seed_draws_them_from_the_same_python():
    documents = read_documents()
    here = {one.path: one.sha256 for one in documents if one.held_out}
    if here != {path: digest for path, _, digest, held_out in manifest() if held_out}:
        pytest.skip("this Python's standard library is another one")
    assert to_lines(draw(documents, encode)) == PROMPTS["random"].read_text(encoding="utf-8")


def test_no_line_is_in_two_of_them():
    """Each file gives one piece, then each that has room a second one, and so on."""
    documents = [made(f"held_{i}", 60 * (i + 1)) for i in range(40)]
    found = draw(documents, encode)
    lines = [line for one in found for line in one["turns"][0].splitlines()]
    assert len(set(lines)) == len(lines)
    paths = [path_of(one) for one in found]
    assert len(set(paths[:40])) == len(set(paths[40:80])) == 40
    with pytest.raises(ValueError, match="3 held-out files have room for"):
        draw(documents[:3], encode)


def test_a_piece_is_the_fewest_lines_that_are_long_enough():
    lines = [f"value_{i} = {i}\n" for i in range(200)]
    text = piece(lines, encode, 150)
    assert text is not None
    shorter = "".join(text.splitlines(keepends=True)[:-1])
    assert len(encode(text)) >= 150 > len(encode(shorter))
    assert piece(lines[:3], encode, 150) is None
    assert piece(["x = " + "very_long" * 200 + "\n"], encode, 150) is None


def made(path, num_lines):
    text = "".join(f"{path}_{i} = {i}\n" for i in range(num_lines))
    return Document(path, len(text), "", text, held_out=True)


def path_of(prompt):
    return prompt["id"].removeprefix("random-").rpartition(":")[0]


def manifest():
    return json.loads((HERE / "data_manifest.json").read_text())["files"]

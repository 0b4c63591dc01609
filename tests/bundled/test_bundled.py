"""The shipped pair, prompts and papers are what they say, and transformers loads them as is."""

import functools
import hashlib
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.bundled import BUNDLED as BUNDLED_NAMES
from specjax.bundled import HEADS
from specjax.models.build import build_target, shapes
from specjax.train.data import is_held_out
from specjax.train.features import SourceConfig, extract
from specjax.train.head_options import taps_of
from specjax.train.loop import causal_logits
from specjax.train.unrolled import build_unrolled
from specjax.weights.head_configs import read_head_config
from specjax.weights.heads import load_head
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params

BUNDLED = Path(specjax.__file__).parent / "bundled"
PROMPTS = [json.loads(line) for line in (BUNDLED / "prompts.jsonl").read_text().splitlines()]
FOLDERS = ["target", "draft"]
# Of a head's first drafts.
LEAST_AGREED = {"eagle": 0.6, "eagle3": 0.65, "mtp": 0.75, "medusa": 0.3, "mlp_speculator": 0.35}
LEAST_AGREED |= {"dflash": 0.6, "dspark": 0.6}
CONTEXT, OWN = 128, 32  # tokens of each prompt, and of what the target says next
# Frozen. Other weights mean: record every golden file (make oracle-record), every head and
# every figure anew, in the same commit.
SHA256 = {
    "target": "c716a930900616bb253072b7f125340a9167e863f1efbe5550cb41d211dbd285",
    "draft": "7d5916f018d93d7f9d4eeecb3472244a0f4d5d87c4895710deeefa31d50201eb",
    "eagle": "1bb6fa26b58e7b5104ebeae27eeebc5fc7082b7562ce6c1e288a8a9bf2f8e0b6",
    "eagle3": "aa386439d792f69c4765ab2131d6361f4a854b4925542d32ce96b9b27679cb98",
    "mtp": "b3665ed586cfd97b66801a94a4eb61cf778434b30aab2db42f144b77229045e6",
    "medusa": "49c2cea8e9fb35c0d8787aeca0bc254b57c6bc1764aa36bc9a55e267d7e634dc",
    "dflash": "270fe26fbff06abdf317b1cf60cd43aef705eab270a7eb6ad09ad8946aace171",
    "mlp_speculator": "dd730f0ee9a43e3bc2f29c1309babbecc4bc46f1a256da7dbea1f8e00a37561d",
    "dspark": "feb6b2e477fa6bdb1fcb144b1e9b4fe58e3db925bb585adac298a97ecfa1577d",
}
FILES = {
    *("config.json", "generation_config.json", "model.safetensors"),
    *("tokenizer.json", "tokenizer_config.json"),
}


HEAD_FILES = {"config.json", "model.safetensors"}


def test_there_are_24_prompts_of_two_kinds():
    assert len({prompt["id"] for prompt in PROMPTS}) == len(PROMPTS) == 24
    kinds = [prompt["category"] for prompt in PROMPTS]
    assert (kinds.count("completion"), kinds.count("edit")) == (12, 12)


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt["id"])
def test_a_prompt_is_one_turn_that_ends_where_a_line_begins(prompt):
    assert set(prompt) == {"id", "category", "turns"}
    (text,) = prompt["turns"]
    assert text.rstrip(" ").endswith("\n")
    assert text.isascii()
    assert 10 <= text.count("\n") <= 40
    if prompt["category"] == "edit":
        assert "\n# The same " in text


def test_the_prompts_fit_the_model_with_room_to_continue():
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(BUNDLED / "target" / "tokenizer.json"))
    for prompt in PROMPTS:
        assert 60 <= len(tokenizer.encode(prompt["turns"][0]).ids) <= 300, prompt["id"]


def test_the_pair_weighs_at_most_32_megabytes():
    files = [path for folder in FOLDERS for path in (BUNDLED / folder).iterdir()]
    assert sum(path.stat().st_size for path in files) <= 32_000_000


@pytest.mark.parametrize(("name", "least", "most"), [("target", 12e6, 16e6), ("draft", 8e5, 12e5)])
def test_the_models_have_the_sizes_that_make_speculation_pay(name, least, most):
    config, _ = read_config(BUNDLED / name)
    assert least <= sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes(config))) <= most


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_complete_and_holds_nothing_else(name):
    assert {path.name for path in (BUNDLED / name).iterdir()} == FILES
    described = json.loads((BUNDLED / name / "config.json").read_text())
    assert described["architectures"] == ["Qwen3ForCausalLM"]
    assert described["head_dim"] in (32, 64)  # vLLM refuses 16
    assert described["torch_dtype"] == "bfloat16"


def test_draft_and_target_speak_the_same_tokens():
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (BUNDLED / "draft" / file).read_bytes() == (BUNDLED / "target" / file).read_bytes()


@pytest.mark.parametrize("name", FOLDERS)
def test_transformers_loads_the_folder_as_it_is_and_agrees(name):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(BUNDLED / name, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(BUNDLED / name)
    ids = tokenizer(PROMPTS[0]["turns"][0])["input_ids"]
    assert tokenizer.decode(ids) == PROMPTS[0]["turns"][0]
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 0
    config, _ = read_config(BUNDLED / name, dtype="float32")
    params = load_params(BUNDLED / name, config)
    ours = jax.jit(causal_logits, static_argnums=0)(
        build_target(config), params, jnp.asarray([ids], jnp.int32)
    )
    with torch.no_grad():
        theirs = model(torch.tensor([ids])).logits.numpy()
    assert theirs.std() > 1.0
    np.testing.assert_allclose(ours, theirs, atol=1e-4 * max(1.0, np.abs(theirs).max()))


def test_the_manifest_names_every_file_and_its_side():
    told = json.loads((BUNDLED / "data_manifest.json").read_text())
    assert told["num_files"] == len(told["files"]) > 1000
    assert told["num_bytes"] == sum(row[1] for row in told["files"])
    for path, _, digest, held_out in told["files"]:
        assert "site-packages" not in path
        assert len(digest) == 64
        assert held_out == is_held_out(path)


def test_the_licence_of_the_training_text_is_shipped():
    text = (BUNDLED / "LICENSE-PSF.txt").read_text()
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in text


@pytest.mark.parametrize("name", SHA256)
def test_the_weights_are_the_frozen_ones_and_the_card_names_them(name):
    weights = (BUNDLED / name / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == SHA256[name]
    assert SHA256[name] in (BUNDLED / "README.md").read_text()
    assert (BUNDLED / f"{name}_loss.png").read_bytes()[:4] == b"\x89PNG"


def test_heads_that_ship_are_whole_and_together_they_are_small():
    files = [path for name in HEADS for path in (BUNDLED / name).iterdir()]
    assert all({path.name for path in (BUNDLED / name).iterdir()} == HEAD_FILES for name in HEADS)
    assert sum(path.stat().st_size for path in files) <= 38_000_000
    assert all(BUNDLED_NAMES[f"bundled:{name}"] == BUNDLED / name for name in HEADS)


@pytest.fixture(scope="module")
def continued():
    """Return the target's weights and what it shows of its own words after the prompts."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(BUNDLED / "target" / "tokenizer.json"))
    ids = [tokenizer.encode(prompt["turns"][0]).ids[-CONTEXT:] for prompt in PROMPTS]
    facts, _ = read_config(BUNDLED / "target", dtype="float32")
    params = load_params(BUNDLED / "target", facts)
    own, layers = OWN, tuple(sorted({t for name in HEADS for t in taps_of(name, facts)}))
    source = SourceConfig(layers=layers, context=CONTEXT + own, own=own, temperature=0.0)
    run = jax.jit(functools.partial(extract, build_target(facts, layers), config=source))
    tokens = np.pad(np.asarray(ids, np.int32), ((0, 0), (0, own + 1)))
    return facts, params, layers, run(params, tokens, jax.random.key(0))


@pytest.mark.parametrize("name", HEADS)
def test_a_head_agrees_with_the_target_on_words_that_neither_was_trained_on(name, continued):
    facts, target, layers, batch = continued
    config = read_head_config(BUNDLED / name, name, facts)
    params = load_head(BUNDLED / name, name, config, target)
    (drafted,) = jax.jit(build_unrolled(config, 1, layers))(params, batch)
    said = batch.token_ids[:, 2:]  # the target's most likely token, in its own part
    agreed = (drafted.logits.argmax(-1) == said)[:, -OWN:].mean()
    assert agreed > LEAST_AGREED[name]

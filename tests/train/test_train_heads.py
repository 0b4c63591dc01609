"""Laws of training heads: shards are what is extracted, and unrolling is what drafting does."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.cli.train_heads import read_losses
from specjax.core.topology import causal
from specjax.models.build import build_feature_head, build_target, init_params
from specjax.models.config import HEAD_KINDS
from specjax.train.data import read_documents
from specjax.train.features import SourceConfig, open_shards, open_source, write_shards
from specjax.train.head_options import HeadTrainConfig, head_config
from specjax.train.heads import train_head
from specjax.train.log import read_losses as read_log
from specjax.train.losses import divergence, overlap
from specjax.train.options import TrainConfig, model_config
from specjax.train.tokenizer import save_tokenizer, train_tokenizer
from specjax.train.unrolled import build_unrolled
from specjax.weights.head_configs import read_head_config
from specjax.weights.heads import load_head, rows_of
from specjax.weights.save import save_model

DEPTH, VOCAB = 3, 280
FACTS = model_config(
    TrainConfig(
        out="unused", steps=1, num_layers=4, hidden_size=32, intermediate_size=48, num_heads=2,
        num_kv_heads=1, head_dim=16, vocab_size=VOCAB, max_position_embeddings=64, context=16,
    )
)  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Return where batches come from: a random target, 120 small files."""
    texts, folder = tmp_path_factory.mktemp("texts"), tmp_path_factory.mktemp("target")
    for number in range(120):
        lines = "".join(f"    value_{i} = {number} * {i} + len(str({i}))\n" for i in range(9))
        (texts / f"module_{number}.py").write_text(f"def function_{number}(argument):\n{lines}")
    save_model(folder, FACTS, init_params(FACTS, jax.random.key(5)))
    documents = read_documents(str(texts))
    save_tokenizer(train_tokenizer((d.text for d in documents), VOCAB), folder, 64)
    return SourceConfig(
        target=str(folder), layers=(1, 2, 4), batch=2, context=16, own=6, temperature=0.0,
        num_batches=4, num_held_out=1, source=str(texts),
    )  # fmt: skip


@pytest.fixture(scope="module")
def shards(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    assert write_shards(source, folder) == 5
    return folder


@pytest.fixture(scope="module")
def target(source):
    from specjax.weights.load import load_params

    return load_params(source.target, FACTS)


def options(source, kind, out="unused", **changes):
    facts = {"intermediate_size": 24, "unroll": DEPTH, "learning_rate": 1e-2, "steps": 8}
    reduced = {"draft_vocab_size": 200} if kind in ("eagle3", "dflash") else {}
    given = {**facts, **reduced, **changes}
    return HeadTrainConfig(kind=kind, out=str(out), source=source, eval_every=4, **given)


def test_shards_hold_what_is_extracted_as_it_is_needed(source, shards, tmp_path):
    online, stored = open_source(source, tmp_path), open_shards(shards)
    assert (stored.config, stored.data) == (online.config, online.data)
    for side, number in (("train", 0), ("train", 3), ("held_out", 0)):
        for ours, theirs in zip(online.read(side, number), stored.read(side, number), strict=True):
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


def test_the_target_goes_on_by_itself_and_shows_what_it_saw(source, shards, target):
    batch = open_shards(shards).read("train", 1)
    model = build_target(FACTS, source.layers)
    text = batch.token_ids[:, :-1]
    positions = jnp.broadcast_to(jnp.arange(16)[None], text.shape)
    output, _ = jax.jit(model.forward, static_argnums=5)(
        target, text, positions, causal(16), model.init_cache(2, 16), 16
    )
    np.testing.assert_allclose(batch.hidden_states, output.hidden, atol=0.05)
    np.testing.assert_allclose(batch.taps, output.taps, atol=0.05)
    said = model.logits(target, output.hidden).argmax(-1)
    np.testing.assert_array_equal(said[:, 9:], batch.token_ids[:, 10:])
    assert (said[:, :9] != batch.token_ids[:, 1:10]).any()


def test_writing_shards_goes_on_where_it_was_stopped(source, shards, tmp_path):
    folder = shutil.copytree(shards, tmp_path / "copy")
    lost = folder / "train" / "00002.safetensors"
    before = lost.read_bytes()
    lost.unlink()
    with pytest.raises(ValueError, match=r"lacks 1 of 5 shards, the first .*00002"):
        open_shards(folder)
    assert write_shards(source, folder) == 1
    assert lost.read_bytes() == before
    with pytest.raises(ValueError, match="holds other shards"):
        write_shards(dataclasses.replace(source, own=5), folder)


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp"])
def test_unrolling_a_text_is_drafting_from_every_place(kind, source, shards, target):
    config = head_config(options(source, kind), FACTS)
    params = init_params(config, jax.random.key(3))
    if kind == "eagle3":
        params = {**params, "vocab_rows": rows_of(np.arange(200), VOCAB)}
    batch, head = open_shards(shards).read("train", 0), build_feature_head(config)
    drafted = jax.jit(build_unrolled(config, DEPTH, source.layers))(params, batch)
    index = [source.layers.index(layer) for layer in config.taps]
    wide = batch.hidden_states, batch.taps[:, :, jnp.asarray(index, jnp.int32)]
    features = head.fuse(params, *(x.astype(jnp.float32) for x in wide))
    forward = jax.jit(head.forward, static_argnums=6)
    for last in (0, 4, 11):  # the last pair whose feature is the target's
        cache = head.init_cache(2, 16)
        positions = jnp.broadcast_to(jnp.arange(last + 1)[None], (2, last + 1))
        tokens = batch.token_ids[:, 1 : last + 2]
        visible = causal(last + 1)
        after, cache = forward(
            params, tokens, features[:, : last + 1], positions, visible, cache, 16
        )
        for level in range(DEPTH):
            here = head.logits(params, after[:, -1])
            np.testing.assert_allclose(here, drafted[level].logits[:, last], rtol=1e-3, atol=1e-3)
            pair = last + 1 + level
            cache = cache._replace(lengths=jnp.full(2, pair, jnp.int32))
            after, cache = forward(
                params, batch.token_ids[:, pair + 1, None], after[:, -1:],
                cache.lengths[:, None], causal(1), cache, 16,
            )  # fmt: skip


@pytest.fixture(scope="module")
def trained(source, shards, tmp_path_factory):
    """Return a finished run of each kind, made when it is first asked for."""
    runs = {}

    def run(kind):
        if kind not in runs:
            out = tmp_path_factory.mktemp(kind)
            runs[kind] = out, train_head(options(source, kind, out), shards)
        return runs[kind]

    return run


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_steps_reduce_the_loss_and_the_head_that_is_written_loads(kind, source, target, trained):
    out, run = trained(kind)
    rows = [row for row in read_log(out / "loss.jsonl") if "held_out_loss" in row]
    assert rows[-1]["held_out_loss"] < rows[0]["held_out_loss"]
    assert len(rows[-1]["agreement"]) == len(rows[-1]["acceptance"]) == DEPTH
    assert all(0 <= rate <= 1 for rate in rows[-1]["acceptance"])
    config = read_head_config(run.folder, kind, FACTS)
    assert config == head_config(options(source, kind), FACTS)
    params = load_head(run.folder, kind, config, target)
    batch = open_source(source, out).read("held_out", 0)
    drafted = build_unrolled(config, DEPTH, source.layers)(params, batch)
    known = build_target(FACTS).logits(target, batch.hidden_states[:, 1:].astype(jnp.float32))
    rate = float(overlap(drafted[0].logits, known[:, drafted[0].at]).mean())
    assert abs(rate - rows[-1]["acceptance"][0]) < 0.02  # bfloat16 weights


def test_a_run_goes_on_bit_for_bit_from_shards_or_without(source, trained, tmp_path):
    whole, run = trained("eagle")
    out = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(out / "checkpoints" / "8")
    again = train_head(options(source, "eagle", out))  # extracted anew
    assert again.held_out_loss == run.held_out_loss
    weights = "model/model.safetensors"
    assert (out / weights).read_bytes() == (whole / weights).read_bytes()
    with pytest.raises(ValueError, match=r"decay: 0\.8 -> 0\.5"):
        train_head(options(source, "eagle", out, decay=0.5))


def test_a_head_can_start_from_another_and_only_from_its_like(source, shards, trained, tmp_path):
    folder = str(trained("mtp")[1].folder)
    going_on = options(source, "mtp", tmp_path / "a", start=folder, steps=1, unroll=1)
    before = read_log(trained("mtp")[0] / "loss.jsonl")
    train_head(going_on, shards)
    after = read_log(tmp_path / "a" / "loss.jsonl")
    assert after[0]["loss"] < before[0]["loss"]
    with pytest.raises(ValueError, match=r"does not serve as method='eagle3'|holds another head"):
        train_head(options(source, "eagle3", tmp_path / "b", start=folder), shards)


def test_shards_of_another_target_are_refused(source, shards, tmp_path):
    folder = shutil.copytree(shards, tmp_path / "copy")
    told = json.loads((folder / "shards.json").read_text())
    (folder / "shards.json").write_text(json.dumps({**told, "target_sha256": "0" * 64}))
    with pytest.raises(ValueError, match="made of other weights"):
        open_shards(folder)
    with pytest.raises(ValueError, match="holds no shards: write them"):
        open_shards(tmp_path)
    other = options(dataclasses.replace(source, own=5), "eagle", tmp_path / "out")
    with pytest.raises(ValueError, match="was made otherwise"):
        train_head(other, shards)


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        ("eagel", {}, "unknown kind of head 'eagel'"),
        ("eagle", {"losses": {"kld": 1.0}}, "unknown loss 'kld'"),
        ("eagle", {"losses": {"kl": -1.0}}, "must not be negative"),
        ("eagle", {"losses": {"kl": 0.0}}, "needs a weight above 0"),
        ("medusa", {"losses": {"feature": 1.0}}, "loss 'feature' is eagle's"),
        ("mtp", {"draft_vocab_size": 100}, "draft_vocab_size is for eagle3"),
        ("eagle", {"unroll": 15}, "unroll must be in 1"),
        ("eagle", {"decay": 0.0}, "decay"),
        ("mtp", {"num_heads": 0}, "num_heads must be at least 1, got 0"),
        ("eagle", {"optimizer": "sgd"}, "optimizer must be muon or adamw"),
    ],
)
def test_a_bad_option_is_refused_by_name(source, kind, changes, named):
    with pytest.raises(ValueError, match=named):
        options(source, kind, **changes)


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp"])
def test_a_head_has_the_targets_sizes_unless_asked(source, kind):
    asked = {"intermediate_size": 24, "num_heads": 4, "num_kv_heads": 2}
    for changes in (asked, dict.fromkeys(asked)):
        block = head_config(options(source, kind, **changes), FACTS).block
        for size, value in changes.items():
            assert getattr(block, size) == (value or getattr(FACTS, size))
        assert block.head_dim == FACTS.head_dim


def test_a_head_that_taps_what_was_not_extracted_is_refused(source):
    with pytest.raises(ValueError, match=r"mtp taps layers \[4\], the source holds \[1, 2\]"):
        head_config(options(dataclasses.replace(source, layers=(1, 2)), "mtp"), FACTS)


def test_losses_are_read_by_name_and_weight():
    assert read_losses(["kl", "tv=0.5"]) == {"kl": 1.0, "tv": 0.5}
    with pytest.raises(ValueError, match="must be a number, got 'tv=x'"):
        read_losses(["tv=x"])


def test_the_overlap_of_two_laws_bounds_their_divergence():
    logits = jax.random.normal(jax.random.key(0), (2, 50, 9))
    np.testing.assert_allclose(overlap(logits[0], logits[0] + 3.0), 1.0, rtol=1e-6)
    p, q = np.asarray(jax.nn.softmax(logits))
    np.testing.assert_allclose(overlap(*logits), 1 - abs(p - q).sum(-1) / 2, rtol=1e-5)
    tv = 1 - float(overlap(*logits).mean())
    assert tv <= np.sqrt(float(divergence(logits[1], logits[0])) / 2)  # Pinsker, and Jensen


@pytest.mark.parametrize("name", ["cross_entropy", "tv", "feature"])
def test_every_loss_can_be_minimised(name, source, shards, tmp_path):
    config = options(source, "eagle", tmp_path, losses={name: 1.0}, unroll=1)
    train_head(config, shards)
    rows = [row for row in read_log(tmp_path / "loss.jsonl") if "held_out_loss" in row]
    assert rows[-1]["held_out_loss"] < rows[0]["held_out_loss"]


def test_a_reduced_vocabulary_never_says_what_it_lacks(source, shards, target):
    config = head_config(options(source, "eagle3"), FACTS)
    params = {
        **init_params(config, jax.random.key(3)),
        "vocab_rows": rows_of(np.arange(200), VOCAB),
    }
    batch = open_shards(shards).read("train", 0)
    drafted = build_unrolled(config, 1, source.layers)(params, batch)
    assert (jax.nn.softmax(drafted[0].logits)[..., 200:] == 0).all()

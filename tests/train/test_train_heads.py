"""Laws of training heads: shards are what is extracted, and unrolling is what drafting does."""

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import LLM, SamplingParams
from specjax.bench.plan import trained_alike
from specjax.cli.train_heads import read_losses
from specjax.core.sampling import FORBIDDEN
from specjax.core.topology import causal
from specjax.models.build import build_feature_head, build_target, init_params
from specjax.models.config import HEAD_KINDS, Latent
from specjax.train.alike import SHAPES, describe, read_curves, train_alike
from specjax.train.answers import load_answers, write_answers
from specjax.train.data import read_documents
from specjax.train.features import SourceConfig, open_shards, open_source, write_shards
from specjax.train.head_options import HeadTrainConfig, head_config
from specjax.train.heads import train_head
from specjax.train.log import read_losses as read_log
from specjax.train.losses import (
    cross_entropy,
    divergence,
    divergences,
    lk_hybrid,
    negative_log_acceptance,
    overlap,
)
from specjax.train.options import TrainConfig, model_config
from specjax.train.tokenizer import save_tokenizer, train_tokenizer
from specjax.train.unrolled import build_unrolled, masked_text
from specjax.weights.head_configs import read_head_config
from specjax.weights.heads import load_head, rows_of
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params
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
    assert (after[0]["step"], set(after[0]) >= {"held_out_loss", "acceptance"}) == (0, True)
    assert after[1]["loss"] < before[0]["loss"]
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
        ("pard", {"intermediate_size": None}, "pard trains a draft model on: name its folder"),
        ("pard", {"start": "draft"}, "intermediate_size: a pard model has the sizes of the one"),
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


def test_a_head_for_latent_attention_is_not_trained_but_refused(source):
    facts = dataclasses.replace(
        FACTS, num_kv_heads=1, qk_norm=False, latent=Latent(
            kv_lora_rank=8, q_lora_rank=None, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=4
        ),
    )  # fmt: skip
    with pytest.raises(ValueError, match="this target's is latent"):
        head_config(options(source, "mtp"), facts)
    assert head_config(options(source, "medusa"), facts).num_heads == DEPTH


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


def test_the_lk_losses_are_those_of_the_paper():
    """Their gradients: the overlap loss's over a, and both losses' with a weight that is fixed."""
    logits, teacher = jax.random.normal(jax.random.key(1), (2, 50, 9))
    accepted = overlap(logits, teacher)
    own = negative_log_acceptance(accepted)
    np.testing.assert_allclose(own, -np.log(accepted).mean(), rtol=1e-5)
    slope = jax.grad(lambda x: negative_log_acceptance(overlap(x, teacher)))(logits)
    tv = jax.grad(lambda x: -overlap(x, teacher).sum())(logits)
    np.testing.assert_allclose(slope, tv / accepted[:, None] / 50, rtol=1e-4, atol=1e-7)
    surely = jnp.full((50, 9), FORBIDDEN).at[:, 3].set(0.0)  # then it is the cross-entropy
    label = jnp.full(50, 3)
    np.testing.assert_allclose(
        negative_log_acceptance(overlap(logits, surely)), cross_entropy(logits, label), rtol=1e-5
    )

    def hybrid(x):
        return lk_hybrid(divergences(x, teacher), overlap(x, teacher))

    weight = np.exp(-3 * np.asarray(accepted))
    kl = np.asarray(divergences(logits, teacher))
    expected = (weight * kl + (1 - weight) * (1 - np.asarray(accepted))).mean()
    np.testing.assert_allclose(hybrid(logits), expected, rtol=1e-5)
    parts = jax.grad(lambda x: divergences(x, teacher).sum())(logits), tv
    slope = (weight[:, None] * parts[0] + (1 - weight[:, None]) * parts[1]) / 50
    np.testing.assert_allclose(jax.grad(hybrid)(logits), slope, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["cross_entropy", "tv", "lk", "lk_hybrid", "feature"])
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


@pytest.fixture(scope="module")
def draft(source, tmp_path_factory):
    """Return the folder of a small random draft model, with the target's tokenizer."""
    folder = tmp_path_factory.mktemp("draft")
    facts = dataclasses.replace(FACTS, num_layers=2)
    save_model(folder, facts, init_params(facts, jax.random.key(8)))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(Path(source.target) / file, folder / file)
    return folder


def pard(source, draft, out="unused", **changes):
    return options(source, "pard", out, start=str(draft), intermediate_size=None, **changes)


def test_masks_after_a_text_are_what_parallel_drafting_reads(source, shards, draft):
    """PARD's training: one pass over all places gives what a round after each of them drafts."""
    facts, _ = read_config(draft, dtype="float32")
    model, params = build_target(facts), load_params(draft, facts)
    batch = open_shards(shards).read("train", 0)
    drafted = masked_text(model, 3, DEPTH)(params, batch)
    seen = 0
    for place in (1, 4, 12):  # the last committed token of a round
        tokens = (
            jnp.full((2, place + DEPTH), 3).at[:, : place + 1].set(batch.token_ids[:, : place + 1])
        )
        positions = jnp.broadcast_to(jnp.arange(place + DEPTH)[None], tokens.shape)
        wide = place + DEPTH
        output, _ = model.forward(
            params, tokens, positions, causal(wide), model.init_cache(2, wide), wide
        )
        logits = model.logits(params, output.hidden)
        for level, one in enumerate(drafted):
            for index in np.flatnonzero(np.asarray(one.at) == place + level - 1):
                np.testing.assert_allclose(
                    one.logits[:, index], logits[:, place + level], rtol=1e-3, atol=1e-3
                )
                seen += 1
    assert seen >= 5
    assert [len(one.at) for one in drafted] == [15, 10, 7]


def test_a_draft_model_learns_to_draft_in_parallel_and_serves_so(source, shards, draft, tmp_path):
    run = train_head(pard(source, draft, tmp_path, mask_token_id=3), shards)
    rows = [row for row in read_log(tmp_path / "loss.jsonl") if "held_out_loss" in row]
    assert rows[-1]["held_out_loss"] < rows[0]["held_out_loss"]
    assert json.loads((run.folder / "config.json").read_text())["pard_token"] == 3
    prompt = {"prompt_token_ids": [5, 6, 7]}
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    config = {"model": str(run.folder), "parallel_drafting": True, "num_speculative_tokens": 3}
    plain, spoken = (
        LLM(source.target, speculative_config=one, max_model_len=32).generate(
            prompt, params, use_tqdm=False
        )
        for one in (None, config)
    )
    assert spoken[0].outputs[0].token_ids == plain[0].outputs[0].token_ids
    assert spoken[0].outputs[0].drafts


def test_pard_needs_the_targets_vocabulary(source, shards, draft, tmp_path):
    folder = tmp_path / "other"
    facts = dataclasses.replace(FACTS, vocab_size=300)
    save_model(folder, facts, init_params(facts, jax.random.key(8)))
    with pytest.raises(ValueError, match="a vocabulary of 300 tokens, the target 280"):
        train_head(pard(source, folder, tmp_path / "a"), shards)
    with pytest.raises(ValueError, match="mask_token_id=280 is no token"):
        train_head(pard(source, draft, tmp_path / "b", mask_token_id=280), shards)


def test_answers_are_learned_from(source, target, trained, tmp_path):
    """What a target has said while serving is training text; a head's own config is kept."""
    rng = np.random.default_rng(0)
    answers = rng.integers(1, VOCAB, (32, 20)).tolist()
    write_answers(tmp_path / "answers.jsonl", answers)
    corpus, _ = load_answers(tmp_path / "answers.jsonl", VOCAB, 0)
    assert corpus.train.tolist() == [
        token for i, one in enumerate(answers) if i % 8 != 7 for token in (*one, 0)
    ]
    assert len(corpus.held_out) == 4 * 21
    said = dataclasses.replace(source, own=0, source=str(tmp_path / "answers.jsonl"))
    start = str(trained("eagle3")[1].folder)
    config = HeadTrainConfig(
        kind="eagle3", out=str(tmp_path / "run"), source=said, start=start, steps=2, unroll=1
    )
    run = train_head(config)
    (listed,) = json.loads((tmp_path / "run" / "manifest.json").read_text())["files"]
    digest = hashlib.sha256((tmp_path / "answers.jsonl").read_bytes()).hexdigest()
    assert (listed[0], listed[2]) == ("answers.jsonl", digest)
    assert read_head_config(run.folder, "eagle3", FACTS) == read_head_config(
        Path(start), "eagle3", FACTS
    )
    with pytest.raises(ValueError, match="set own to 0"):
        dataclasses.replace(source, source="answers.jsonl")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"token_ids": [1, 999]}'] * 9, r"line 1: needs .* tokens below 280"),
        (['{"token_ids": [1]}', "{}"], "line 2: needs"),
        (['{"token_ids": [1.5]}'] * 9, "line 1: needs"),
        (["[1, 2"], "line 1: needs"),
        (['{"token_ids": [1]}'] * 3, "needs at least 8 answers"),
    ],
)
def test_a_file_that_holds_no_answers_is_refused_by_its_line(tmp_path, lines, message):
    (tmp_path / "answers.jsonl").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=message):
        load_answers(tmp_path / "answers.jsonl", VOCAB, 0)
    with pytest.raises(ValueError, match="no such file of answers"):
        load_answers(tmp_path / "none.jsonl", VOCAB, 0)


def test_heads_are_trained_alike(source, monkeypatch, tmp_path):
    """The same batches and steps for every kind; a second call does nothing again."""
    monkeypatch.setitem(SHAPES, "eagle", {"intermediate_size": 24})
    told = {"steps": 2, "unroll": 2, "learning_rate": 1e-2, "eval_every": 2}
    rows = train_alike(tmp_path, source, ("eagle", "medusa"), **told)
    assert [row["kind"] for row in rows] == ["eagle", "medusa"]
    assert {row["tokens"] for row in rows} == {2 * 2 * 16}
    assert all(len(row["acceptance"]) == 2 and row["parameters"] > 0 for row in rows)
    assert json.loads((tmp_path / "heads.json").read_text()) == rows
    assert train_alike(tmp_path, source, ("eagle", "medusa"), **told) == rows
    assert set(trained_alike(tmp_path)) == {"eagle", "medusa"}
    steps, measured = read_curves(tmp_path)["medusa"]
    assert (steps, measured.shape) == ([2], (1, 2))
    assert "2 steps of 2 x 16 tokens" in describe(tmp_path)
    assert json.loads((tmp_path / "shards" / "manifest.json").read_text())["files"]
    run = tmp_path / "eagle" / "run.json"
    run.write_text(run.read_text().replace("0.01", "0.02"))
    with pytest.raises(ValueError, match="medusa was not trained as eagle was"):
        describe(tmp_path)
    with pytest.raises(ValueError, match="unknown kind of head 'mtq'"):
        train_alike(tmp_path, source, ("mtq",), steps=1)
    with pytest.raises(ValueError, match="holds no trained heads: make some with"):
        trained_alike(tmp_path / "empty")

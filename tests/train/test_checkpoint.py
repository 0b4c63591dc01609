"""A killed run goes on as if nothing had happened; what it exports is what it trained."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models.build import build_target
from specjax.train import checkpoint, lm
from specjax.train.lm import train_lm
from specjax.train.log import read_losses, rewind
from specjax.train.loop import causal_logits, make_step
from specjax.train.options import TrainConfig, model_config
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params
from specjax.weights.save import save_model

CHILD = """
import sys, time
from specjax.train import checkpoint, lm
from specjax.train.options import TrainConfig

save = checkpoint.save
def slow_save(manager, state, loss):  # time enough to be killed right after a checkpoint
    save(manager, state, loss)
    print("saved", int(state.step), flush=True)
    time.sleep(0.5)

checkpoint.save = slow_save
lm.train_lm(TrainConfig(**eval(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Return a folder of 120 small files, so that the split has both sides."""
    folder = tmp_path_factory.mktemp("source")
    for number in range(120):
        lines = "".join(f"    value_{i} = {number} * {i} + len(str({i}))\n" for i in range(9))
        body = f"def function_{number}(argument):\n{lines}    return argument\n"
        (folder / f"module_{number}.py").write_text(body)
    return folder


@pytest.fixture(scope="module")
def tiny(source):
    return TrainConfig(
        out="unused",
        num_layers=1,
        hidden_size=16,
        intermediate_size=24,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        vocab_size=280,
        max_position_embeddings=64,
        context=16,
        batch=2,
        steps=12,
        learning_rate=1e-2,
        source=str(source),
        eval_every=3,
    )


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory):
    """Return an uninterrupted run: (folder, what it returned)."""
    out = tmp_path_factory.mktemp("finished")
    return out, train_lm(dataclasses.replace(tiny, out=str(out)))


def state_of(config, out):
    with checkpoint.open_checkpoints(out / "checkpoints") as manager:
        return checkpoint.restore(manager, jax.eval_shape(make_step(config, 12).init))


def assert_same_bits(a, b):
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_a_run_killed_with_sigkill_ends_with_the_same_bits(tiny, finished, tmp_path):
    kill_after, config = 6, dataclasses.replace(tiny, out=str(tmp_path))
    command = [sys.executable, "-c", CHILD, str(dataclasses.asdict(config))]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line == f"saved {kill_after}\n":
                child.send_signal(signal.SIGKILL)
                break
    assert child.returncode == -signal.SIGKILL
    assert int(state_of(tiny, tmp_path).step) == kill_after
    whole = tmp_path / "checkpoints" / str(kill_after)
    cut_short = shutil.copytree(whole, whole.with_name("9.orbax-checkpoint-tmp"))
    shutil.rmtree(cut_short / "default" / "d")

    trained = train_lm(config)
    assert not cut_short.exists()
    folder, uninterrupted = finished
    assert trained.held_out_loss == uninterrupted.held_out_loss
    assert_same_bits(state_of(tiny, tmp_path), state_of(tiny, folder))
    weights = "model/model.safetensors"
    assert (tmp_path / weights).read_bytes() == (folder / weights).read_bytes()
    ours, theirs = read_losses(tmp_path / "loss.jsonl"), read_losses(folder / "loss.jsonl")
    assert [row["step"] for row in ours] == [row["step"] for row in theirs] == [3, 6, 9, 10, 12]
    assert [row["loss"] for row in ours] == [row["loss"] for row in theirs]


def test_the_last_two_checkpoints_and_the_best_stay(tiny, tmp_path):
    state = make_step(tiny, 12).init()
    for step, loss in enumerate([5.0, 1.0, 2.0, 4.0, 3.0]):
        with checkpoint.open_checkpoints(tmp_path) as manager:  # anew: a resumed run remembers
            checkpoint.save(manager, state._replace(step=jnp.asarray(step, jnp.int32)), loss)
    with checkpoint.open_checkpoints(tmp_path) as manager:
        assert list(manager.all_steps()) == [1, 3, 4]
        assert checkpoint.held_out_loss(manager, 4) == 3.0


def test_the_best_weights_are_exported_not_the_last(tiny, tmp_path, monkeypatch):
    losses = iter([5.0, 1.0, 2.0, 3.0])  # after 3, 6, 9 and 12 steps
    monkeypatch.setattr(lm, "held_out_loss", lambda measure, batches, params: next(losses))
    trained = train_lm(dataclasses.replace(tiny, out=str(tmp_path)))
    assert (trained.step, trained.held_out_loss) == (6, 1.0)
    facts, _ = read_config(trained.folder, dtype="float32")
    exported = load_params(trained.folder, facts)
    with checkpoint.open_checkpoints(tmp_path / "checkpoints") as manager:
        like = jax.eval_shape(make_step(tiny, 12).init)
        best, last = (checkpoint.restore(manager, like, best=which) for which in (True, False))
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), best.params)
    assert_same_bits(exported, rounded)
    assert int(last.step) == 12


def test_a_finished_run_is_not_trained_again(tiny, finished):
    folder, first = finished
    before = (folder / "loss.jsonl").read_bytes()
    start = time.monotonic()
    again = train_lm(dataclasses.replace(tiny, out=str(folder)))
    assert time.monotonic() - start < 20
    assert again == first
    assert (folder / "loss.jsonl").read_bytes() == before


def test_another_configuration_is_refused_by_field(tiny, finished):
    folder, _ = finished
    with pytest.raises(ValueError, match=r"learning_rate: 0\.01 -> 0\.02"):
        train_lm(dataclasses.replace(tiny, out=str(folder), learning_rate=0.02))
    with pytest.raises(ValueError, match="already holds a run"):
        train_lm(dataclasses.replace(tiny, out=str(folder)), resume=False)


def test_other_data_is_refused(tiny, finished, tmp_path):
    folder, _ = finished
    run = json.loads((folder / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**run, "data": "other"}))
    with pytest.raises(ValueError, match="other data"):
        train_lm(dataclasses.replace(tiny, out=str(tmp_path)))


def test_a_log_rewinds_to_the_step_it_resumes_from(tmp_path):
    path = tmp_path / "loss.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    rewind(path, 2)
    assert read_losses(path) == [{"step": 1}, {"step": 2}]


def test_a_time_budget_becomes_steps_once(tiny, tmp_path):
    config = dataclasses.replace(tiny, out=str(tmp_path), steps=None, minutes=0.002)
    trained = train_lm(config)
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["steps"] >= trained.step >= 1
    assert train_lm(config) == trained
    assert json.loads((tmp_path / "run.json").read_text()) == run


def test_a_draft_is_distilled_with_its_teachers_tokenizer(tiny, finished, tmp_path):
    _, teacher = finished
    config = dataclasses.replace(
        tiny, out=str(tmp_path), hidden_size=8, steps=4, teacher=str(teacher.folder)
    )
    trained = train_lm(config)
    same = "tokenizer.json"
    assert (trained.folder / same).read_bytes() == (teacher.folder / same).read_bytes()
    with pytest.raises(ValueError, match="280, vocab_size 300"):
        train_lm(dataclasses.replace(config, out=str(tmp_path / "other"), vocab_size=300))


def test_transformers_loads_the_export_and_agrees(tiny, finished):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder, trained = finished
    model = transformers.AutoModelForCausalLM.from_pretrained(trained.folder, dtype=torch.float32)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    facts, _ = read_config(trained.folder, dtype="float32")
    assert facts == model_config(tiny)
    params = load_params(trained.folder, facts)
    rounded = jax.tree.map(
        lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), state_of(tiny, folder).params
    )
    assert_same_bits(params, rounded)
    tokens = np.random.default_rng(0).integers(0, 280, (2, 40))
    with torch.no_grad():
        theirs = model(torch.tensor(tokens)).logits.numpy()
    ours = jax.jit(causal_logits, static_argnums=0)(
        build_target(facts), params, jnp.asarray(tokens, jnp.int32)
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "said"), [({"qkv_bias": True}, "only Qwen3"), ({"qk_norm": False}, "only Qwen3")]
)
def test_another_architecture_is_not_exported(change, said, tiny, tmp_path):
    with pytest.raises(ValueError, match=said):
        save_model(tmp_path, dataclasses.replace(model_config(tiny), **change), {})
    assert not list(tmp_path.iterdir())


def test_weights_that_are_not_finite_are_not_exported(tiny, tmp_path):
    params = make_step(tiny, 12).init().params
    params["norm"]["weight"] = params["norm"]["weight"].at[0].set(jnp.nan)
    with pytest.raises(ValueError, match=r"model\.norm\.weight is not finite"):
        save_model(tmp_path, model_config(tiny), params)
    assert not list(tmp_path.iterdir())

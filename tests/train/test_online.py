"""A head is trained on answers as they come; what goes wrong changes nothing."""

import time

import numpy as np
import pytest

from specjax.bundled import resolve
from specjax.train.answers import HELD_OUT_ONE_IN
from specjax.train.head_options import unroll_of
from specjax.train.log import read_losses
from specjax.train.online import CONTEXT, OnlineTrainer, context_of
from specjax.weights.head_configs import read_head_config
from specjax.weights.hf_config import read_config

PATIENCE = 300.0  # seconds
HEAD = {"target": "bundled", "head": "bundled:eagle3", "kind": "eagle3", "depth": 3}


def answers(number, length=60):
    """Text that repeats itself, which a head learns soon."""
    rng = np.random.default_rng(0)
    return [np.tile(rng.integers(40, 60, 6), length // 6).tolist() for _ in range(number)]


def wait(until):
    start = time.monotonic()
    while not until():
        assert time.monotonic() - start < PATIENCE
        time.sleep(0.05)


def test_each_round_goes_on_from_the_newest_head_and_older_ones_are_removed(tmp_path):
    folder, heads = tmp_path / "learned", []
    trainer = OnlineTrainer(folder, **HEAD, every=16)
    trainer.start(heads.append)
    try:
        for number in (1, 2):
            for one in answers(16):
                trainer.add(one)
            wait(lambda number=number: trainer.rounds == number or trainer.error)
            assert trainer.error is None
        assert heads == [folder / f"round_{number}" / "model" for number in (1, 2)]
        assert sorted(one.name for one in folder.iterdir()) == ["head", "round_2"]
        assert (folder / "head").resolve() == heads[1]
        assert oct(folder.stat().st_mode)[-3:] == "700"
        rows = [
            one for one in read_losses(folder / "round_2" / "loss.jsonl") if "acceptance" in one
        ]
        assert rows[0]["step"] == 0  # the head of the round before is one of those compared
        assert min(one["held_out_loss"] for one in rows) <= rows[0]["held_out_loss"]
    finally:
        trainer.close()
    with pytest.raises(ValueError, match="is the head of an earlier server: go on from it"):
        OnlineTrainer(folder, **HEAD, every=16)
    assert OnlineTrainer(folder, **{**HEAD, "head": folder / "head"}, every=16).head == heads[1]


def test_closing_ends_a_training_and_leaves_nothing_behind(tmp_path):
    trainer = OnlineTrainer(tmp_path / "learned", **HEAD, every=8)
    trainer.start(lambda folder: None)
    for one in answers(8):
        trainer.add(one)
    wait(lambda: list((tmp_path / "learned").glob("round_1/log.txt")))
    trainer.close()
    assert not list((tmp_path / "learned").iterdir())
    assert (trainer.rounds, trainer.error) == (0, None)


def test_a_training_that_fails_says_why_and_exchanges_nothing(tmp_path):
    heads = []
    trainer = OnlineTrainer(tmp_path / "learned", **HEAD, every=8)
    trainer.start(heads.append)
    for one in answers(8):
        trainer.add([*one, 10**6])
    wait(lambda: trainer.error)
    assert "tokens below 2048" in str(trainer.error)
    assert not heads
    assert not (tmp_path / "learned" / "head").exists()
    trainer.close()


def test_what_cannot_be_trained_is_refused(tmp_path):
    with pytest.raises(ValueError, match=f"at least {HELD_OUT_ONE_IN} answers, got 4"):
        OnlineTrainer(tmp_path, **HEAD, every=4)
    with pytest.raises(ValueError, match="does not serve as method='medusa'"):
        OnlineTrainer(tmp_path, **{**HEAD, "kind": "medusa"}, every=8)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="file is no folder: name another one"):
        OnlineTrainer(tmp_path / "file", **HEAD, every=8)


def test_a_head_trains_as_many_tokens_ahead_as_it_must(tmp_path):
    target, _ = read_config(resolve("bundled"), dtype="float32")

    def ahead(kind, depth):
        folder = resolve(f"bundled:{kind}")
        return unroll_of(folder, read_head_config(folder, kind, target), depth)

    assert ahead("eagle3", 2) == 2
    assert ahead("medusa", 2) == 4
    assert ahead("mlp_speculator", 1) == 4


def test_sequences_are_as_long_as_what_is_held_out_allows():
    assert context_of(answers(8, 60)) == 60
    assert context_of(answers(64, 60)) == CONTEXT

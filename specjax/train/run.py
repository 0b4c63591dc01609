"""The loop of every training run: step, log, measure, checkpoint, resume, export the best."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from specjax import __version__
from specjax.core.types import PyTree
from specjax.host.files import write_json
from specjax.host.group import check_same, from_first, is_first
from specjax.train import checkpoint
from specjax.train.log import echo, open_log
from specjax.train.loop import TrainState
from specjax.train.options import RunConfig, differences

LOG_EVERY = 10


class Trained(NamedTuple):
    """The folder of a finished run's model, and its losses."""

    folder: Path
    step: int  # the one with the lowest held-out loss
    held_out_loss: float  # nats per token, at that step


class Work(NamedTuple):
    """A run's compiled functions."""

    init: Callable[[], TrainState]
    update: Callable[[TrainState, Any], tuple[TrainState, jax.Array]]  # the state is donated
    batch: Callable[[int], Any]  # of a step
    measure: Callable[[PyTree], dict]  # of the weights: held_out_loss and other numbers
    num_tokens: int  # per batch
    trained_before: bool = False  # then the first weights count among those measured


def read_run(out: Path, config: RunConfig, resume: bool) -> dict | None:
    """Return out/run.json, or None for a fresh folder.

    Raises ValueError, naming the field, if the folder holds a run of another configuration,
    or any run when ``resume`` is False.
    """
    path = out / "run.json"
    run = from_first(lambda: json.loads(path.read_text()) if path.is_file() else None)
    if run is None:
        return None
    if not resume:
        raise ValueError(f"{out} already holds a run; choose another folder or resume")
    changed = differences(run["config"], config)
    if changed:
        raise ValueError(f"{out} holds a run of another configuration ({'; '.join(changed)})")
    return run


def affordable_steps(config: RunConfig, work: Work, minutes: float) -> int:
    """Return the number of steps within a time budget, from timing a few on a throwaway state."""
    seconds, state = [], work.init()
    for number in range(7):
        batch = work.batch(number)
        start = time.monotonic()
        state, loss = work.update(state, batch)
        loss.block_until_ready()
        seconds.append(time.monotonic() - start)
    work.measure(state.params)  # compiles
    start = time.monotonic()
    work.measure(state.params)
    measuring = (time.monotonic() - start) / config.eval_every
    return max(1, int(60 * minutes / (sorted(seconds[1:])[3] + measuring)))


def settle(config: RunConfig, run: dict | None, data: str, make_work: Callable[[int], Work]) -> int:
    """Return the number of steps; a new run computes it and writes it to out/run.json.

    Raises ValueError when the run began on other data.
    """
    own = {k: v for k, v in asdict(config).items() if k != "out"}
    check_same({"version of specjax": __version__, "configuration": own, "training text": data})
    if run is not None:
        if run["data"] != data:
            raise ValueError(f"{config.out} holds a run on other data than this")
        return run["steps"]
    steps = config.steps
    if steps is None:
        found = affordable_steps(config, make_work(1000), config.minutes or 0.0)
        steps = int(from_first(lambda: found))
    run = {"config": asdict(config), "steps": steps, "data": data}
    if is_first():
        write_json(Path(config.out) / "run.json", run)
    return steps


def train(config: RunConfig, steps: int, work: Work) -> tuple[TrainState, float]:
    """Train from the last checkpoint, if there is one, to ``steps``.

    Return the state with the lowest held-out loss of those measured, and that loss. Raises
    ValueError when the loss is no longer finite.
    """
    out = Path(config.out)
    with checkpoint.open_checkpoints(out / "checkpoints") as manager:
        like = jax.eval_shape(work.init)
        restored = checkpoint.restore(manager, like)
        state = work.init() if restored is None else restored
        first, measured = int(state.step), {}
        if first >= steps:
            echo(f"the run is complete: step {first} of {steps}")
        else:
            what = "training" if restored is None else f"resuming from step {first}"
            echo(f"{what}, to step {steps}")
        losses: list[Any] = []
        with open_log(out, first, steps) as report:
            if restored is None and work.trained_before:
                measured = work.measure(state.params)
                report({"step": 0, **measured})
                checkpoint.save(manager, state, measured["held_out_loss"])
            start = time.monotonic()
            for number in range(first, steps):
                state, loss = work.update(state, work.batch(number))
                losses.append(loss)
                done, last = number + 1, number + 1 == steps
                measuring = last or done % config.eval_every == 0
                if not (measuring or done % LOG_EVERY == 0):
                    continue
                row = {"step": done, "loss": float(np.mean([float(loss) for loss in losses]))}
                seconds = time.monotonic() - start
                row["tokens_per_second"] = round(len(losses) * work.num_tokens / seconds, 1)
                if not math.isfinite(row["loss"]):
                    raise ValueError(
                        f"the loss is {row['loss']} at step {done}; lower the learning rate"
                    )
                if measuring:
                    measured = work.measure(state.params)
                report({**row, **measured} if measuring else row)
                if measuring:  # after the report: a resumed run drops what it repeats
                    checkpoint.save(manager, state, measured["held_out_loss"])
                losses, start = [], time.monotonic()
        best = checkpoint.restore(manager, like, best=True)
        assert best is not None  # the last step is always measured and saved
        return best, checkpoint.held_out_loss(manager, int(best.step))

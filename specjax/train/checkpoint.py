"""Checkpoints that survive kill -9: orbax writes a temporary folder and renames it at the end."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from specjax.train.data_parallel import whole
from specjax.train.loop import TrainState


@contextmanager
def open_checkpoints(folder: Path) -> Iterator[ocp.CheckpointManager]:
    """Yield the checkpoint manager of one run; it keeps the last two checkpoints and the best.

    "Best" is the lowest held-out loss. Saving is synchronous: when it returns, the
    checkpoint counts. What a killed process left half written is removed here.
    """
    policies = checkpoint_managers
    options = ocp.CheckpointManagerOptions(
        preservation_policy=policies.AnyPreservationPolicy(
            [
                policies.LatestN(2),
                policies.BestN(
                    get_metric_fn=lambda metrics: metrics["held_out_loss"], reverse=True, n=1
                ),
            ]
        ),
        best_fn=lambda metrics: metrics["held_out_loss"],  # without it, metrics are not written
        best_mode="min",
        enable_async_checkpointing=False,
        cleanup_tmp_directories=True,
    )
    with ocp.CheckpointManager(folder.absolute(), options=options) as manager:
        yield manager


def save(manager: ocp.CheckpointManager, state: TrainState, held_out_loss: float) -> None:
    """Save the whole state under its step; a step that is already there stays as it is."""
    step = int(state.step)
    if step not in manager.all_steps():
        arguments = ocp.args.StandardSave(state._asdict())
        manager.save(step, args=arguments, metrics={"held_out_loss": held_out_loss}, force=True)


def restore(
    manager: ocp.CheckpointManager, like: TrainState, *, best: bool = False
) -> TrainState | None:
    """Return the last state, or the best, bit for bit; None if there is none.

    It is shaped ``like`` a fresh one, which may hold ``jax.ShapeDtypeStruct``.
    """
    step = manager.best_step() if best else manager.latest_step()
    if step is None:
        return None
    placed = whole()

    def describe(leaf):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed)

    wanted = jax.tree.map(describe, like._asdict())
    return TrainState(**manager.restore(step, args=ocp.args.StandardRestore(wanted)))


def held_out_loss(manager: ocp.CheckpointManager, step: int) -> float:
    """Return the loss that the checkpoint of ``step`` was saved with, in nats per token.

    Raises ValueError if it was saved without one.
    """
    metrics = manager.metrics(step)
    if metrics is None:
        raise ValueError(f"the checkpoint {manager.directory}/{step} holds no loss")
    return metrics["held_out_loss"]

"""A modelled server, from the files and names that options give."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specjax.theory.modelled import ModelledServer
    from specjax.theory.roofline import Hardware, ModelCost


def read_modelled(
    config: Path, hardware: str, draft: Path | None, context: float
) -> "ModelledServer":
    """Return the server with these devices and models. Raises ValueError for unknown values."""
    from specjax.theory.modelled import ModelledServer

    device, number = read_hardware(hardware)
    own = None if draft is None else read_cost(draft)
    return ModelledServer(device, read_cost(config), own, context, number)


def read_hardware(hardware: str) -> "tuple[Hardware, int]":
    """Return a named device and how many, or the one in a file of ``specjax bench hardware``.

    Raises ValueError for an unknown name, or a file of another kind.
    """
    from specjax.host.files import read_json_object
    from specjax.theory.modelled import parse_hardware
    from specjax.theory.roofline import Hardware

    if not hardware.endswith(".json"):
        return parse_hardware(hardware)
    found = read_json_object(Path(hardware))
    if found.keys() != set(Hardware._fields):
        raise ValueError(
            f"{hardware} must hold {', '.join(Hardware._fields)}, as `specjax bench hardware "
            f"--json FILE` writes, got {', '.join(found) or 'nothing'}"
        )
    return Hardware(**found), 1


def read_cost(path: Path) -> "ModelCost":
    """Return the cost of the model that a config.json describes. Raises ValueError, naming it."""
    from specjax.host.files import read_json_object
    from specjax.theory import model_cost

    try:
        return model_cost(read_json_object(path), path.parent.name or path.stem)
    except ValueError as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from None

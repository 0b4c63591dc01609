"""A modelled server, from the files and names that options give."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specjax.theory.modelled import ModelledServer
    from specjax.theory.roofline import ModelCost


def read_modelled(
    config: Path, hardware: str, draft: Path | None, context: float
) -> "ModelledServer":
    """Return the server with these devices and models. Raises ValueError for unknown values."""
    from specjax.theory.modelled import ModelledServer, parse_hardware

    device, number = parse_hardware(hardware)
    own = None if draft is None else read_cost(draft)
    return ModelledServer(device, read_cost(config), own, context, number)


def read_cost(path: Path) -> "ModelCost":
    """Return the cost of the model that a config.json describes. Raises ValueError, naming it."""
    from specjax.host.files import read_json_object
    from specjax.theory import model_cost

    try:
        return model_cost(read_json_object(path), path.parent.name or path.stem)
    except ValueError as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from None

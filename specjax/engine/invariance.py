"""Check ``batch_invariant``: the same text and logprobs whatever else is in the batch."""

from collections.abc import Sequence

from specjax.core.types import Engine
from specjax.verify.walk import walk

INSTEAD = "or leave batch_invariant out, then texts may part at near ties"


def check_batch_invariant(
    platform: str,
    num_devices: int,
    schedule: Sequence[Engine],
    *,
    learns: bool,
) -> None:
    """Raise ValueError unless results are bitwise the same for any batch, chunks and windows.

    They are on one CPU, where each row of a product, of attention and of a norm is summed up by
    itself (``specjax.kernels``). Elsewhere XLA chooses the order of sums by the shapes.

    Args:
        schedule: the engines by the number of running requests.
        learns: whether other requests change the drafts, by their responses or by what they
            accept.

    Raises:
        ValueError: with the reason and the remedy.
    """
    if platform != "cpu":
        _refuse(
            f"device {platform!r}, where the order of sums depends on the batch",
            "use device='cpu'",
        )
    if num_devices > 1:
        _refuse(
            f"tensor_parallel_size={num_devices}, where several devices add up one sum",
            "use tensor_parallel_size=1",
        )
    if schedule[0].rule is not walk and (learns or len(schedule) > 1):
        why = "other requests" if learns else "num_speculative_tokens_per_batch_size"
        _refuse(
            f"drafts that change with {why}, and a rule whose text depends on the draft",
            "use draft_sample_method='greedy' and rejection_sample_method='standard'",
        )


def _refuse(reason: str, remedy: str) -> None:
    raise ValueError(f"batch_invariant=True is not kept with {reason}: {remedy}, {INSTEAD}.")

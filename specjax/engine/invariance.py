"""Where a request's text and log probabilities are promised to be the same in any company."""

from collections.abc import Mapping, Sequence

from specjax.config import FeatureConfig, ModelConfig
from specjax.models.build import HeadConfig
from specjax.types import Engine
from specjax.verify.walk import walk

INSTEAD = "or leave batch_invariant out, then texts may part at near ties"


def check_batch_invariant(
    platform: str,
    num_devices: int,
    configs: Mapping[str, ModelConfig | HeadConfig],
    schedule: Sequence[Engine],
    *,
    learns: bool,
) -> None:
    """Refuse what is not bitwise the same for any batch size, mates, chunks and windows.

    It is so on one CPU, where each row of a product, of attention and of a norm is summed up by
    itself (``specjax.kernels``). Elsewhere XLA chooses an order by the shapes.

    ``configs`` are those of "target" and "draft", ``schedule`` the engines by the number of
    running requests; ``learns`` says whether responses to others change the drafts.

    Raises ValueError with the reason and the remedy.
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
    for name, config in configs.items():
        block = config.block if isinstance(config, FeatureConfig) else config
        for part, what in (("latent", "latent attention"), ("experts", "a mixture of experts")):
            if getattr(block, part, None) is not None:
                _refuse(
                    f"{what} in the {name}, whose products are of the whole batch",
                    f"use another {name}",
                )
    if schedule[0].rule is not walk and (learns or len(schedule) > 1):
        why = "responses to others" if learns else "num_speculative_tokens_per_batch_size"
        _refuse(
            f"drafts that change with {why}, and a rule whose text depends on the draft",
            "use draft_sample_method='greedy' and rejection_sample_method='standard'",
        )


def _refuse(reason: str, remedy: str) -> None:
    raise ValueError(f"batch_invariant=True is not kept with {reason}: {remedy}, {INSTEAD}.")

"""``adaptive`` in a speculative_config: K by what past rounds have shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from specjax.core.policies import AdaptivePolicy, by_acceptance, by_throughput
from specjax.engine.options.mappings import kind_of, parse_value, read_mapping, suggest

THROUGHPUT = "throughput_aware"
STRATEGIES = ("request", "ema", THROUGHPUT)
OF_BATCH = ("ema", THROUGHPUT)  # strategies that choose one K for all running requests
USED_BY = {  # options that not every strategy has
    "candidate_steps": OF_BATCH,
    "ema_alpha": ("request", "ema"),
    "warmup_batches": ("ema",),
    "update_interval": ("ema",),
    "up_hysteresis": ("ema",),
    "down_hysteresis": ("ema",),
    "hysteresis": (THROUGHPUT,),
    "probe_budget": (THROUGHPUT,),
}


@dataclass(frozen=True, kw_only=True)
class AdaptiveConfig:
    """Which policy chooses K. Strategies and options of SGLang have its names and defaults.

    - "request": each request by the tokens that it has accepted lately;
    - "ema": the whole batch likewise (SGLang);
    - "throughput_aware": the batch, by the measured tokens per second of each K.

    Raises:
        ValueError: a value is wrong, or of another strategy.
    """

    strategy: str
    candidate_steps: Sequence[int] | None = None  # the values of K; default: 0, K / 2, K
    ema_alpha: float | None = None
    warmup_batches: int | None = None
    update_interval: int | None = None
    up_hysteresis: float | None = None
    down_hysteresis: float | None = None
    hysteresis: float | None = None
    probe_budget: float | None = None

    def __post_init__(self):
        if self.strategy not in STRATEGIES:
            raise ValueError(
                f"adaptive: strategy must be one of {STRATEGIES}, got {self.strategy!r}."
            )
        for name in self.given:
            if self.strategy not in USED_BY[name]:
                raise ValueError(
                    f"adaptive: {name} is an option of strategy "
                    f"{' or '.join(map(repr, USED_BY[name]))}, not of {self.strategy!r}: remove it."
                )
        if self.strategy == "request" and not 0 < self.given.get("ema_alpha", 0.2) <= 1:
            raise ValueError(f"adaptive: ema_alpha={self.ema_alpha} must be in (0, 1].")

    @classmethod
    def read(cls, value: Any) -> "AdaptiveConfig":
        """Return the config of a mapping, its JSON text, or the name of a strategy alone."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and not value.lstrip().startswith("{"):
            value = {"strategy": value}
        given: Mapping[str, Any] = read_mapping("adaptive", value)
        kinds = {one.name: kind_of(one.type) for one in fields(cls)}
        for name in given:
            if name not in kinds:
                raise ValueError(f"adaptive: unknown option {name!r}.{suggest(name, kinds)}")
        if "strategy" not in given:
            raise ValueError(f"adaptive needs a strategy, one of {STRATEGIES}.")
        return cls(
            **{
                name: parse_value(f"adaptive: {name}", kinds[name], one)
                for name, one in given.items()
                if one is not None
            }
        )

    @property
    def given(self) -> dict[str, Any]:
        """Return the options beside the strategy that are set."""
        return {name: getattr(self, name) for name in USED_BY if getattr(self, name) is not None}

    def policy(self, depth: int, max_num_seqs: int) -> AdaptivePolicy:
        """Return the policy of a strategy for the batch.

        Raises:
            ValueError: candidate_steps are not among 0 .. ``depth``, or an option is out of range.
        """
        options = self.given
        steps = options.pop("candidate_steps", (0, (depth + 1) // 2, depth))
        if max(steps, default=0) != depth or min(steps) < 0:
            raise ValueError(
                f"adaptive: candidate_steps={list(steps)} must be between 0 and "
                f"num_speculative_tokens={depth}, and list that too."
            )
        try:
            if self.strategy == "ema":
                return by_acceptance(steps, **options)
            return by_throughput(steps, max_num_seqs, **options)
        except ValueError as error:
            raise ValueError(f"adaptive: {error}") from None

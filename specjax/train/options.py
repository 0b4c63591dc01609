"""The options of a training run: one frozen dataclass, validated once."""

import json
from dataclasses import asdict, dataclass, fields

from specjax.models.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Options that all training runs share.

    Exactly one of ``steps`` and ``minutes`` is given; minutes become steps once, from a
    measurement at the start, and the run remembers the steps.
    """

    out: str
    steps: int | None = None
    minutes: float | None = None
    learning_rate: float = 3e-3  # at the end of the warm-up
    weight_decay: float = 0.1  # on matrices; not on embeddings, LM heads, norms, biases
    clip_norm: float = 1.0
    optimizer: str = "muon"  # for the matrices; "adamw" for all, at less than half the time
    seed: int = 0
    eval_every: int = 100  # steps between held-out losses, each with a checkpoint

    def __post_init__(self):
        if self.optimizer not in ("muon", "adamw"):
            raise ValueError(f"optimizer must be muon or adamw, got {self.optimizer!r}")
        if self.eval_every < 1:
            raise ValueError(f"eval_every must be at least 1, got {self.eval_every}")
        if (self.steps is None) == (self.minutes is None):
            raise ValueError(
                f"need one of steps and minutes, got steps={self.steps} and minutes={self.minutes}"
            )
        for name in ("steps", "minutes", "learning_rate", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be in 0 .. 2**63 - 1, got {self.seed}")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(RunConfig):
    """Options of training a Qwen3-architecture decoder on Python source.

    ``teacher`` is a Hugging Face folder to distil from, ``tokenizer`` one whose tokenizer.json
    is reused (a teacher's is taken by itself), ``source`` a folder of .py files (None: the
    standard library).
    """

    num_layers: int = 4
    hidden_size: int = 192
    intermediate_size: int = 352
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 32
    vocab_size: int = 2048
    max_position_embeddings: int = 2048
    context: int = 256  # tokens per sequence
    batch: int = 16  # sequences per step
    teacher: str | None = None
    teacher_weight: float = 0.9  # of the divergence from the teacher; the rest is the text's
    tokenizer: str | None = None
    source: str | None = None

    def __post_init__(self):
        super().__post_init__()
        for name in ("context", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.teacher_weight <= 1:
            raise ValueError(f"need 0 <= teacher_weight <= 1, got {self.teacher_weight}")
        if not 257 <= self.vocab_size <= 65536:
            raise ValueError(
                f"vocab_size must hold 256 bytes and one special token and fit 16 bits "
                f"(257 to 65536), got {self.vocab_size}"
            )
        if self.context > self.max_position_embeddings:
            raise ValueError(
                f"context {self.context} is beyond max_position_embeddings "
                f"{self.max_position_embeddings}"
            )
        model_config(self)  # its own checks


def model_config(config: TrainConfig) -> ModelConfig:
    """Return the config of the decoder to train: Qwen3's, float32, tied embeddings."""
    return ModelConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        qk_norm=True,
        tie_word_embeddings=True,
        dtype="float32",
    )


def differences(stored: dict, config: RunConfig) -> list[str]:
    """Return where a stored run differs, as "field: stored -> given"; ``out`` is ignored."""
    asked = json.loads(json.dumps(asdict(config)))  # as a stored run reads: tuples are lists
    names = [field.name for field in fields(config) if field.name != "out"]
    return [
        f"{name}: {stored.get(name)!r} -> {asked[name]!r}"
        for name in names
        if stored.get(name) != asked[name]
    ]

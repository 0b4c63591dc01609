"""Facts about a decoder, as one frozen record that everything else is built from."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """Llama 3.1's frequency-dependent RoPE scaling (``rope_type: "llama3"``)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self):
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ValueError(f"need 0 < low_freq_factor < high_freq_factor, got {self}")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer. Llama, Mistral, Qwen2, Qwen3 and OPT are values of it."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-6
    positions: Literal["rope", "learned"] = "rope"
    rope_theta: float = 10000.0
    rope_scaling: Llama3Scaling | None = None
    position_offset: int = 0  # OPT's learned positions start at row 2
    mlp: Literal["swiglu", "relu"] = "swiglu"
    qkv_bias: bool = False
    output_bias: bool = False  # the attention's output projection
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_word_embeddings: bool = False
    dtype: str = "float32"  # of weights, activations and cache

    def __post_init__(self):
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads")
        for name in (*sizes, "num_kv_heads", "head_dim", "max_position_embeddings"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.positions == "rope" and self.head_dim % 2:
            raise ValueError(f"RoPE needs an even head_dim, got {self.head_dim}")


@dataclass(frozen=True, kw_only=True)
class FeatureConfig:
    """A head that extrapolates the target's features: EAGLE, EAGLE-3 or an MTP layer."""

    kind: Literal["eagle", "eagle3", "mtp"]
    block: ModelConfig  # of its transformer blocks; vocab_size is the target's
    target_size: int  # of the hidden states it is given
    hidden_first: bool = False  # [hidden ; embedding] enters, as in MiMo, not the other way round
    taps: tuple[int, ...] = ()  # the target's layers it is given in place of its hidden states
    draft_vocab_size: int | None = None  # EAGLE-3's own, where it is smaller
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False


@dataclass(frozen=True, kw_only=True)
class MedusaConfig:
    """Medusa: heads that each name one of the next tokens."""

    num_heads: int
    num_layers: int  # residual layers per head
    hidden_size: int
    vocab_size: int
    bias: bool = False
    shared_head: bool = False  # one LM head for all, the target's if it brings none
    dtype: str = "float32"


@dataclass(frozen=True, kw_only=True)
class SpeculatorConfig:
    """IBM's MLP speculator: a recurrent network over (state, token)."""

    num_stages: int
    hidden_size: int  # of the target
    inner_size: int
    vocab_size: int
    tied: bool = False  # stages share their weights, the first projection aside
    scale_input: bool = False
    dtype: str = "float32"

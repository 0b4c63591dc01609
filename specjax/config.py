"""Facts about a decoder, as one frozen record that everything else is built from."""

from dataclasses import dataclass
from typing import Literal

HEAD_METHODS = ("eagle", "eagle3", "mtp", "medusa", "mlp_speculator")


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
class Yarn:
    """YaRN's RoPE scaling (Peng et al. 2023, arXiv:2309.00071; ``rope_type: "yarn"``)."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0  # DeepSeek's: of all features, not only the turned ones

    def __post_init__(self):
        if self.factor < 1 or not 0 < self.beta_slow < self.beta_fast:
            raise ValueError(f"need factor >= 1 and 0 < beta_slow < beta_fast, got {self}")


@dataclass(frozen=True, kw_only=True)
class Latent:
    """DeepSeek's latent attention: keys and values of all heads come from one cached vector."""

    kv_lora_rank: int
    q_lora_rank: int | None  # None: queries come straight from the stream
    qk_nope_head_dim: int  # of a head's query and key: features without a position
    qk_rope_head_dim: int  # and with one, shared by all keys
    v_head_dim: int

    def __post_init__(self):
        if any(value is not None and value < 1 for value in vars(self).values()):
            raise ValueError(f"sizes of latent attention must be at least 1, got {self}")


@dataclass(frozen=True, kw_only=True)
class Experts:
    """DeepSeek-V3's mixture of experts, in every layer from ``first_k_dense_replace`` on."""

    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int  # of one expert
    n_group: int
    topk_group: int  # of a token's groups
    norm_topk_prob: bool
    routed_scaling_factor: float
    first_k_dense_replace: int

    def __post_init__(self):
        each, rest = divmod(self.n_routed_experts, max(self.n_group, 1))
        if rest or each < 2 or not 1 <= self.topk_group <= self.n_group:
            raise ValueError(f"experts need n_group equal groups of at least 2, got {self}")
        if not 1 <= self.num_experts_per_tok <= self.topk_group * each:
            raise ValueError(f"num_experts_per_tok is not within the chosen groups: {self}")
        if min(self.n_shared_experts, self.moe_intermediate_size) < 1:
            raise ValueError(f"experts need n_shared_experts and sizes of at least 1, got {self}")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer. Llama, Mistral, Qwen, OPT and DeepSeek are values of it."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int  # with latent attention: of the part that RoPE turns
    max_position_embeddings: int
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-6
    positions: Literal["rope", "learned"] = "rope"
    rope_theta: float = 10000.0
    rope_scaling: Llama3Scaling | Yarn | None = None
    position_offset: int = 0  # OPT's learned positions start at row 2
    mlp: Literal["swiglu", "relu"] = "swiglu"
    qkv_bias: bool = False
    output_bias: bool = False  # the attention's output projection
    mlp_bias: bool = False
    qk_norm: bool = False
    latent: Latent | None = None
    experts: Experts | None = None
    tie_word_embeddings: bool = False
    dtype: str = "float32"  # of activations and cache, and of weights unless a file's is kept
    cache_dtype: str | None = None  # other than dtype: "uint16" is bfloat16 by its bits
    joined: bool = False  # queries, keys and values as one matrix, gate and up as one

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
    draft_vocab_size: int | None = None  # of the tokens it can name, where these are fewer
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

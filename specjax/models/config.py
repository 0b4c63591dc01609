"""Configs of decoders and drafting heads, from which ``models.build`` builds functions."""

from dataclasses import dataclass, replace
from typing import Any, Literal

HEAD_METHODS = ("eagle", "eagle3", "mtp", "medusa", "mlp_speculator", "dflash", "dspark")
HEAD_KINDS = (*HEAD_METHODS, "peagle")  # which vLLM calls "eagle3" with parallel_drafting


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
    mscale_all_dim: float = 0.0  # DeepSeek's: of all features, not only the rotated ones
    truncate: bool = True  # the bounds between scaled and plain pairs are whole numbers

    def __post_init__(self):
        if self.factor < 1 or not 0 < self.beta_slow < self.beta_fast:
            raise ValueError(f"need factor >= 1 and 0 < beta_slow < beta_fast, got {self}")


@dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """RoPE at positions divided by ``factor`` (``rope_type: "linear"``)."""

    factor: float

    def __post_init__(self):
        if self.factor <= 0:
            raise ValueError(f"need factor > 0, got {self}")


@dataclass(frozen=True, kw_only=True)
class LongRope:
    """LongRoPE (Ding et al. 2024, arXiv:2402.13753): each pair's speed has a divisor of its own."""

    divisors: tuple[float, ...]  # of each pair: the short or the long ones, for a whole run
    attention_factor: float  # of cosines and sines

    def __post_init__(self):
        if min(self.divisors, default=0.0) <= 0:
            raise ValueError(f"need a divisor > 0 for each pair, got {self}")


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864)."""

    theta: float = 10000.0
    dim: int | None = None  # how many of a head's features are turned, the first ones; None: all
    paired: bool = False  # a pair is two neighbours; otherwise one feature of each half
    scaling: Llama3Scaling | Yarn | LinearScaling | LongRope | None = None

    def __post_init__(self):
        if self.theta <= 0:
            raise ValueError(f"RoPE needs theta > 0, got {self.theta}")
        if self.dim is not None and (self.dim < 2 or self.dim % 2):
            raise ValueError(f"RoPE turns an even number of features, at least 2, got {self.dim}")


@dataclass(frozen=True, kw_only=True)
class Delta:
    """The gated delta net (arXiv:2412.06464), whose layers have a recurrent state."""

    num_key_heads: int  # of queries too
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int  # how many inputs its convolution sees
    merged: bool = False  # one input projection, ordered by key head, as Qwen3-Next's

    def __post_init__(self):
        heads = self.num_value_heads, self.num_key_heads
        if min(*heads, self.key_head_dim, self.value_head_dim) < 1 or heads[0] % heads[1]:
            raise ValueError(f"delta net needs num_value_heads = n * num_key_heads, got {self}")
        if self.conv_kernel < 2:
            raise ValueError(f"delta net needs conv_kernel >= 2, got {self.conv_kernel}")

    @property
    def key_size(self) -> int:
        """The keys' features, of all heads."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_size(self) -> int:
        """The values' features, of all heads."""
        return self.num_value_heads * self.value_head_dim

    @property
    def channels(self) -> int:
        """The convolution's channels: queries, keys and values."""
        return 2 * self.key_size + self.value_size


@dataclass(frozen=True, kw_only=True)
class QueryScale:
    """Llama 4's: queries at position p are times 1 + scale * ln(1 + floor((p + 1) / every))."""

    scale: float
    every: int  # positions

    def __post_init__(self):
        if self.every < 1:
            raise ValueError(f"floor_scale must be at least 1, got {self.every}")


@dataclass(frozen=True, kw_only=True)
class AttentionKind:
    """What layers of one kind see, and how they turn queries and keys."""

    window: int | None = None  # the last positions that a token sees, itself included
    chunked: bool = False  # of these, those from the last multiple of ``window`` on
    rope: Rope | None = None  # None: positions are not turned
    query_scale: QueryScale | None = None
    delta: Delta | None = None  # a recurrent state instead of keys and values

    def __post_init__(self):
        if self.window is not None and self.window < 1:
            raise ValueError(f"a sliding window needs at least 1 position, got {self.window}")
        if self.chunked and self.window is None:
            raise ValueError("chunked attention needs a window: the size of a chunk")


@dataclass(frozen=True, kw_only=True)
class Indexer:
    """DeepSeek-V3.2's lightning indexer: it chooses the positions that a token attends to."""

    num_heads: int
    head_dim: int
    top_k: int  # positions per token; a shorter text is seen whole

    def __post_init__(self):
        if min(vars(self).values()) < 1:
            raise ValueError(f"sizes of an indexer must be at least 1, got {self}")


@dataclass(frozen=True, kw_only=True)
class Latent:
    """DeepSeek's multi-head latent attention: all keys and values come from one cached vector."""

    kv_lora_rank: int
    q_lora_rank: int | None  # None: queries are not low-rank
    qk_nope_head_dim: int  # of a head's query and key: features without RoPE
    qk_rope_head_dim: int  # and with RoPE, shared by the keys of all heads
    v_head_dim: int
    indexer: Indexer | None = None  # None: a token attends to all positions

    def __post_init__(self):
        sizes = (value for name, value in vars(self).items() if name != "indexer")
        if any(value is not None and value < 1 for value in sizes):
            raise ValueError(f"sizes of latent attention must be at least 1, got {self}")
        if self.indexer is None:
            return
        if self.q_lora_rank is None or self.indexer.head_dim < self.qk_rope_head_dim:
            raise ValueError(
                f"an indexer needs q_lora_rank and head_dim >= qk_rope_head_dim, got {self}"
            )


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture of experts: how a token's are chosen, what they compute, which layers have them."""

    n_routed_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int  # of one expert
    layers: tuple[bool, ...] = ()  # which are mixtures; empty: all
    scores: Literal["softmax", "sigmoid"] = "softmax"  # of the router's logits
    router_bias: bool = False
    correction_bias: bool = False  # is added to the scores to choose, not to weigh
    n_group: int = 1
    topk_group: int = 1  # of a token's groups
    norm_topk_prob: bool = True
    weigh_inputs: bool = False  # the weights multiply the experts' inputs, not their outputs
    routed_scaling_factor: float = 1.0
    bias: bool = False  # of the experts' matrices
    n_shared_experts: int = 0
    shared_size: int | None = None  # of them together; None: as many experts' sizes
    shared_gate: bool = False  # a token's shared output has a weight of its own

    def __post_init__(self):
        each, rest = divmod(self.n_routed_experts, max(self.n_group, 1))
        if rest or each < 2 or not 1 <= self.topk_group <= self.n_group:
            raise ValueError(f"experts need n_group equal groups of at least 2, got {self}")
        if not 1 <= self.num_experts_per_tok <= self.topk_group * each:
            raise ValueError(f"num_experts_per_tok is not within the chosen groups: {self}")
        sizes = self.moe_intermediate_size, 1 if self.shared_size is None else self.shared_size
        if self.n_shared_experts < 0 or min(sizes) < 1:
            raise ValueError(f"experts need n_shared_experts >= 0 and sizes >= 1, got {self}")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer, as facts: ``specjax.weights.hf_facts`` names the architectures.

    ``layers`` says what each layer's attention sees where they differ; empty: all see all positions
    and are turned by ``rope``.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int  # with latent attention: of the part with RoPE
    max_position_embeddings: int
    names: str = "llama"  # of a checkpoint's tensors: a table of ``weights.names``
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-6
    norm_offset: float = 0.0  # is added to the norms' weights (Gemma-3: 1)
    sandwich: bool = False  # attention's and MLP's outputs are normalised too
    positions: Literal["rope", "learned"] = "rope"
    rope: Rope = Rope()
    layers: tuple[AttentionKind, ...] = ()
    position_offset: int = 0  # OPT's learned positions start at row 2
    embed_scale: float = 1.0
    attention_scale: float | None = None  # of queries times keys; None: head_dim ** -0.5
    logit_cap: float | None = None  # c: logits are c * tanh(logits / c)
    mlp: Literal["swiglu", "geglu", "clipped", "relu"] = "swiglu"  # ops.ACTIVATIONS
    qkv_bias: bool = False
    output_bias: bool = False  # the attention's output projection
    mlp_bias: bool = False
    qk_norm: bool = False
    qk_norm_last: bool = False  # after RoPE, and only where there is RoPE
    qk_norm_weight: bool = True  # False: queries and keys are only divided by their size
    sinks: bool = False  # a learned score per head joins each softmax
    output_gate: bool = False  # each query head has a gate of its output
    latent: Latent | None = None
    experts: Experts | None = None
    expert_axes: tuple[tuple[str, int], ...] = ()  # a mesh's, over which experts are dealt out
    tie_word_embeddings: bool = False
    dtype: str = "float32"  # of activations and cache, and of weights unless a file's is kept
    cache_dtype: str | None = None  # None: dtype; "uint16": bfloat16, held as its bits
    joined: bool = False  # merged QKV and gate-up projections, as in vLLM

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
        for name, facts in (("layers", self.layers), ("experts.layers", self.mixtures)):
            if facts and len(facts) != self.num_layers:
                raise ValueError(f"{name} names {len(facts)} of num_layers {self.num_layers}")
        if self.layers and all(kind.delta is not None for kind in self.layers):
            raise ValueError("at least one of layers needs attention: all have a recurrent state")

    @property
    def mixtures(self) -> tuple[bool, ...]:
        """Which layers are mixtures of experts; empty: none, or all."""
        return () if self.experts is None else self.experts.layers

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer is a mixture of experts."""
        return self.experts is not None and (not self.mixtures or self.mixtures[layer])

    def kind(self, layer: int) -> AttentionKind:
        """Return what a layer's attention sees."""
        if self.layers:
            return self.layers[layer]
        return AttentionKind(rope=self.rope if self.positions == "rope" else None)

    @property
    def recurrent(self) -> bool:
        """Whether a layer has a recurrent state."""
        return any(kind.delta is not None for kind in self.layers)

    def block(self, layer: int, **changes: Any) -> "ModelConfig":
        """Return the config of one layer by itself, as an MTP layer's block is one."""
        mixed, experts = self.has_experts(layer), self.experts
        return replace(
            self,
            num_layers=1,
            layers=(self.kind(layer),) if self.layers else (),
            experts=replace(experts, layers=()) if experts is not None and mixed else None,
            **changes,
        )


@dataclass(frozen=True, kw_only=True)
class FeatureConfig:
    """A head that predicts the target's features: EAGLE, EAGLE-3 or an MTP layer."""

    kind: Literal["eagle", "eagle3", "mtp"]
    block: ModelConfig  # of its transformer blocks; vocab_size is the target's
    target_size: int  # the target's hidden size
    hidden_first: bool = False  # reads [hidden ; embedding], as MiMo's, not [embedding ; hidden]
    mask_first: bool = True  # of an MTP layer: the embedding at position 0 is zeros
    taps: tuple[int, ...] = ()  # the target's layers it reads instead of the last hidden states
    draft_vocab_size: int | None = None  # EAGLE-3's, where it is smaller than the target's
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    mask_token_id: int | None = None  # P-EAGLE's: stands for a token that is to be drafted

    def __post_init__(self):
        if self.mask_token_id is not None:
            check_mask(self.mask_token_id, self.block.vocab_size)


def check_mask(token: int, vocab_size: int) -> None:
    """Raise ValueError for a mask token that the vocabulary does not have."""
    if not 0 <= token < vocab_size:
        raise ValueError(f"mask_token_id={token} is no token: the vocabulary has {vocab_size}")


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """A head that drafts a block of tokens in one pass: DFlash, or DSpark with a Markov head."""

    kind: Literal["dflash", "dspark"]
    block: ModelConfig  # of its layers; vocab_size is the target's
    target_size: int  # the target's hidden size
    taps: tuple[int, ...]  # the target's layers it reads
    mask_token_id: int  # stands for a token that is to be drafted
    causal: tuple[bool, ...]  # of each layer: a token of the block attends to no later one
    sliding_windows: tuple[int | None, ...]  # of each layer; None: attention to everything
    draft_vocab_size: int | None = None  # where it is smaller than the target's
    sample_from_anchor: bool = False  # DSpark's: the root's output is the first draft token
    markov_rank: int = 0  # of the bias that the token before adds; 0: none
    confidence: Literal["none", "hidden", "markov"] = "none"  # what the confidence head reads
    mask_embedding: bool = False  # the mask has an embedding of its own, beside the vocabulary's

    def __post_init__(self):
        check_mask(self.mask_token_id, self.block.vocab_size)
        if self.confidence == "markov" and not self.markov_rank:
            raise ValueError("confidence_head_with_markov needs a markov_rank above 0")
        if any(window is not None and window < 1 for window in self.sliding_windows):
            raise ValueError(f"sliding windows must be at least 1, got {self.sliding_windows}")


WITH_LAYERS = (FeatureConfig, BlockConfig)  # heads with transformer layers and a cache


@dataclass(frozen=True, kw_only=True)
class MedusaConfig:
    """Medusa: each head predicts one of the next tokens."""

    num_heads: int
    num_layers: int  # residual layers per head
    hidden_size: int
    vocab_size: int
    bias: bool = False
    shared_head: bool = False  # one LM head for all; the target's if the checkpoint has none
    draft_vocab_size: int | None = None  # where it is smaller than the target's
    dtype: str = "float32"


@dataclass(frozen=True, kw_only=True)
class SpeculatorConfig:
    """IBM's MLP speculator (arXiv:2404.19124): a recurrent network over (state, token)."""

    num_stages: int
    hidden_size: int  # of the target
    inner_size: int
    vocab_size: int
    tied: bool = False  # stages share their weights except the first projection
    scale_input: bool = False
    dtype: str = "float32"


@dataclass(frozen=True, kw_only=True)
class LstmConfig:
    """Arctic's LSTM speculator: an LSTM over drafted tokens, whose first state is the target's."""

    num_stages: int  # the most tokens that it drafts
    n_predict: int  # how many it was trained to draft, which sets an embedding's weight
    hidden_size: int  # of the target
    inner_size: int
    vocab_size: int
    scale_input: bool = False
    dtype: str = "float32"

"""The options of training a head, and the config of the head they describe."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from specjax.models.build import HeadConfig, most_drafted
from specjax.models.config import (
    HEAD_KINDS,
    BlockConfig,
    FeatureConfig,
    LstmConfig,
    MedusaConfig,
    ModelConfig,
    SpeculatorConfig,
)
from specjax.train.features import SourceConfig
from specjax.train.options import RunConfig
from specjax.weights.head_configs import SIZES

REDUCED = ("eagle3", "peagle", "dflash", "dspark")  # may have a vocabulary of their own
LOSSES = ("kl", "cross_entropy", "tv", "lk", "lk_hybrid", "feature")
KINDS = (*HEAD_KINDS, "pard")  # what is trained so


@dataclass(frozen=True, kw_only=True)
class HeadTrainConfig(RunConfig):
    """Options of training a head on a target's hidden states, or a draft model with masks (PARD).

    ``losses`` are weights by name: "kl" (from the target's distribution), "cross_entropy" (of the
    text), "tv" (1 - the chance of acceptance), "lk" (minus its logarithm), "lk_hybrid" (kl, and tv
    where much is accepted) and "feature" (EAGLE's regression).
    """

    kind: str
    source: SourceConfig
    losses: dict[str, float] = field(default_factory=lambda: {"kl": 1.0})
    unroll: int = 4  # tokens drafted ahead in training; of medusa and mlp_speculator, ever
    decay: float = 0.8  # weight of each drafted position, in that of the one before
    intermediate_size: int | None = None  # of eagle's, eagle3's and mtp's block; None: the target's
    num_heads: int | None = None  # likewise
    num_kv_heads: int | None = None
    draft_vocab_size: int | None = None  # eagle3's own, of the most frequent tokens
    num_layers: int = 2  # of dflash, dspark and peagle; residual ones of a Medusa head
    mask_token_id: int = 0  # of the same three, and pard: stands for a token to be drafted
    markov_rank: int = 64  # of dspark's Markov head
    start: str | None = None  # folder of such a head (pard: a draft model), to go on from there
    first_batch: int = 0  # of the source; the next follow, then all again
    learning_rate: float = 4e-3

    def __post_init__(self):
        super().__post_init__()
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind of head {self.kind!r}: use one of {', '.join(KINDS)}")
        for name, weight in self.losses.items():
            if name not in LOSSES:
                raise ValueError(f"unknown loss {name!r}: use one of {', '.join(LOSSES)}")
            if not weight >= 0:
                raise ValueError(f"the weight of loss {name!r} must not be negative, got {weight}")
        if not sum(self.losses.values()) > 0:
            raise ValueError(f"some loss needs a weight above 0, got {self.losses}")
        if self.losses.get("feature") and self.kind != "eagle":
            raise ValueError(f"loss 'feature' is eagle's: a {self.kind} head rebuilds no feature")
        if not 1 <= self.unroll < self.source.context - 1:
            raise ValueError(f"unroll must be in 1 .. context - 2, got {self.unroll}")
        if not 0 < self.decay <= 1:
            raise ValueError(f"need 0 < decay <= 1, got {self.decay}")
        for name in ("num_layers", *SIZES):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.kind == "pard":
            self._check_draft_model()
        if self.draft_vocab_size is not None and self.kind not in REDUCED:
            raise ValueError(
                f"draft_vocab_size is for {', '.join(REDUCED)}: a {self.kind} head has the target's"
            )

    def _check_draft_model(self):
        if self.start is None:
            raise ValueError("pard trains a draft model on: name its folder with start (--start)")
        sizes = [name for name in SIZES if getattr(self, name) is not None]
        if sizes:
            raise ValueError(f"{sizes[0]}: a pard model has the sizes of the one it starts from")


def taps_of(kind: str, target: ModelConfig) -> tuple[int, ...]:
    """Return the target's layers that a head reads.

    vLLM's choice for EAGLE-3, for DFlash and DSpark the last one too, and MiMo's for MTP.
    """
    depth = target.num_layers
    if kind in ("eagle3", "peagle"):
        return tuple(sorted({2, depth // 2, depth - 3}))
    if kind in ("dflash", "dspark"):
        return tuple(sorted({2, depth // 2, depth - 3, depth}))
    return (depth,) if kind == "mtp" else ()


def check_taps(config: HeadTrainConfig, taps: tuple[int, ...]) -> None:
    """Raise ValueError where the source lacks the layers that a head taps."""
    if set(taps) - set(config.source.layers):
        raise ValueError(
            f"{config.kind} taps layers {list(taps)}, the source holds "
            f"{list(config.source.layers)}: extract with --layers"
        )


def unroll_of(folder: Path, found: HeadConfig, depth: int) -> int:
    """Return how many tokens ahead to train a head: ``depth``, or one for each of its stages.

    Raises ValueError for a head that is not trained here.
    """
    if isinstance(found, LstmConfig):
        raise ValueError(f"{folder} is Arctic's LSTM speculator, which is not trained here")
    return most_drafted(found) or depth


def check_start(config: HeadTrainConfig, folder: Path, found: HeadConfig) -> None:
    """Raise ValueError where the head that training starts from is not what the options ask for."""
    unroll = unroll_of(folder, found, config.unroll)
    asked = {name: getattr(config, name) for name in (*SIZES, "draft_vocab_size", "unroll")}
    theirs = {name: getattr(found, name, None) for name in asked} | {"unroll": unroll}
    if isinstance(found, FeatureConfig | BlockConfig):
        check_taps(config, found.taps)
        theirs |= {name: getattr(found.block, name) for name in SIZES}
    for name, value in asked.items():
        if value not in (None, theirs[name]):
            raise ValueError(
                f"{folder} holds another head: its {name} is {theirs[name]}, asked {value}"
            )


def head_config(config: HeadTrainConfig, target: ModelConfig) -> HeadConfig:
    """Return the config of the head to train, with the target's sizes unless given.

    Raises ValueError where the source lacks the layers that it taps, or a reduced vocabulary
    is none.
    """
    taps = taps_of(config.kind, target)
    check_taps(config, taps)
    size, vocab_size = target.hidden_size, target.vocab_size
    if config.kind == "medusa":
        return MedusaConfig(
            num_heads=config.unroll,
            num_layers=config.num_layers,
            hidden_size=size,
            vocab_size=vocab_size,
            shared_head=True,
        )
    if config.kind == "mlp_speculator":
        return SpeculatorConfig(
            num_stages=config.unroll,
            hidden_size=size,
            inner_size=size,
            vocab_size=vocab_size,
            tied=True,
            scale_input=True,
        )
    sizes = {name: getattr(config, name) for name in SIZES if getattr(config, name) is not None}
    if target.latent is not None:
        raise ValueError(
            f"a {config.kind} head has its target's kind of attention, and this target's is latent "
            "(MLA), which training does not write: train medusa or mlp"
        )
    block = dataclasses.replace(target, num_layers=1, **sizes)
    if config.kind == "mtp":
        return FeatureConfig(
            kind="mtp", block=block, target_size=size, hidden_first=True, taps=taps
        )
    rows = config.draft_vocab_size
    if rows is not None and not 0 < rows < vocab_size:
        raise ValueError(f"draft_vocab_size must be below the target's {vocab_size}, got {rows}")
    block = dataclasses.replace(block, tie_word_embeddings=False)
    if config.kind == "eagle":  # always Llama's
        llama = dataclasses.replace(block, qk_norm=False, qkv_bias=False)
        return FeatureConfig(kind="eagle", block=llama, target_size=size)
    if config.kind in ("dflash", "dspark"):
        return block_config(config, block, target, taps)
    at_once = config.kind == "peagle"
    if at_once:
        block = dataclasses.replace(block, num_layers=config.num_layers)
    return FeatureConfig(
        kind="eagle3",
        block=block,
        target_size=size,
        taps=taps,
        draft_vocab_size=rows,
        mask_token_id=config.mask_token_id if at_once else None,
    )


def block_config(
    config: HeadTrainConfig, block: ModelConfig, target: ModelConfig, taps: tuple[int, ...]
) -> BlockConfig:
    """Return the config of a DFlash or DSpark head: layers of Qwen3's kind, full attention."""
    number, dspark = config.num_layers, config.kind == "dspark"
    return BlockConfig(
        kind="dspark" if dspark else "dflash",
        block=dataclasses.replace(
            block, num_layers=number, qk_norm=True, qkv_bias=False, tie_word_embeddings=False
        ),
        target_size=target.hidden_size,
        taps=taps,
        mask_token_id=config.mask_token_id,
        causal=(False,) * number,
        sliding_windows=(None,) * number,
        draft_vocab_size=config.draft_vocab_size,
        sample_from_anchor=dspark,
        markov_rank=config.markov_rank if dspark else 0,
        confidence="markov" if dspark else "none",
    )

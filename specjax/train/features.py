"""What a head learns from: the target's hidden states, over text and over its own words.

A batch is ``batch`` windows of ``context`` tokens. The first ones are text; the last ``own``
the target continues by itself, since a head drafts what the target says, not what people
write. Batches are addressed by (seed, number), so that one computed as it is needed equals
one that was written to a shard before.

Shards: DIR/shards.json says how they were made (``SourceConfig``'s fields, the sha256 of the
target's weights, the hash of the data); DIR/{train,held_out}/00000.safetensors each hold one
batch: ``token_ids`` int32 [B, T + 1], ``hidden_states`` bfloat16 [B, T, D], which the LM head
reads, and ``taps`` bfloat16 [B, T, A, D], the residual stream after each of ``layers``.
"""

import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int
from safetensors.flax import load_file, save

from specjax.bundled import resolve
from specjax.cache import advance
from specjax.config import ModelConfig
from specjax.files import read_json_object, write_atomically, write_json
from specjax.models.build import build_target
from specjax.topology import causal
from specjax.train.batches import crop, measure
from specjax.train.data import fingerprint, load_corpus, read_documents
from specjax.train.log import say
from specjax.train.loop import read_text
from specjax.train.tokenizer import end_of_text, load_tokenizer
from specjax.types import PyTree, Target
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params

SIDES = ("train", "held_out")
WEIGHTS = "model.safetensors"


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """Which batches there are, and of which target."""

    target: str = "bundled"  # a Hugging Face folder
    layers: tuple[int, ...] = ()  # tapped: the residual stream after so many layers
    batch: int = 8  # windows per batch
    context: int = 256  # tokens per window
    own: int = 128  # of them, the last ones the target says by itself
    temperature: float = 0.5  # at which it says them; 0: its most likely tokens
    num_batches: int = 400
    num_held_out: int = 8  # batches
    seed: int = 0
    source: str | None = None  # folder of .py files; None: the standard library

    def __post_init__(self):
        for name in ("batch", "num_batches", "num_held_out"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.own < self.context:
            raise ValueError(f"need 0 <= own < context={self.context}, got {self.own}")
        if not self.temperature >= 0:
            raise ValueError(f"temperature must not be negative, got {self.temperature}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be in 0 .. 2**63 - 1, got {self.seed}")


class Features(NamedTuple):
    """One batch."""

    token_ids: Int[Array, "B T1"]
    hidden_states: Float[Array, "B T D"]  # of the first T tokens, bfloat16
    taps: Float[Array, "B T A D"]


class Source(NamedTuple):
    """Batches by number, of both sides, and the target they come from."""

    config: SourceConfig
    data: str  # a hash of the text and of how it is cut into tokens
    read: Callable  # (side, number) -> Features


def extract(
    target: Target, params: PyTree, tokens: Int[Array, "B T1"], key: Array, config: SourceConfig
) -> Features:
    """Read the first tokens as they are, and let the target say the ``own`` last ones anew."""
    length, own = config.context, config.own
    text = tokens[:, : length - own]
    output, cache = read_text(target, params, text, capacity=length)

    def choose(hidden, key):
        logits = target.logits(params, hidden)
        noise = jax.random.gumbel(key, logits.shape, jnp.float32)
        return jnp.argmax(logits + config.temperature * noise, axis=-1).astype(jnp.int32)

    def say_one(carry, key):
        cache, token = carry
        positions = cache.lengths[:, None]
        output, cache = target.forward(params, token, positions, causal(1), cache, length)
        cache = advance(cache, jnp.ones_like(cache.lengths))
        return (cache, choose(output.hidden, key)), (token, output)

    after, parts = tokens[:, -1:], [(text, output)]
    if own:
        keys = jax.random.split(key, own + 1)
        carry = cache, choose(output.hidden[:, -1:], keys[own])
        (_, after), said = lax.scan(say_one, carry, keys[:own])
        parts.append(jax.tree.map(lambda x: jnp.moveaxis(x[:, :, 0], 0, 1), said))
    text, output = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *parts)
    hidden, taps = (x.astype(jnp.bfloat16) for x in output)
    return Features(jnp.concatenate([text, after], axis=1), hidden, taps)


def open_source(config: SourceConfig, out: Path) -> Source:
    """Make the batches of a run as they are asked for; ``out`` keeps the text as tokens.

    Raises ValueError for a target, layers, or a context that do not go together.
    """
    folder = resolve(config.target)
    facts, _ = read_config(folder, dtype="float32")
    check_target(config, facts)
    say(f"reading Python files of {config.source or 'the standard library'}")
    documents = read_documents(config.source)
    tokenizer = load_tokenizer(folder, facts.vocab_size)
    say(f"tokenizing {len(documents)} files")
    out.mkdir(parents=True, exist_ok=True)
    corpus = load_corpus(documents, tokenizer, end_of_text(tokenizer), out / "corpus.npz")
    held_out = measure(corpus.held_out, config.batch, config.context, config.num_held_out)
    target, params = build_target(facts, config.layers), load_params(folder, facts)
    run = jax.jit(functools.partial(extract, target, config=config))

    def read(side: str, number: int) -> Features:
        if side == "held_out":
            tokens = held_out[number]
        else:
            tokens = crop(corpus.train, config.seed, number, config.batch, config.context)
        key = jax.random.fold_in(jax.random.key(config.seed), 2 * number + SIDES.index(side))
        return run(params, tokens, key)

    return Source(config, fingerprint(documents, tokenizer), read)


def check_target(config: SourceConfig, facts: ModelConfig) -> None:
    """Raise ValueError where the target has no such layer or no such positions."""
    if not all(0 <= layer <= facts.num_layers for layer in config.layers):
        raise ValueError(
            f"layers must be in 0 .. {facts.num_layers}, the target's; got {list(config.layers)}"
        )
    if config.context > facts.max_position_embeddings:
        raise ValueError(
            f"context {config.context} is beyond the target's {facts.max_position_embeddings}"
        )


def identity(config: SourceConfig) -> dict[str, Any]:
    """Say what shards were made of: the config and the sha256 of the target's weights."""
    weights = (resolve(config.target) / WEIGHTS).read_bytes()
    return {**asdict(config), "target_sha256": hashlib.sha256(weights).hexdigest()}


def write_shards(config: SourceConfig, folder: Path) -> int:
    """Write every batch of both sides, atomically each; return how many were still to do.

    Killed at any moment, the same call goes on. Raises ValueError if ``folder`` holds others.
    """
    described, path = json.loads(json.dumps(identity(config))), folder / "shards.json"
    source = open_source(config, folder)
    described["data"] = source.data
    if path.is_file() and read_json_object(path) != described:
        raise ValueError(f"{folder} holds other shards: choose another folder")
    write_json(path, described)
    written = 0
    for side, count in zip(SIDES, (config.num_batches, config.num_held_out), strict=True):
        for number in range(count):
            file = shard(folder, side, number)
            if not file.is_file():
                batch = source.read(side, number)
                with write_atomically(file) as handle:
                    handle.write(save(batch._asdict()))
                written += 1
                if written % 20 == 0:
                    say(f"{side} {number + 1}/{count}")
    return written


def shard(folder: Path, side: str, number: int) -> Path:
    """Name the file of one batch."""
    return folder / side / f"{number:05}.safetensors"


def open_shards(folder: Path) -> Source:
    """Read the batches that ``write_shards`` wrote.

    Raises ValueError for a folder without shards, with some missing, or of a target whose
    weights are others now.
    """
    path = folder / "shards.json"
    if not path.is_file():
        raise ValueError(f"{folder} holds no shards: write them with `specjax train shards`")
    told = read_json_object(path)
    data = told.pop("data", "")
    sha256 = told.pop("target_sha256", None)
    config = SourceConfig(**{**told, "layers": tuple(told["layers"])})
    if identity(config)["target_sha256"] != sha256:
        raise ValueError(f"{folder} was made of other weights than {config.target} has now")
    counts = zip(SIDES, (config.num_batches, config.num_held_out), strict=True)
    files = [shard(folder, side, i) for side, count in counts for i in range(count)]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise ValueError(
            f"{folder} lacks {len(missing)} of {len(files)} shards, the first {missing[0]}: "
            "run `specjax train shards` to its end"
        )

    def read(side: str, number: int) -> Features:
        return Features(**load_file(shard(folder, side, number)))

    return Source(config, data, read)

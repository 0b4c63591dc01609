"""Functions to lower on their own: the forward pass, a verification rule, and ``decode.judge``.

Each comes with example arguments, for reports, certificates and benchmarks; ``LLM`` lowers whole
rounds (``executor``).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from npu_bridge.executor import relay
from npu_bridge.lower import Program, lower
from npu_bridge.tensors import to_torch
from specjax.core import decode
from specjax.core.topology import causal, chain_parents
from specjax.core.types import RUNNING, Cache, Draft, Engine, PyTree, Rule, Sampling, Text
from specjax.models.build import build_target, shapes
from specjax.models.config import ModelConfig
from specjax.verify.noise import Noise
from specjax.verify.rejection import rejection
from specjax.verify.walk import walk

TARGETS = ("forward", "verify", "judge")
RULES = {"walk": walk, "rejection": rejection}


class Sizes(NamedTuple):
    """The shapes of a round."""

    batch_size: int = 1
    nodes: int = 4
    capacity: int = 256
    window: int = 256
    length: int | None = None  # committed tokens of every row; None: at random


class LoweringTarget(NamedTuple):
    """A function, arguments for it, and which of them are donated."""

    name: str
    function: Callable[..., Any]
    args: Sequence[Any]
    donate: tuple[int, ...]

    def lower(self, device: str = "cpu", plan: str | None = None, **options: Any) -> Program:
        """Return it as a program; the options are those of ``lower.lower``."""
        return lower(
            self.function, self.args, donate=self.donate, device=device, plan=plan,
            name=self.name, **options,
        )  # fmt: skip


class Round(NamedTuple):
    """Random example arguments of a round."""

    draft: Draft
    text: Text
    cache: Cache
    sampling: Sampling
    noise: Any
    logits: jax.Array


def example(config: ModelConfig, rule: Rule, sizes: Sizes, seed: int = 0) -> Round:
    """Return random arguments: rows of different lengths, normal keys and values, drafts from q."""
    rng = np.random.default_rng(seed)
    batch, nodes, capacity, window, length = sizes
    vocab_size, whole = config.vocab_size, min(window, capacity) - nodes
    drawn = rng.integers(2, whole + 1, batch) if length is None else np.full(batch, length)
    lengths = jnp.asarray(drawn, jnp.int32)
    cache = build_target(config).init_cache(batch, capacity)

    def fill(leaf):
        return jnp.asarray(rng.standard_normal(leaf.shape, np.float32)).astype(leaf.dtype)

    cache = Cache(jax.tree.map(fill, cache.layers), lengths - 1)
    tokens = jnp.asarray(rng.integers(0, vocab_size, (batch, capacity)), jnp.int32)
    ones, room = jnp.ones(batch, jnp.int32), capacity - nodes
    text = Text(tokens, ones, lengths, room * ones, RUNNING * ones)
    logits = rng.normal(0, 3, (batch, nodes, vocab_size)).astype(np.float32)
    q = np.exp(logits + rng.normal(0, 0.5, logits.shape))
    q = (q / q.sum(-1, keepdims=True)).astype(np.float32)
    drafted = np.stack(
        [[rng.choice(vocab_size, p=one / one.sum()) for one in row] for row in q.astype(float)]
    )
    root = np.take_along_axis(np.asarray(tokens), np.asarray(lengths)[:, None] - 1, 1)
    chain = jnp.asarray(np.concatenate([root, drafted[:, :-1]], 1), jnp.int32)
    probs = jnp.asarray(np.concatenate([np.zeros_like(q[:, :1]), q[:, :-1]], 1))
    draft = Draft(chain, chain_parents(batch, nodes), jnp.ones(chain.shape, bool), probs)
    stops = jnp.full((batch, 1), vocab_size, jnp.int32)
    sampling = Sampling(jnp.full(batch, 0.8, jnp.float32), nodes * ones, stops)
    uniform = jnp.asarray(rng.random((batch, nodes), np.float32))
    waiting = jnp.asarray(rng.exponential(size=logits.shape).astype(np.float32))
    noise: Any = Noise(uniform, waiting)
    if rule is walk:
        draft, noise = draft._replace(probs=None), -jnp.log(waiting)
    return Round(draft, text, cache, sampling, noise, jnp.asarray(logits))


def lowering_target(
    what: str, config: ModelConfig, sizes: Sizes, rule: str = "walk", weights: PyTree = None
) -> LoweringTarget:
    """Return a function of a target's round, and arguments for it.

    Args:
        what: "forward", "verify" or "judge".
        config: the target's.
        sizes: of the arguments.
        rule: "walk" or "rejection".
        weights: the target's; only their shapes by default.

    Raises:
        ValueError: there is no such function or rule.
    """
    if what not in TARGETS or rule not in RULES:
        raise ValueError(f"what={what!r} is one of {TARGETS} and rule={rule!r} of {tuple(RULES)}.")
    weights = shapes(config) if weights is None else weights
    nodes, depth = sizes.nodes, sizes.nodes - 1
    target, chosen = build_target(config), RULES[rule]
    draft, text, cache, sampling, noise, logits = example(config, chosen, sizes)

    def forward(params, tokens, cache):
        positions = cache.lengths[:, None] + jnp.arange(nodes)[None]
        seen = target.forward(params, tokens, positions, causal(nodes), cache, sizes.window)
        return target.logits(params, seen[0].hidden), *seen

    def chained(draft):
        return draft._replace(parents=chain_parents(sizes.batch_size, nodes))

    def verify(noise, draft, logits, text, sampling):
        return chosen.verify(noise, chained(draft), logits, text, sampling, depth)

    def judge(params, draft, text, cache, sampling, noise):
        engine = Engine(target, relay(depth, nodes), chosen, sizes.window)
        return decode.judge(engine, params, chained(draft), text, cache, sampling, noise)

    if what == "forward":
        return LoweringTarget(
            f"forward of {nodes} nodes", forward, (weights, draft.tokens, cache), (2,)
        )
    if what == "verify":
        args = (noise, draft, logits, text, sampling)
        return LoweringTarget(f"{rule} over {nodes} nodes", verify, args, ())
    args = (weights, draft, text, cache, sampling, noise)
    return LoweringTarget(f"judge of {nodes} nodes by {rule}", judge, args, (3,))


def on_device(args: Sequence[Any], plan: str, device: str = "cpu") -> Any:
    """Return copies on a device; for Ascend's plans caches are [B, T, KH, d] in memory."""

    def place(leaf):
        tensor = to_torch(leaf, device)
        return tensor.clone()

    def place_leaf(leaf):
        tensor = place(leaf)
        if plan.startswith("npu"):
            tensor = tensor.transpose(1, 2).contiguous().transpose(1, 2)
        return tensor

    def place_argument(arg):
        if isinstance(arg, Cache):
            lengths: Any = place(arg.lengths)
            return Cache(jax.tree.map(place_leaf, arg.layers), lengths)
        return jax.tree.map(place, arg)

    return tuple(map(place_argument, args))


def save(program: Program, one: LoweringTarget, file: Any) -> None:
    """Write a program's ``torch.export`` form to a binary file; its weights are arguments."""
    torch.export.save(program.export(*one.args), file)

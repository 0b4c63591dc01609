"""Propose a tree of tokens level by level, for every model that drafts autoregressively.

A forward pass reads the ``width`` nodes of a level at once; each attends to the text and its own
ancestors. A chain is the tree whose levels have one node. ``draft_sample_method``: "greedy"
proposes the most likely tokens; "coupled" the most likely ones under the same Gumbel noise that
the target will use, so that both tend to agree (drafter-invariant speculative decoding, Daliri,
Musco & Suresh 2025, arXiv:2408.07978); "probabilistic" samples from softmax(logits / T), siblings
without replacement (Gumbel top-k, Kool et al. 2019, arXiv:1903.06059), and returns these
probabilities for rejection sampling.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from specjax.core import sampling as s
from specjax.core.ops import log_softmax
from specjax.core.types import Draft, PyTree, Sampling, Text
from specjax.drafters.tree import Tree, candidates, lay_out

Body = Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]  # of a scan


class Frontier(NamedTuple):
    """The W nodes of one level that the model reads next."""

    tokens: Int[Array, "B W"]
    before: PyTree  # the outputs at their parents
    path: Int[Array, "B W K"]  # drafted tokens up to here, V past them
    visible: Bool[Array, "B W R"]  # attention to the drafter's last R slots, this level's included
    index: Int[Array, "B W"]  # among the candidates
    score: Float[Array, "B W"] | None  # log probability of the path, if the tree asks for it


class Children(NamedTuple):
    """The children of a frontier's nodes: C candidates for the tree."""

    tokens: Int[Array, "B C"]
    parents: Int[Array, "B C"]  # among the candidates
    scores: Float[Array, "B C"] | None
    probs: Float[Array, "B W V"] | None  # that the first child of each node was drawn from


@runtime_checkable
class ReadLevel(Protocol):
    """Run the draft model over one level of the tree."""

    def __call__(
        self, carry: PyTree, frontier: Frontier, level: Int[Array, ""] | int, /
    ) -> tuple[PyTree, PyTree]:
        """Return the carry, such as a cache, and the model's outputs [B, W, ...]."""
        ...


@runtime_checkable
class OutputLogits(Protocol):
    """Get the logits out of the model's outputs."""

    def __call__(self, outputs: PyTree, /) -> Float[Array, "B W V"]:
        """Return the logits of the token after each node."""
        ...


@runtime_checkable
class LogConfidence(Protocol):
    """Say how likely the best child of a node is to be accepted, where logits are not asked."""

    def __call__(self, outputs: PyTree, /) -> Float[Array, "B W"]:
        """Return the logarithm of that chance after each node."""
        ...


@runtime_checkable
class Scan(Protocol):
    """``jax.lax.scan``, or ``unrolled_scan``."""

    def __call__(self, f: Body, init: PyTree, xs: PyTree, /) -> tuple[PyTree, PyTree]:
        """Return the last carry and the stacked outputs."""
        ...


def grow(
    tree: Tree,
    carry: PyTree,
    root: PyTree,
    read: ReadLevel,
    logits: OutputLogits,
    text: Text,
    sampling: Sampling,
    keys: Key[Array, "B"],
    method: str,
    max_model_len: int,
    scan: Scan = lax.scan,
    confidence: LogConfidence | None = None,
) -> tuple[Draft, PyTree]:
    """Return a draft tree, and the carry after K - 1 forward passes over a level each.

    Args:
        tree: which nodes to draft.
        carry: the first argument of ``read``, such as a cache.
        root: the model's outputs [B, 1, ...] at the last committed token.
        read: runs the model over a level.
        logits: of outputs of the model.
        text: that the draft continues.
        sampling: used by the methods that sample.
        keys: one per row.
        method: ``draft_sample_method``, see above.
        max_model_len: nothing is proposed past it.
        scan: the loop over levels.
        confidence: of a chain; None: the probability of the most likely token.

    A dynamic tree scores the r-th child of a node by the r-th largest probability, not by that
    of its token. For "greedy" these are the same; for "probabilistic" exactness requires it:
    whether a node is kept must not depend on the token that was drawn for it. For the same reason
    ``min_confidence`` compares the score of a node's rank.
    """
    batch_size, width, rows = text.tokens.shape[0], tree.width, jnp.arange(text.tokens.shape[0])
    own = jnp.eye(width, dtype=bool)[None]
    if method == "probabilistic":
        # tokens that were drafted and not emitted can decide which are: which nodes of a dynamic
        # tree are kept, how many block verification accepts. So the next round must not draw from
        # their noise again, and the round's first index is part of its key
        keys = s.noise_keys(keys, text.lengths[:, None], s.PROPOSE)[:, 0]

    def expand_frontier(outputs, frontier: Frontier, level, chosen) -> tuple[Children, Frontier]:
        """Return the children of a frontier's nodes, and the best of them as the next frontier."""
        level_logits = logits(outputs)
        tokens, probs = pick(
            level_logits, frontier.path, level, text, sampling, keys, method, tree.top_k
        )
        flat = tokens.reshape(batch_size, -1)
        scores = None
        if frontier.score is not None:
            if confidence is None or tree.top_k > 1:
                gain, _ = lax.top_k(log_softmax(level_logits), tree.top_k)
            else:
                gain = confidence(outputs)[:, :, None]
            scores = (frontier.score[:, :, None] + jnp.minimum(gain, 0)).reshape(flat.shape)
            if tree.paths is None:
                chosen = lax.top_k(scores, width)[1]
        chosen = jnp.broadcast_to(chosen, (batch_size, width))
        at, came_from = (rows[:, None], chosen), (rows[:, None], chosen // tree.top_k)
        first = 1 + jnp.where(level == 0, 0, tree.top_k * (1 + (level - 1) * width))
        path = frontier.path[came_from].at[:, :, level].set(flat[at])
        shifted = frontier.visible[came_from][:, :, width:]
        following = Frontier(
            tokens=flat[at],
            before=jax.tree.map(lambda leaf: leaf[came_from], outputs),
            path=path,
            visible=jnp.concatenate(
                [shifted, jnp.broadcast_to(own, (batch_size, width, width))], axis=2
            ),
            index=first + chosen,
            score=None if scores is None else scores[at],
        )
        parents = frontier.index.repeat(tree.top_k, axis=1)
        return Children(flat, parents, scores, probs), following

    def extend(state, xs):
        (carry, frontier), (level, chosen) = state, xs
        carry, outputs = read(carry, frontier, level)
        children, frontier = expand_frontier(outputs, frontier, level, chosen)
        return (carry, frontier), children

    nothing = jnp.zeros((batch_size, 1), jnp.int32)
    seed = Frontier(
        tokens=jnp.take_along_axis(text.tokens, text.lengths[:, None] - 1, axis=1),
        before=None,
        path=jnp.full((batch_size, 1, tree.depth), jnp.iinfo(jnp.int32).max),
        visible=jnp.ones((batch_size, 1, tree.slots), bool),
        index=nothing,
        score=nothing.astype(jnp.float32) if tree.scored else None,
    )
    levels = jnp.zeros((tree.depth, width), int) if tree.paths is None else lay_out(tree).read
    children, frontier = expand_frontier(root, seed, 0, levels[0])
    if tree.depth > 1:
        xs = jnp.arange(1, tree.depth), jnp.asarray(levels[1:])
        (carry, _), deeper = scan(extend, (carry, frontier), xs)
        children = jax.tree.map(join, children, deeper)
    return prune(tree, seed.tokens, children, text, max_model_len), carry


def join(first: Array, deeper: Array) -> Array:
    """Return the first level's array followed by those of later levels, which are stacked."""
    batch_size = first.shape[0]
    deeper = deeper.swapaxes(0, 1).reshape(batch_size, -1, *first.shape[2:])
    return jnp.concatenate([first, deeper], axis=1)


def prune(
    tree: Tree, root: Int[Array, "B 1"], children: Children, text: Text, max_model_len: int
) -> Draft:
    """Return the tree's nodes out of all candidates: fixed ones, or those of the largest scores.

    A path's score is never above that of its beginning, and of equals ``top_k`` takes the first:
    so the ancestors of a node that is kept are kept.
    """
    known, batch_size = candidates(tree), root.shape[0]
    tokens = jnp.concatenate([root, children.tokens], axis=1)
    if tree.paths is not None:
        fixed = lay_out(tree)
        kept = jnp.broadcast_to(jnp.asarray(fixed.kept)[None], (batch_size, tree.num_nodes + 1))
        parents = jnp.broadcast_to(jnp.asarray(fixed.parents)[None], kept.shape)
    else:
        assert children.scores is not None
        best = jnp.sort(1 + lax.top_k(children.scores, tree.num_nodes)[1], axis=1)
        kept = jnp.concatenate([jnp.zeros_like(root), best], axis=1)
        above = jnp.concatenate([jnp.zeros_like(root), children.parents], axis=1)
        above = jnp.take_along_axis(above, kept, axis=1)
        parents = (kept[:, None] < above[:, :, None]).sum(axis=-1, dtype=jnp.int32)
    tokens = jnp.take_along_axis(tokens, kept, axis=1)
    level = jnp.asarray(known.level)[kept]
    valid = text.lengths[:, None] + level - 1 < max_model_len
    if tree.min_confidence > 0:
        assert children.scores is not None
        sure = jnp.pad(children.scores, [(0, 0), (1, 0)]) >= jnp.log(tree.min_confidence)
        valid &= jnp.take_along_axis(sure, kept, axis=1)
    valid |= level == 0
    probs = None
    if children.probs is not None:
        source = jnp.asarray(known.pass_index)[kept]
        probs = jnp.take_along_axis(children.probs, source[:, :, None], axis=1)
        probs = probs if tree.top_k == 1 else mask_prior_siblings(probs, tokens, parents)
        probs = probs.at[:, 0].set(0.0)
    return Draft(tokens, parents, valid, probs)


def pick(
    logits: Float[Array, "B W V"],
    path: Int[Array, "B W K"],
    level: Int[Array, ""] | int,
    text: Text,
    sampling: Sampling,
    keys: Key[Array, "B"],
    method: str,
    num: int,
) -> tuple[Int[Array, "B W num"], Float[Array, "B W V"] | None]:
    """Return ``num`` child tokens of each node of a level, best first, and their probabilities.

    ``path`` holds the drafted tokens up to each node, padded with V: penalties count them.

    The probabilities are None unless the method is "probabilistic"; then every node has noise of
    its own.
    """
    (_, width, vocab_size), probs = logits.shape, None
    position = text.lengths[:, None] + level
    if method == "coupled":
        noise = s.gumbel(keys, position, s.CHOOSE, sampling, vocab_size)
        logits = s.constrain(logits, jnp.minimum(path, vocab_size), text, sampling)
        logits = logits + sampling.temperature[:, None, None] * noise
    elif method == "probabilistic":
        probs = s.compute_probs(logits, sampling)
        noise = s.gumbel(keys, position, s.PROPOSE, sampling, width * vocab_size)
        logits = logits + sampling.temperature[:, None, None] * noise.reshape(logits.shape)
    if num == 1:
        return s.argmax(logits)[:, :, None], probs
    return lax.top_k(logits, num)[1].astype(jnp.int32), probs


def mask_prior_siblings(
    probs: Float[Array, "B N V"], tokens: Int[Array, "B N"], parents: Int[Array, "B N"]
) -> Float[Array, "B N V"]:
    """Return each node's distribution given the siblings before it: without their tokens.

    These get probability 0, and the rest is normalised. If nothing is left the node's own token is
    certain, however it was chosen: at temperature 0 every sibling but the first.
    """
    (batch_size, _, vocab_size), index = probs.shape, jnp.arange(probs.shape[1])
    prior = (parents[:, :, None] == parents[:, None]) & (index[None] < index[:, None])[None]
    taken = jnp.where(prior & (index > 0)[None, None], tokens[:, None], vocab_size)
    rows = jnp.arange(batch_size)[:, None, None]
    left = probs.at[rows, index[None, :, None], taken].set(0.0, mode="drop")
    mass = left.sum(axis=-1, keepdims=True)
    sure = jax.nn.one_hot(tokens, vocab_size, dtype=jnp.float32)
    return jnp.where(mass > 0, left / jnp.where(mass > 0, mass, 1.0), sure)


def unrolled_scan(body: Body, carry: PyTree, xs: Any) -> tuple[PyTree, PyTree]:
    """Loop as ``lax.scan`` does, in Python: the level, ``xs[0]`` from 1 on, is a static int."""
    outs = []
    for step in range(xs[1].shape[0]):
        carry, out = body(carry, (step + 1, xs[1][step]))
        outs.append(out)
    return carry, jax.tree.map(lambda *leaves: jnp.stack(leaves), *outs)


def level_positions(
    tree: Tree, frontier: Frontier, level: Int[Array, ""], lengths: Int[Array, "B"]
) -> tuple[Int[Array, "B W"], Int[Array, "B"]]:
    """Return a level's RoPE positions, and the cache lengths to pass to its forward pass.

    Level i is written to slots ``lengths`` + (i - 1) W and on. A forward pass writes to the last
    W of the R slots that ``visible`` covers, which follow the lengths it is given.
    """
    positions = jnp.broadcast_to(lengths[:, None] + level - 1, frontier.tokens.shape)
    return positions, lengths + level * tree.width - tree.slots

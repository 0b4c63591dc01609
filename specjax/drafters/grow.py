"""From logits to a tree of proposals, level by level: the same for every model that drafts.

The model reads the ``width`` nodes of a level at once, each of which sees the text and its own
ancestors; a chain is the tree whose levels are one node wide. ``draft_sample_method``: "greedy"
proposes the most likely tokens; "coupled" the most likely ones under the very noise the target
will use, so that both tend to choose alike (drafter-invariant speculative decoding, Daliri,
Musco & Suresh 2025); "probabilistic" samples from softmax(logits / T), siblings without
replacement (Gumbel top-k, Kool et al. 2019), and reports these laws for rejection sampling.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from specjax import sampling as s
from specjax.drafters.tree import Tree, candidates, lay_out
from specjax.ops import log_softmax
from specjax.types import Draft, PyTree, Text


class Front(NamedTuple):
    """W nodes of one level, about to be read."""

    tokens: Int[Array, "B W"]
    before: PyTree  # what reading their parents gave
    path: Int[Array, "B W K"]  # drafted tokens up to here, V past them
    visible: Bool[Array, "B W R"]  # of the drafter's last R slots, those read now included
    index: Int[Array, "B W"]  # among the candidates
    score: Float[Array, "B W"] | None  # log probability of the path


class Seen(NamedTuple):
    """The children of some nodes: candidates."""

    tokens: Int[Array, "B C"]
    parents: Int[Array, "B C"]  # among the candidates
    scores: Float[Array, "B C"] | None
    laws: Float[Array, "B W V"] | None  # of the first child of each node


def grow(
    tree: Tree,
    carry: PyTree,
    root: PyTree,
    read: Callable,
    logits: Callable,
    text: Text,
    sampling: s.Sampling,
    keys: Array,
    method: str,
    max_model_len: int,
    loop: Callable = lax.scan,
) -> tuple[Draft, PyTree]:
    """Propose a tree by K - 1 readings of a level each; return it and the last carry.

    ``read(carry, front, level)`` returns the carry and, for each node of the front, a pytree
    like ``root`` [B, 1, ...], what is known of the last committed token; ``logits`` makes
    [B, W, V] of it. Nothing is proposed at places the model cannot reach (``max_model_len``).

    A dynamic tree scores the r-th child of a node by the r-th largest probability, not by that
    of the token it got: the same for "greedy", and for "probabilistic" the condition of
    exactness. Whether a node is kept must not depend on what was drawn for it.
    """
    batch_size, width, rows = text.tokens.shape[0], tree.width, jnp.arange(text.tokens.shape[0])
    own = jnp.eye(width, dtype=bool)[None]
    if method == "probabilistic" and tree.paths is None:
        # what a round drew for places it never got to decided what it kept: not to be drawn again
        keys = s.address(keys, text.lengths[:, None], s.PROPOSE)[:, 0]

    def sprout(known, front: Front, level, chosen) -> tuple[Seen, Front]:
        """List the children of a front's nodes and make a front of the best of them."""
        said = logits(known)
        tokens, laws = pick(said, front.path, level, text, sampling, keys, method, tree.top_k)
        flat = tokens.reshape(batch_size, -1)
        scores = None
        if front.score is not None:
            gain, _ = lax.top_k(log_softmax(said), tree.top_k)
            scores = (front.score[:, :, None] + jnp.minimum(gain, 0)).reshape(flat.shape)
            chosen = lax.top_k(scores, width)[1]
        chosen = jnp.broadcast_to(chosen, (batch_size, width))
        at, came_from = (rows[:, None], chosen), (rows[:, None], chosen // tree.top_k)
        first = 1 + jnp.where(level == 0, 0, tree.top_k * (1 + (level - 1) * width))
        path = front.path[came_from].at[:, :, level].set(flat[at])
        shifted = front.visible[came_from][:, :, width:]
        following = Front(
            tokens=flat[at],
            before=jax.tree.map(lambda leaf: leaf[came_from], known),
            path=path,
            visible=jnp.concatenate(
                [shifted, jnp.broadcast_to(own, (batch_size, width, width))], axis=2
            ),
            index=first + chosen,
            score=None if scores is None else scores[at],
        )
        return Seen(flat, front.index.repeat(tree.top_k, axis=1), scores, laws), following

    def extend(state, told):
        (carry, front), (level, chosen) = state, told
        carry, known = read(carry, front, level)
        seen, front = sprout(known, front, level, chosen)
        return (carry, front), seen

    nothing = jnp.zeros((batch_size, 1), jnp.int32)
    seed = Front(
        tokens=jnp.take_along_axis(text.tokens, text.lengths[:, None] - 1, axis=1),
        before=None,
        path=jnp.full((batch_size, 1, tree.depth), jnp.iinfo(jnp.int32).max),
        visible=jnp.ones((batch_size, 1, tree.slots), bool),
        index=nothing,
        score=nothing.astype(jnp.float32) if tree.paths is None else None,
    )
    levels = jnp.zeros((tree.depth, width), int) if tree.paths is None else lay_out(tree).read
    seen, front = sprout(root, seed, 0, levels[0])
    if tree.depth > 1:
        told = jnp.arange(1, tree.depth), jnp.asarray(levels[1:])
        (carry, _), deeper = loop(extend, (carry, front), told)
        seen = jax.tree.map(join, seen, deeper)
    return prune(tree, seed.tokens, seen, text, max_model_len), carry


def join(first: Array, deeper: Array) -> Array:
    """Put what later levels gave, stacked, behind what the first did."""
    batch_size = first.shape[0]
    deeper = deeper.swapaxes(0, 1).reshape(batch_size, -1, *first.shape[2:])
    return jnp.concatenate([first, deeper], axis=1)


def prune(tree: Tree, root: Int[Array, "B 1"], seen: Seen, text: Text, max_model_len: int) -> Draft:
    """Keep the tree's nodes of all candidates.

    A path is never more likely than its beginning, and of equals ``top_k`` takes the first: so
    the ancestors of a node that is kept are kept.
    """
    known, batch_size = candidates(tree), root.shape[0]
    tokens = jnp.concatenate([root, seen.tokens], axis=1)
    if tree.paths is not None:
        fixed = lay_out(tree)
        kept = jnp.broadcast_to(jnp.asarray(fixed.kept)[None], (batch_size, tree.num_nodes + 1))
        parents = jnp.broadcast_to(jnp.asarray(fixed.parents)[None], kept.shape)
    else:
        assert seen.scores is not None
        best = jnp.sort(1 + lax.top_k(seen.scores, tree.num_nodes)[1], axis=1)
        kept = jnp.concatenate([jnp.zeros_like(root), best], axis=1)
        above = jnp.concatenate([jnp.zeros_like(root), seen.parents], axis=1)
        above = jnp.take_along_axis(above, kept, axis=1)
        parents = (kept[:, None] < above[:, :, None]).sum(axis=-1, dtype=jnp.int32)
    tokens = jnp.take_along_axis(tokens, kept, axis=1)
    level = jnp.asarray(known.level)[kept]
    valid = (text.lengths[:, None] + level - 1 < max_model_len) | (level == 0)
    probs = None
    if seen.laws is not None:
        source = jnp.asarray(known.seen_by)[kept]
        probs = jnp.take_along_axis(seen.laws, source[:, :, None], axis=1)
        probs = probs if tree.top_k == 1 else without_elders(probs, tokens, parents)
        probs = probs.at[:, 0].set(0.0)
    return Draft(tokens, parents, valid, probs)


def pick(
    logits: Float[Array, "B W V"],
    path: Int[Array, "B W K"],
    level: Int[Array, ""] | int,
    text: Text,
    sampling: s.Sampling,
    keys: Array,
    method: str,
    num: int,
) -> tuple[Int[Array, "B W num"], Float[Array, "B W V"] | None]:
    """Choose the children of each node, best first; return the law of the first, if it has one.

    Nodes that draw have noise of their own each.
    """
    (_, width, vocab_size), law = logits.shape, None
    position = text.lengths[:, None] + level
    if method == "coupled":
        noise = s.gumbel(keys, position, s.CHOOSE, sampling, vocab_size)
        logits = s.constrain(logits, jnp.minimum(path, vocab_size), text, sampling)
        logits = logits + sampling.temperature[:, None, None] * noise
    elif method == "probabilistic":
        law = s.law(logits, sampling)
        noise = s.gumbel(keys, position, s.PROPOSE, sampling, width * vocab_size)
        logits = logits + sampling.temperature[:, None, None] * noise.reshape(logits.shape)
    if num == 1:
        return s.likeliest(logits)[:, :, None], law
    return lax.top_k(logits, num)[1].astype(jnp.int32), law


def without_elders(
    laws: Float[Array, "B N V"], tokens: Int[Array, "B N"], parents: Int[Array, "B N"]
) -> Float[Array, "B N V"]:
    """Give each node its law among distinct siblings: without its elders' tokens, normalised.

    A token that they leave no probability is certain, however it was chosen: at temperature 0
    every sibling but the first.
    """
    (batch_size, _, vocab_size), index = laws.shape, jnp.arange(laws.shape[1])
    elder = (parents[:, :, None] == parents[:, None]) & (index[None] < index[:, None])[None]
    taken = jnp.where(elder & (index > 0)[None, None], tokens[:, None], vocab_size)
    rows = jnp.arange(batch_size)[:, None, None]
    left = laws.at[rows, index[None, :, None], taken].set(0.0, mode="drop")
    mass = left.sum(axis=-1, keepdims=True)
    sure = jax.nn.one_hot(tokens, vocab_size, dtype=jnp.float32)
    return jnp.where(mass > 0, left / jnp.where(mass > 0, mass, 1.0), sure)


def unrolled(body: Callable, carry: PyTree, told: Any) -> tuple[PyTree, PyTree]:
    """Loop as ``lax.scan`` does, for bodies that need to know the level: it is a number."""
    outs = []
    for step in range(told[1].shape[0]):
        carry, out = body(carry, (step + 1, told[1][step]))
        outs.append(out)
    return carry, jax.tree.map(lambda *leaves: jnp.stack(leaves), *outs)


def places(
    tree: Tree, front: Front, level: Int[Array, ""], lengths: Int[Array, "B"]
) -> tuple[Int[Array, "B W"], Int[Array, "B"]]:
    """Return a level's rotary positions, and the cache length a forward pass is to be told.

    Level i lies in slots ``lengths`` + (i - 1) W and on. A forward pass writes to the last
    W of the slots that ``visible`` covers, R of them behind the length it is told.
    """
    positions = jnp.broadcast_to(lengths[:, None] + level - 1, front.tokens.shape)
    return positions, lengths + level * tree.width - tree.slots

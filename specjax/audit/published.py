"""Published verifications that are exact and not shipped, as rules that the audit can enumerate.

They are for several drafts, take the tree's shape, and are unrolled over it.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax.core.types import Draft, Rule, Verdict
from specjax.verify.block import accept_block
from specjax.verify.noise import Noise, by_round, exponential_race
from specjax.verify.probs_rule import probs_rule
from specjax.verify.verdict import emit

Parents = tuple[int, ...]
HALVINGS = 30  # of the interval in which SpecTr's rho is searched


@functools.cache
def traversal(parents: Parents) -> Rule:
    """Return traversal verification: from the leaves to the root, whole paths are accepted.

    Weng et al. 2025 (arXiv:2505.12398). A node is kept with probability
    r = min(r_parent p / q, 1), its children first. When a child has been rejected, its parent's r
    becomes S / (S + 1 - r) with S = sum max(r p - q, 0), and its p norm(max(r p - q, 0)). Exact; on
    a chain it is block verification, on one level recursive rejection.
    """

    def kernel(noise: Noise, draft: Draft, target: Float[Array, "B N V"], depth: int) -> Verdict:
        probs = draft.probs
        assert probs is not None
        found, left = jnp.full(target.shape[0], -1), target[:, 0]

        def visit(node: int, kept: Float[Array, "B"]) -> None:
            nonlocal found, left
            p = target[:, node]
            for child in children(parents, node):
                q, valid = probs[:, child], draft.valid[:, child]
                ratio = of(p, draft, child) / jnp.maximum(of(q, draft, child), 2.0**-126)
                visit(child, jnp.where(valid, jnp.minimum(kept * ratio, 1.0), 0.0))
                rest = jnp.maximum(kept[:, None] * p - q, 0.0)
                mass = rest.sum(axis=-1)
                weight = mass + 1.0 - kept
                lost = valid & (mass > 0)
                p = jnp.where(lost[:, None], rest / jnp.where(lost, mass, 1.0)[:, None], p)
                kept = jnp.where(
                    valid & (weight > 0), mass / jnp.where(weight > 0, weight, 1.0), kept
                )
            accepted = noise.accept[:, node] < kept if node else jnp.ones_like(found, bool)
            here = (found < 0) & accepted
            left = jnp.where(here[:, None], p, left)
            found = jnp.where(here, node, found)

        visit(0, jnp.ones(target.shape[0]))
        return emit_path(parents, noise, draft, found, left, depth)

    return probs_rule(kernel, by_round)


@functools.cache
def k_sequential(parents: Parents) -> Rule:
    """Return SpecTr's k-sequential selection among siblings drawn with replacement.

    Sun et al. 2023 (arXiv:2310.15141, K-SEQ). Each of k siblings is accepted with
    probability min(1, p / (rho q)), and after k rejections p less what was accepted is left. With
    b = sum min(p / rho, q), rho solves 1 - (1 - b)^k = rho b. Exact.
    """

    def kernel(noise: Noise, draft: Draft, target: Float[Array, "B N V"], depth: int) -> Verdict:
        assert draft.probs is not None
        found = jnp.zeros(target.shape[0], jnp.int32)
        left, open_ = target[:, 0], jnp.ones_like(found, bool)
        for node in range(len(parents)):
            siblings = children(parents, node)
            if not siblings:
                continue
            reached, p, q = open_ & (found == node), target[:, node], draft.probs[:, siblings[0]]
            rho, given = solve_rho(p, q, len(siblings))
            taken = jnp.full_like(found, -1)
            for child in siblings:
                ratio = rho * of(q, draft, child)
                yes = (noise.accept[:, child] * ratio < of(p, draft, child)) & (taken < 0)
                taken = jnp.where(yes, child, taken)
            rest = jnp.maximum(p - given, 0.0)
            found = jnp.where(reached & (taken >= 0), taken, found)
            after = jnp.take_along_axis(target, found[:, None, None], axis=1)[:, 0]
            left = jnp.where(reached[:, None], jnp.where((taken < 0)[:, None], rest, after), left)
            open_ &= ~(reached & (taken < 0))
        return emit_path(parents, noise, draft, found, left, depth)

    return probs_rule(kernel, by_round)


def solve_rho(
    p: Float[Array, "B V"], q: Float[Array, "B V"], k: int
) -> tuple[Float[Array, "B"], Float[Array, "B V"]]:
    """Return SpecTr's rho, and with which probability each token is emitted as a draft."""

    def share(rho):
        return jnp.minimum(p / rho[:, None], q).sum(axis=-1)

    def halve(ends, _):
        low, high = ends
        middle = (low + high) / 2
        b = share(middle)
        enough = 1.0 - (1.0 - b) ** k <= middle * b
        return (jnp.where(enough, low, middle), jnp.where(enough, middle, high)), None

    ends = jnp.ones(p.shape[0]), jnp.full(p.shape[0], float(k))
    (_, rho), _ = jax.lax.scan(halve, ends, length=HALVINGS)
    b = share(rho)
    accepted = 1.0 - (1.0 - b) ** k
    scale = accepted / jnp.where(b > 0, b, 1.0)
    return rho, jnp.minimum(p / rho[:, None], q) * scale[:, None]


@functools.cache
def greedy_multi_path(parents: Parents) -> Rule:
    """Return greedy multi-path block verification, for paths drawn independently from one root.

    Thomas and Pal 2026 (arXiv:2602.16961). Paths are ordered token by token by p / q, and the
    highest of k is verified as a block against its own distribution, which ``of_the_highest``
    gives. Exact; on a chain it is block verification. Equal p / q are ordered by token here: the
    code that we read limits p / q to 1, which makes many equal, and takes the path drawn first.
    """
    ways = paths_of(parents)
    paths = jnp.asarray(ways, jnp.int32)

    def kernel(noise: Noise, draft: Draft, target: Float[Array, "B N V"], depth: int) -> Verdict:
        probs = draft.probs
        assert probs is not None
        rows = jnp.arange(target.shape[0])
        highest = jnp.ones((target.shape[0], len(ways)), bool)
        for level in range(1, depth + 1):
            ranks = jnp.stack([
                of(order(target[:, way[level - 1]], probs[:, way[level]]), draft, way[level])
                for way in ways
            ], axis=1)  # fmt: skip
            ranks = jnp.where(highest, ranks, -1)
            highest &= ranks == ranks.max(axis=1, keepdims=True)
        nodes = paths[highest.argmax(axis=1)]

        def along(values: Array) -> Array:
            return values[rows[:, None], nodes]

        line = jnp.broadcast_to(jnp.maximum(jnp.arange(depth + 1) - 1, 0), nodes.shape)
        chain = Draft(along(draft.tokens), line, along(draft.valid), along(probs))
        p = along(target)
        chain = chain._replace(probs=of_the_highest(len(ways), chain, p))
        verdict = accept_block(Noise(along(noise.accept), along(noise.recover)), chain, p, depth)
        return verdict._replace(path=jnp.take_along_axis(nodes, verdict.path, axis=1))

    return probs_rule(kernel, by_round)


def order(p: Float[Array, "B V"], q: Float[Array, "B V"]) -> Float[Array, "B V"]:
    """Return each token's place in the order of p / q, tokens that q never draws included."""
    ratio = jnp.where(q > 0, p / jnp.maximum(q, 2.0**-126), jnp.inf)
    return jnp.argsort(jnp.argsort(ratio, axis=-1), axis=-1).astype(jnp.float32)


def of_the_highest(k: int, chain: Draft, target: Float[Array, "B N V"]) -> Float[Array, "B N V"]:
    """Return the distribution of each token of the highest of k paths, given those before it.

    With x = the probability of the tokens before, a = that of all lower ones and c = that of the
    tokens up to t in the order: ((a + x c(t))^k - (a + x (c(t) - q(t)))^k), normalised.
    """
    assert chain.probs is not None
    lower, share = jnp.zeros(target.shape[0]), jnp.ones(target.shape[0])
    laws = [chain.probs[:, 0]]
    for node in range(1, target.shape[1]):
        q = chain.probs[:, node]
        place = order(target[:, node - 1], q)
        below = jnp.where(place[:, None] < place[:, :, None], q[:, None], 0.0).sum(axis=-1)
        start = lower[:, None] + share[:, None] * below
        end = start + share[:, None] * q
        law = q * sum(end**i * start ** (k - 1 - i) for i in range(k))
        laws.append(law / jnp.maximum(law.sum(axis=-1, keepdims=True), 2.0**-126))
        lower, share = of(start, chain, node), share * of(q, chain, node)
        whole = jnp.maximum(lower + share, 2.0**-126)  # only their ratio matters
        lower, share = lower / whole, share / whole
    return jnp.stack(laws, axis=1)


def paths_of(parents: Parents) -> list[list[int]]:
    """Return the paths of one length that part at the root; raises ValueError for other trees."""
    ways = [[0, node] for node in children(parents, 0)]
    for way in ways:
        while below := children(parents, way[-1]):
            way += below
    lengths = {len(way) for way in ways}
    if len(lengths) != 1 or sum(len(way) - 1 for way in ways) != len(parents) - 1:
        raise ValueError(f"need paths of one length that part at the root, got parents {parents}")
    return ways


def children(parents: Parents, node: int) -> list[int]:
    """Return the children of a node."""
    return [child for child in range(1, len(parents)) if parents[child] == node]


def of(probs: Float[Array, "B V"], draft: Draft, node: int) -> Float[Array, "B"]:
    """Return the probability of a node's token."""
    return jnp.take_along_axis(probs, draft.tokens[:, node, None], axis=1)[:, 0]


def emit_path(
    parents: Parents, noise: Noise, draft: Draft, found: Array, left: Array, depth: int
) -> Verdict:
    """Return the verdict that accepts the path to a node, and a token sampled from ``left``."""
    paths, counts = [], []
    for node in range(len(parents)):
        path = [node]
        while path[0]:
            path.insert(0, parents[path[0]])
        counts.append(len(path) - 1)
        paths.append(path + [0] * (depth + 1 - len(path)))
    last = exponential_race(left, noise, found)
    return emit(draft, jnp.asarray(paths)[found], jnp.asarray(counts, jnp.int32)[found], last)

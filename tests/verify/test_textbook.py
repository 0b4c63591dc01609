"""Every rule against its textbook, one row at a time, on the same noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.audit.request import plain_request, repeat
from specjax.core import sampling as s
from specjax.core.types import Draft
from specjax.engine.options.rules import from_length
from specjax.verify.block import block
from specjax.verify.entropy import entropy
from specjax.verify.noise import Noise, by_round, by_token
from specjax.verify.rejection_tree import rejection_tree
from specjax.verify.synthetic import synthetic, to_conditional
from specjax.verify.typical import typical
from tests.laws.test_rules import emitted

ROWS, V = 200, 6
CHAIN, TREE = (0, 0, 1, 2), (0, 0, 0, 0, 1, 1, 3, 5)
RATES = (0.9, 0.6, 0.2)


def ring(weights, clocks):
    """The race: who rings first."""
    return int(np.argmax(weights / np.maximum(clocks, 2.0**-24)))


def residual(p, q):
    left = np.maximum(p - q, 0.0)
    return left if left.sum() > 0 else p


def one_by_one(chance):
    """Verify a chain token by token; ``chance``(i, u, p, q) says whether to accept."""

    def rule(tokens, p, q, valid, u, clocks):
        said = []
        for i in range(1, len(tokens)):
            if not valid[i]:
                return [*said, ring(p[i - 1], clocks[i - 1])]
            if not chance(i - 1, u[i], p[i - 1], q[i], tokens[i]):
                return [*said, ring(residual(p[i - 1], q[i]), clocks[i - 1])]
            said.append(int(tokens[i]))
        return [*said, ring(p[-1], clocks[-1])]

    return rule


def relaxed(i, u, p, q, token):
    bar = min(np.exp(0.4 * np.sum(p[p > 0] * np.log(p[p > 0]))), 0.95)
    return u * bar * q[token] < p[token]


def in_a_block(tokens, p, q, valid, u, clocks):
    """Sun et al. 2024, with the names of its variables."""
    gamma = next((i - 1 for i in range(1, len(tokens)) if not valid[i]), len(tokens) - 1)
    p_i, tau, left = 1.0, 0, p[0] if gamma == 0 else residual(p[0], q[1])
    for i in range(1, gamma + 1):
        p_i = min(p_i * p[i - 1][tokens[i]] / q[i][tokens[i]], 1.0)
        if i == gamma:
            h, rest = p_i, p[i]
        else:
            rest = np.maximum(p_i * p[i] - q[i + 1], 0.0)
            h = rest.sum() / (rest.sum() + 1 - p_i) if rest.sum() > 0 else 0.0
        if u[i] < h:
            tau, left = i, rest
    return [*(int(token) for token in tokens[1 : tau + 1]), ring(left, clocks[tau])]


def among_siblings(tokens, p, q, valid, u, clocks):
    """Recursive rejection sampling, as a recursion."""

    def below(node):
        law = p[node]
        for child in [c for c in range(1, len(TREE)) if TREE[c] == node and valid[c]]:
            if u[child] * q[child][tokens[child]] < law[tokens[child]]:
                return [int(tokens[child]), *below(child)]
            law = residual(law, q[child])
            law = law / law.sum()
        return [ring(law, clocks[node])]

    return below(0)


def likely_enough(tokens, p, q, valid, u, clocks):
    """Medusa's acceptance, over every path of the tree."""

    def good(node):
        law = p[TREE[node]]
        bar = min(0.3, 0.6 * np.exp(np.sum(law[law > 0] * np.log(law[law > 0]))))
        return valid[node] and law[tokens[node]] > bar

    paths = [[0]]
    for node in range(1, len(TREE)):
        paths += [[*path, node] for path in paths if path[-1] == TREE[node] and good(node)]
    best = min(paths, key=lambda path: (-len(path), path[-1]))
    return [*(int(tokens[node]) for node in best[1:]), ring(p[best[-1]], clocks[best[-1]])]


@pytest.mark.parametrize(
    ("rule", "textbook", "shape"),
    [
        (block, in_a_block, CHAIN),
        (rejection_tree, among_siblings, TREE),
        (typical(0.3, 0.6), likely_enough, TREE),
        (entropy(), one_by_one(relaxed), CHAIN),
        (synthetic(RATES), one_by_one(lambda i, u, p, q, token: u < RATES[i]), CHAIN),
    ],
    ids=["block", "rejection_tree", "typical", "entropy", "synthetic"],
)
def test_a_rule_says_what_its_textbook_says(rule, textbook, shape):
    rng, nodes = np.random.default_rng(0), len(shape)
    p = rng.dirichlet(np.full(V, 0.5), (ROWS, nodes))
    q = rng.dirichlet(np.full(V, 0.5), (ROWS, nodes))
    q[::3] = p[::3][:, list(shape)] * 0.7 + q[::3] * 0.3
    tokens = (q.cumsum(-1) < rng.random((ROWS, nodes, 1))).sum(-1).clip(max=V - 1)
    valid = rng.random((ROWS, nodes)) < 0.9
    valid[:, 0] = True
    u, clocks = rng.random((ROWS, nodes)), rng.exponential(size=p.shape)
    depth = 3
    request = plain_request(np.ones((1, 1, V)), depth)
    draft = Draft(
        jnp.asarray(tokens, jnp.int32),
        jnp.tile(jnp.asarray(shape, jnp.int32), (ROWS, 1)),
        jnp.asarray(valid),
        jnp.asarray(q, jnp.float32),
    )
    noise = Noise(jnp.asarray(u, jnp.float32), jnp.asarray(clocks, jnp.float32))
    said = jax.jit(rule.verify, static_argnums=5)(
        noise,
        draft,
        jnp.log(jnp.asarray(p, jnp.float32)),
        repeat(request.text, ROWS),
        repeat(request.sampling, ROWS),
        depth,
    )
    expected = [textbook(*row) for row in zip(tokens, p, q, valid, u, clocks, strict=True)]
    assert emitted(said) == expected
    assert len({len(words) for words in expected}) > 2


def test_the_paper_s_example_of_relaxed_rejection():
    """vllm-ascend: p/q = 0.8 and u = 0.85, entropy 1.08: refused, but 0.85 * 0.649 = 0.552."""
    p, q = np.array([0.4, 0.35, 0.25]), np.array([0.5, 0.3, 0.2])
    assert relaxed(0, 0.85, p, q, 0)
    assert not 0.85 * q[0] < p[0]


def test_rates_are_conditional_on_being_reached():
    assert to_conditional((0.8, 0.4, 0.0, 0.0)) == (0.8, 0.5, 0.0, 0.0)
    assert from_length(2.25, 3) == (1.0, 0.25, 0.0)
    for length in (1.0, 1.7, 3.0, 4.0):
        assert 1 + sum(from_length(length, 3)) == pytest.approx(length)


@pytest.mark.parametrize("address", [by_token, by_round])
def test_greedy_rows_draw_no_noise(address):
    request = plain_request(np.ones((1, 1, V)), 3)
    one = jnp.zeros((1, 1), jnp.int32)
    draft, keys = Draft(one, one, one == 0, None), s.row_key(0)[None]
    for temperature, drawn in ((0.0, False), (0.7, True)):
        sampling = request.sampling._replace(temperature=jnp.full(1, temperature))
        noise = address(keys, request.text, draft, sampling, V)
        assert (noise.accept.any() and noise.recover.all()) == drawn
        assert noise.accept.any() == noise.recover.any() == drawn
    measured = synthetic(RATES).draw_noise(keys, request.text, draft, request.sampling, V)
    assert measured.accept.any()  # greedy or not, acceptance is by rate

"""Laws 3 and 4 on the kernels: degenerate trees, and temperature zero."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core import sampling as s
from specjax.core.topology import chain_parents
from specjax.core.types import Draft, Sampling, Text
from specjax.verify import rejection
from specjax.verify.walk import follow

B, K, V = 64, 4, 7


def chain_rule(draft: np.ndarray, valid: np.ndarray, choice: np.ndarray) -> list[list[int]]:
    """The textbook rule for a chain, one row at a time."""
    said = []
    for tokens, real, own in zip(draft, valid, choice, strict=True):
        out = []
        for i in range(len(own)):
            out.append(int(own[i]))
            if i + 1 == len(own) or not real[i + 1] or tokens[i + 1] != own[i]:
                break
        said.append(out)
    return said


def emitted(verdict) -> list[list[int]]:
    counts = np.asarray(verdict.num_accepted) + 1
    return [row[:n].tolist() for row, n in zip(np.asarray(verdict.tokens), counts, strict=True)]


def random_chain(rng, temperature: float = 1.0):
    tokens = jnp.asarray(rng.integers(0, V, (B, K + 1)), jnp.int32)
    valid = jnp.asarray(np.arange(K + 1)[None] <= rng.integers(0, K + 1, B)[:, None])
    logits = jnp.asarray(rng.normal(size=(B, K + 1, V)) * 2, jnp.float32)
    text = Text(tokens, *(jnp.full(B, n, jnp.int32) for n in (1, 5, 99, 0)))
    sampling = Sampling(
        jnp.full(B, temperature, jnp.float32), jnp.full(B, K, jnp.int32), jnp.full((B, 1), V)
    )
    return Draft(tokens, chain_parents(B, K + 1), valid, None), logits, text, sampling


def test_a_chain_is_a_tree_with_one_node_per_level():
    """3: the walk over nodes of any tree follows the textbook chain rule on a chain."""
    rng = np.random.default_rng(0)
    draft, logits, _, _ = random_chain(rng)
    choice = jnp.argmax(logits, -1).astype(jnp.int32)
    expected = chain_rule(*map(np.asarray, (draft.tokens, draft.valid, choice)))
    assert emitted(follow(draft, choice, K)) == expected

    # The same chain among idle siblings of the root, which never match: the same verdict.
    extra = jnp.zeros((B, 3), jnp.int32)
    wide = Draft(
        jnp.concatenate([draft.tokens, extra], 1),
        jnp.concatenate([draft.parents, extra], 1),
        jnp.concatenate([draft.valid, extra.astype(bool)], 1),
        None,
    )
    assert emitted(follow(wide, jnp.concatenate([choice, extra], 1), K)) == expected


@pytest.mark.parametrize("law", ["one-hot", "none"])
def test_temperature_zero_is_the_same_kernel(law):
    """4: with one-hot p, rejection emits exactly what the walk emits, whatever the noise."""
    rng = np.random.default_rng(1)
    draft, logits, text, sampling = random_chain(rng, temperature=0.0)
    choice = jnp.argmax(logits, -1).astype(jnp.int32)
    guess = jnp.where(jnp.asarray(rng.random((B, K)) < 0.7), choice[:, :-1], draft.tokens[:, 1:])
    draft = draft._replace(tokens=jnp.concatenate([draft.tokens[:, :1], guess], axis=1))
    if law == "one-hot":
        draft = draft._replace(probs=jax.nn.one_hot(draft.tokens, V, dtype=jnp.float32))
    for _ in range(5):
        noise = rejection.Noise(
            jnp.asarray(rng.random((B, K + 1)), jnp.float32),
            jnp.asarray(rng.exponential(size=(B, K + 1, V)), jnp.float32),
        )
        verdict = rejection.rejection.verify(noise, draft, logits, text, sampling, K)
        assert emitted(verdict) == emitted(follow(draft, choice, K))


def test_rejection_equals_the_textbook_on_the_same_noise():
    """Token for token against a NumPy loop: real q, ragged drafts, zeros in p and q."""
    rng = np.random.default_rng(2)
    draft, logits, _, _ = random_chain(rng)
    p = np.array(jax.nn.softmax(jnp.where(logits < -2, -1e30, logits), -1))
    q = np.array(jax.nn.softmax(jnp.asarray(rng.normal(size=p.shape) * 2, jnp.float32), -1))
    q[rng.random(q.shape) < 0.3] = 0
    u = rng.random((B, K + 1)).astype(np.float32)
    e = rng.exponential(size=p.shape).astype(np.float32)
    verdict = rejection.reject(
        rejection.Noise(jnp.asarray(u), jnp.asarray(e)),
        draft._replace(probs=jnp.asarray(q)),
        jnp.asarray(p),
        K,
    )
    tokens, valid = np.asarray(draft.tokens), np.asarray(draft.valid)
    for b, out in enumerate(emitted(verdict)):
        said = []
        for i in range(K + 1):
            law = p[b, i]
            if i < K and valid[b, i + 1]:
                d = tokens[b, i + 1]
                if u[b, i + 1] * q[b, i + 1, d] < p[b, i, d]:
                    said.append(int(d))
                    continue
                law = np.maximum(p[b, i] - q[b, i + 1], 0)
            said.append(int((law / e[b, i]).argmax()))
            break
        assert out == said


def test_rejection_keeps_the_law_of_the_first_token():
    """A million draws: p and q far apart, total variation within sampling noise."""
    rng = np.random.default_rng(3)
    n = 1_000_000
    p, q = rng.dirichlet(np.ones(V) * 0.5), rng.dirichlet(np.ones(V) * 0.5)
    d = rng.choice(V, size=n, p=q)
    draft = Draft(
        jnp.stack([jnp.zeros(n, jnp.int32), jnp.asarray(d, jnp.int32)], axis=1),
        chain_parents(n, 2),
        jnp.ones((n, 2), bool),
        jnp.broadcast_to(jnp.asarray(q, jnp.float32), (n, 2, V)),
    )
    noise = rejection.Noise(
        jnp.asarray(rng.random((n, 2)), jnp.float32),
        jnp.asarray(rng.exponential(size=(n, 2, V)), jnp.float32),
    )
    target = jnp.broadcast_to(jnp.asarray(p, jnp.float32), (n, 2, V))
    first = np.asarray(rejection.reject(noise, draft, target, 1).tokens[:, 0])
    found = np.bincount(first, minlength=V) / n
    assert abs(found - p).sum() / 2 < 0.003
    assert abs(np.bincount(d, minlength=V) / n - p).sum() / 2 > 0.1


def test_coupled_choices_agree_at_least_as_often_as_the_bound():
    """Draft and target share their noise: P(same) >= (1 - TV) / (1 + TV), Daliri et al. 2025."""
    rng = np.random.default_rng(4)
    n = 50_000
    keys = jax.vmap(jax.random.fold_in, (None, 0))(s.row_key(11), jnp.arange(n))
    sampling = Sampling(jnp.full(n, 0.7), jnp.zeros(n, jnp.int32), jnp.full((n, 1), V))
    noise = s.gumbel(keys, jnp.zeros((n, 1), jnp.int32), s.CHOOSE, sampling, V)
    for _ in range(5):
        logits = jnp.asarray(rng.normal(size=(2, 1, 1, V)), jnp.float32)
        p, q = np.asarray(jax.nn.softmax(logits[:, 0, 0] / 0.7, axis=-1))
        ours, theirs = (
            s.choose(jnp.broadcast_to(one, (n, 1, V)), noise, sampling)[:, 0] for one in logits
        )
        tv = abs(p - q).sum() / 2
        assert (ours == theirs).mean() >= (1 - tv) / (1 + tv) - 0.01
        assert abs(np.bincount(ours, minlength=V) / n - p).sum() / 2 < 0.01


def test_rejection_never_emits_an_impossible_token_at_a_real_vocabulary_size():
    """The shipped noise is exactly 0 now and then; that must not let a hopeless token win."""
    rows, vocab = 128, 151_936
    logits = jnp.full((rows, 1, vocab), -25.0).at[:, :, 7].set(5.0)
    one = jnp.ones((rows, 1), jnp.int32)
    draft = Draft(one, one * 0, one == 1, None)
    text = Text(one, *(jnp.full(rows, n, jnp.int32) for n in (1, 1, 99, 0)))
    sampling = Sampling(jnp.ones(rows), jnp.zeros(rows, jnp.int32), one * vocab)
    verify = jax.jit(rejection.rejection.verify, static_argnums=5)
    for seed in range(4):
        keys = jax.vmap(jax.random.fold_in, (None, 0))(s.row_key(seed), jnp.arange(rows))
        noise = rejection.rejection.draw_noise(keys, text, draft, sampling, vocab)
        assert (verify(noise, draft, logits, text, sampling, 0).tokens == 7).all()


def test_the_noise_of_the_walk_reaches_the_far_tail():
    """P(gumbel > 16) = 1.1e-7: no draw of the default mode ever gets there."""
    rows, vocab = 256, 151_936
    keys = jax.vmap(jax.random.fold_in, (None, 0))(s.row_key(3), jnp.arange(rows))
    place = jnp.zeros((rows, 1), jnp.int32)
    sampling = Sampling(jnp.ones(rows), place[:, 0], place)
    noise = s.gumbel(keys, place, s.CHOOSE, sampling, vocab)
    expected = rows * vocab * -np.expm1(-np.exp(-15.0))
    assert abs(int((noise > 15).sum()) - expected) < 5 * expected**0.5
    assert int((noise > 16).sum()) > 0

"""Laws 1 to 6, 9 and 10 for drafters that grow trees; law 3: a chain is one of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.audit.prefixes import spell, texts
from specjax.core import sampling as s
from specjax.core.topology import causal
from specjax.core.types import Drafter, Engine, Params
from specjax.drafters.draft_model import draft_model
from specjax.drafters.tree import Tree, fixed
from specjax.models.build import build_feature_head
from specjax.models.config import FeatureConfig
from specjax.models.toy import markov_target
from specjax.theory import goodness
from specjax.verify.rejection_tree import rejection_tree
from tests.laws import harness as h
from tests.laws.test_same_text import assert_bitwise
from tests.laws.test_state import assert_cache_holds, one_pass
from tests.models.history import history_target

COLD = h.random_rows(4, seed=31, plain=True)
MIXED = [row._replace(temperature=0.8 * (i % 2)) for i, row in enumerate(COLD)]
ROWS = h.random_rows(4, seed=1)  # of every kind, for one drafter: the others compile faster so
EVERY = "draft_model fixed"


def run(name, rows=None, **options):
    rows = (ROWS if name == EVERY else MIXED) if rows is None else rows
    drafter = h.PLAIN if name == "plain" else h.GROWN[name]
    return h.run(drafter, rows, lean=name != EVERY, **options)


drafted = functools.cache(run)


@pytest.mark.parametrize("name", h.GROWN)
def test_no_tree_that_is_drafted_changes_the_text(name):
    """1, and 10: what is accepted is counted, and lies within the tree."""
    result, tree = drafted(name), h.GROWN[name]
    if name == EVERY:
        assert_bitwise(result, h.run(h.PLAIN, ROWS))
    assert name == EVERY or result.tokens == drafted("plain").tokens
    infos = jax.device_get(result.infos)
    assert infos.num_accepted.sum() > 0
    assert infos.num_accepted.max() <= tree.depth
    assert infos.num_drafted.max() == tree.nodes - 1
    rounds, text = (infos.num_emitted > 0).sum(axis=0), result.state.text
    cut = 1 + rounds + infos.num_accepted.sum(axis=0) - (text.lengths - text.starts)
    assert ((cut >= 0) & (cut <= tree.depth)).all()


@pytest.mark.parametrize("name", h.GROWN)
def test_caches_hold_what_one_pass_would_have_left(name):
    """5 and 6: the target's after paths that moved, the drafter's after nodes it dropped."""
    state, drafter = drafted(name).state, h.GROWN[name]
    params, text = h.weights(drafter), drafted(name).state.text
    np.testing.assert_array_equal(state.cache.lengths, text.lengths - 1)
    shown, fresh = jax.jit(one_pass)(params.target, text.tokens)
    assert_cache_holds(state.cache, fresh, np.asarray(state.cache.lengths))
    if name.startswith("draft_model"):
        _, fresh = jax.jit(one_pass)(params.draft, text.tokens)
        np.testing.assert_array_equal(state.drafter.cache.lengths, text.lengths)
        assert_cache_holds(state.drafter.cache, fresh, np.asarray(text.lengths))
    elif name in ("dflash", "dspark"):
        np.testing.assert_array_equal(state.drafter.lengths, text.lengths - 1)
    elif name == "medusa":
        last = np.asarray(shown.hidden)[np.arange(4), np.asarray(text.lengths) - 2]
        np.testing.assert_allclose(state.drafter, last, atol=1e-4)
    else:
        head = build_feature_head(feature_config(name))
        pairs = text.tokens.shape[1] - 1
        positions = jnp.broadcast_to(jnp.arange(pairs)[None], (4, pairs))
        features = head.fuse(params.draft, shown.hidden, shown.taps)[:, :-1]
        cache = head.init_cache(4, h.CAPACITY)
        read = jax.jit(head.forward, static_argnums=6)
        _, fresh = read(params.draft, text.tokens[:, 1:], features, positions, causal(pairs),
                        cache, h.CAPACITY)  # fmt: skip
        np.testing.assert_array_equal(state.drafter.cache.lengths, text.lengths - 1)
        assert_cache_holds(state.drafter.cache, fresh, np.asarray(text.lengths) - 1)


def feature_config(name) -> FeatureConfig:
    config = h.HEADS[name][0]
    assert isinstance(config, FeatureConfig)
    return config


@pytest.mark.parametrize("name", ["draft_model best", "eagle", "eagle3"])
def test_a_tree_is_what_reading_every_path_alone_would_grow(name):
    """EAGLE-2 in plain Python, on a model that reads paths token by token, one at a time."""
    drafter, tree = h.GROWN[name], h.BUSH if name == "eagle3" else h.BEST
    params, state = h.weights(drafter), drafted(name).state
    _, sampling, keys = h.pack(COLD, lean=True)
    read, score, start = one_by_one(name, params.draft, state.drafter)

    @functools.cache
    def after(paths):
        if not paths[0]:
            return start, np.asarray(score(start[1]))
        (cache, feature), _ = after(tuple(path[:-1] for path in paths))
        now = read(cache, feature, jnp.asarray([path[-1] for path in paths], jnp.int32))
        return now, np.asarray(score(now[1]))

    front = [[((), (), 0.0)] for _ in range(4)]  # path, ranks, log probability
    seen: list[list] = [[] for _ in range(4)]
    for _ in range(tree.depth):
        found: list[list] = [[] for _ in range(4)]
        for nodes in zip(*front, strict=True):
            _, logits = after(tuple(path for path, _, _ in nodes))
            laws = np.asarray(jax.nn.log_softmax(logits), np.float64)
            for b, (path, ranks, total) in enumerate(nodes):
                best = np.argsort(-logits[b], kind="stable")[: tree.top_k].tolist()
                found[b] += [
                    ((*path, t), (*ranks, r), total + laws[b, t]) for r, t in enumerate(best)
                ]
        for b in range(4):
            seen[b] += found[b]
            front[b] = sorted(found[b], key=lambda node: -node[2])[: tree.top_k]
            if tree.paths is not None:
                going_on = sorted({path[:-1] for path in tree.paths} & {n[1] for n in found[b]})
                front[b] = [node for node in found[b] if node[1] in going_on]
    propose = jax.jit(drafter.propose, static_argnums=5)
    draft, _ = propose(params.draft, state.drafter, state.text, sampling, keys, h.CAPACITY)
    tokens, parents = np.asarray(draft.tokens).tolist(), np.asarray(draft.parents).tolist()
    for b in range(4):
        if tree.paths is None:
            kept = sorted(seen[b], key=lambda node: -node[2])[: tree.num_nodes]
        else:
            kept = [node for node in seen[b] if node[1] in tree.paths]
        paths = [()]
        for token, parent in zip(tokens[b][1:], parents[b][1:], strict=True):
            paths.append((*paths[parent], token))
        assert sorted(paths[1:]) == sorted(path for path, _, _ in kept)
    assert np.asarray(draft.valid).all()


def one_by_one(name, params, state):
    """Return how a drafter's model reads one token per row, and scores what comes next."""
    if name.startswith("draft_model"):

        def forward(cache, feature, token):
            shown, cache = h.TARGET.forward(
                params, token, cache.lengths[:, None], causal(1), cache, h.CAPACITY
            )
            return cache, shown.hidden

        logits, last = h.TARGET.logits, state.hidden
    else:
        head = build_feature_head(feature_config(name))

        def forward(cache, feature, token):
            feature, cache = head.forward(
                params, token, feature, cache.lengths[:, None], causal(1), cache, h.CAPACITY
            )
            return cache, feature

        logits, last = head.logits, state.feature

    @jax.jit
    def read(cache, feature, token):
        cache, feature = forward(cache, feature[:, None], token[:, None])
        return cache._replace(lengths=cache.lengths + 1), feature[:, 0]

    return read, jax.jit(functools.partial(logits, params)), (state.cache, last)


@functools.cache
def remembering():
    """Texts of a target that mixes up all it sees, and a draft model of that kind."""
    model = history_target(h.VOCAB)
    tables = jax.random.normal(jax.random.key(2), (2, 64, h.VOCAB))
    params = Params(tables[0], tables[1])
    drafter = draft_model(model, 1)
    state = h.run(drafter, MIXED, target=model, params=params, lean=True).state
    return model, params.draft, state


@pytest.mark.parametrize("method", ["coupled", "probabilistic"])
def test_a_chain_is_a_tree_however_it_is_told(method):
    """3: K, its nodes, the likeliest single path, and the first path of a larger tree."""
    model, params, state = remembering()
    _, sampling, keys = h.pack([row._replace(temperature=0.8) for row in COLD], lean=True)
    wide = fixed([(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0), (1,), (0, 1)])
    drafts = []
    for tree in (4, Tree(4, 1, 4), wide):
        propose = jax.jit(draft_model(model, tree, method).propose, static_argnums=5)
        draft, _ = propose(params, state.drafter, state.text, sampling, keys, h.CAPACITY)
        drafts.append(jax.device_get(draft))
    chain, single, bush = drafts
    np.testing.assert_array_equal(chain.parents, single.parents)
    assert (bush.tokens[:, 1] != bush.tokens[:, 2]).all()
    if method != "probabilistic":
        np.testing.assert_array_equal(chain.tokens, single.tokens)
        np.testing.assert_array_equal(chain.tokens, bush.tokens[:, [0, 1, 3, 5, 6]])
        return
    # trees that are not fixed have noise of their own for every round; laws are the same
    assert (chain.tokens == bush.tokens[:, [0, 1, 3, 5, 6]]).all()
    np.testing.assert_allclose(single.probs[:, 1], chain.probs[:, 1], atol=1e-6)
    rows, elder = np.arange(4), bush.tokens[:, 1]
    np.testing.assert_allclose(bush.probs[:, 1], chain.probs[:, 1], atol=1e-6)
    left = np.where(np.arange(h.VOCAB) == elder[:, None], 0, bush.probs[:, 1])
    np.testing.assert_allclose(
        bush.probs[rows, 2], left / left.sum(axis=-1, keepdims=True), atol=1e-5
    )


def test_a_drafter_that_knows_fills_every_round():
    """Acceptance where it is known: a draft model that is the target itself, with its noise."""
    rows = [row._replace(stop_ids=(), max_tokens=41) for row in ROWS]
    params = h.weights()._replace(draft=h.weights().target)
    result = run(EVERY, rows, params=params)
    infos = jax.device_get(result.infos)
    full = infos.num_accepted[infos.num_emitted > 0] == h.BUSH.depth
    assert full.mean() > 0.9  # the last round is counted too, and near ties


def test_a_row_alone_grows_the_same_text():
    """9: B = 1 against B = 4."""
    for b, row in enumerate(MIXED):
        assert run("eagle", [row]).tokens == [drafted("eagle").tokens[b]]


def test_at_temperature_zero_sampled_siblings_write_the_plain_text():
    """4: one-hot laws through the same drafter and the same rule."""
    drafter = draft_model(h.TARGET, h.BEST, "probabilistic")
    result = h.run(drafter, COLD, rule=rejection_tree, lean=True)
    assert result.tokens == run("plain", COLD).tokens
    greedy = run("draft_model best", COLD)
    assert result.infos.num_accepted.tolist() == greedy.infos.num_accepted.tolist()


V, HORIZON, MANY = 4, 4, 30_000
TABLES = jax.random.normal(jax.random.key(8), (2, V, V)) * 1.2  # target and draft, far apart
SAMPLED = {
    "fixed": fixed([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0)]),
    "best": Tree(3, 2, 5),
}


def law_of(drafter: Drafter) -> np.ndarray:
    """Write many texts of 4 tokens with siblings rejected one by one; test them by their law."""
    target = markov_target(V)
    engine = Engine(target, drafter, rejection_tree, 32)
    params = Params(TABLES[0], TABLES[1])
    row = h.Row((0,), HORIZON, 0, temperature=0.8)
    text, sampling, _ = h.pack([row], capacity=32, lean=True)
    text, sampling = (
        jax.tree.map(lambda leaf: jnp.repeat(leaf, MANY, axis=0), one) for one in (text, sampling)
    )
    sampling = sampling._replace(stop_ids=jnp.full((MANY, 1), V, jnp.int32))
    state = h.init_state(engine, params, text, sampling, jax.random.split(s.row_key(3), MANY))
    state, _, _ = h.prefill(engine, params, state, 0, 1)
    state, _, _ = h.generate(engine, params, state, HORIZON, 1, HORIZON)
    tokens = np.asarray(state.text.tokens)[:, 1 : 1 + HORIZON]
    counts = np.bincount(tokens @ V ** np.arange(HORIZON - 1, -1, -1), minlength=V**HORIZON)
    return np.stack([counts, MANY * exact_texts()], axis=1)


def p_value(table: np.ndarray) -> float:
    """Test counts against what is expected, rare texts merged (one of 1e-4 would decide it all)."""
    counts, expected = table.T
    return goodness.distribution_test(counts, expected / expected.sum()).p_value


@functools.cache
def exact_texts() -> np.ndarray:
    laws = np.asarray(jax.nn.softmax(TABLES[0] / 0.8), np.float64)
    before = spell(V, HORIZON - 1)
    length = (before >= 0).sum(axis=1)
    last = np.where(length > 0, before[np.arange(len(before)), np.maximum(length - 1, 0)], 0)
    return texts(laws[last][None], HORIZON)[0]


@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_siblings_leave_the_joint_law(name):
    """2: drafter and rule together, over rounds of all lengths, by 30,000 texts."""
    table = law_of(draft_model(markov_target(V), SAMPLED[name], "probabilistic"))
    assert p_value(table) > 1e-3
    assert goodness.total_variation(table) < 2 * goodness.expected_variation(table, samples=1)


def test_choosing_what_to_keep_by_the_tokens_drawn_is_not_exact():
    """What a dynamic tree must not do, and that the test above would see it."""
    inner = draft_model(markov_target(V), fixed([(0,), (1,)]), "probabilistic")

    def propose(*args):
        draft, state = inner.propose(*args)
        q = jax.nn.softmax(TABLES[1] / 0.8)[draft.tokens[:, 0]]
        first, second = (q[jnp.arange(MANY), draft.tokens[:, i]] for i in (1, 2))
        likelier = jnp.stack([first >= 0, first >= second, first < second], axis=1)
        return draft._replace(valid=draft.valid & likelier), state

    table = law_of(inner._replace(propose=propose))
    assert p_value(table) < 1e-6

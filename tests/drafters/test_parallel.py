"""Heads that draft all places at once: what they read, and the trees that grow of it.

Each is recomputed from the whole text, in plain NumPy-like steps, without a cache: DFlash and
DSpark (``models.dflash``), P-EAGLE, PARD; DDTree by a heap.
"""

import dataclasses
import heapq
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core.topology import causal
from specjax.core.types import Params
from specjax.drafters.block import block_drafter
from specjax.drafters.parallel import grow_at_once
from specjax.drafters.tree import Tree, chain_of
from specjax.models.build import build_block_head, build_feature_head, init_params
from specjax.models.config import BlockConfig
from tests.laws import harness as h
from tests.laws.test_state import one_pass

ROWS = h.random_rows(4, seed=31, plain=True)
KINDS = {
    "full": dataclasses.replace(h.DFLASH, causal=(False, False), sliding_windows=(None, None)),
    "causal": dataclasses.replace(h.DFLASH, causal=(True, True), sliding_windows=(None, None)),
    "sliding": dataclasses.replace(h.DFLASH, causal=(True, True), sliding_windows=(7, 7)),
    "mixed": h.DFLASH,
    "dspark": h.DSPARK,
    "fill in": dataclasses.replace(h.DSPARK, sample_from_anchor=False, confidence="none"),
}


def rms(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def turned(x, positions):
    """Rotate heads [P, H, d] as Llama's RoPE does."""
    half = x.shape[-1] // 2
    angle = positions[:, None, None] * 10000.0 ** (-np.arange(half) / half)
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def draft_by_hand(config: BlockConfig, weights, taps, root: int, depth: int) -> np.ndarray:
    """Return DFlash's or DSpark's hidden states of all rows, from taps [P, A, E] of a text."""
    w = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), weights)
    number, rows = len(taps), depth + (0 if config.sample_from_anchor else 1)
    context = rms(taps.reshape(number, -1) @ w["fc"]["weight"].T, w["hidden_norm"]["weight"])
    ids = [root] + [config.mask_token_id] * (rows - 1)
    x, at = w["embed_tokens"]["weight"][ids], number + np.arange(rows)
    places, size = np.arange(number + rows), config.block.head_dim
    back = at[:, None] - places[None]
    for i in range(config.block.num_layers):
        layer = w["layers"][i]
        attn = layer["self_attn"]
        normed = rms(x, layer["input_layernorm"]["weight"])

        def heads(y, name, attn=attn):
            return (y @ attn[f"{name}_proj"]["weight"].T).reshape(len(y), -1, size)

        read = np.concatenate([context, normed])
        keys = turned(rms(heads(read, "k"), attn["k_norm"]["weight"]), places)
        query = turned(rms(heads(normed, "q"), attn["q_norm"]["weight"]), at)
        shared = query.shape[1] // keys.shape[1]
        keys, values = (y.repeat(shared, axis=1) for y in (keys, heads(read, "v")))
        scores = np.einsum("qhd,khd->hqk", query, keys) * size**-0.5
        window = config.sliding_windows[i]
        hidden = (back < 0) if config.causal[i] else np.zeros_like(back, bool)
        hidden = hidden if window is None else hidden | (back >= window)
        scores = np.where(hidden[None], -np.inf, scores)
        law = np.exp(scores - scores.max(-1, keepdims=True))
        law /= law.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", law, values).reshape(rows, -1)
        x = x + mixed @ attn["o_proj"]["weight"].T
        normed, mlp = rms(x, layer["post_attention_layernorm"]["weight"]), layer["mlp"]
        gate = normed @ mlp["gate_proj"]["weight"].T
        up = normed @ mlp["up_proj"]["weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ mlp["down_proj"]["weight"].T
    return rms(x, w["norm"]["weight"])


@pytest.mark.parametrize("name", KINDS)
def test_a_block_is_what_the_whole_text_gives_in_one_pass(name):
    """Row j of DFlash's block is of place j, DSpark's of the next; the Markov chain follows it."""
    config = KINDS[name]
    head, weights = build_block_head(config), init_params(config, jax.random.key(7))
    if "vocab_rows" in weights:
        weights["vocab_rows"] = jnp.minimum(jnp.arange(h.VOCAB, dtype=jnp.int32), h.VOCAB - 8)
    text = jnp.asarray(np.random.default_rng(3).integers(0, h.VOCAB, (1, 20)), jnp.int32)
    shown, _ = jax.jit(one_pass)(h.tiny_weights(), jnp.pad(text, ((0, 0), (0, 108))))
    taps = shown.taps[:, :19]
    drafter = block_drafter(head, h.K)
    state = drafter.init(weights, 1, h.CAPACITY)
    tokens = jnp.pad(text, ((0, 0), (0, 108)))
    length = jnp.asarray([20], jnp.int32)
    known, sampling, keys = h.pack([h.Row(tuple(text[0].tolist()), 9, 1)], lean=True)
    for start, stop in ((0, 8), (8, 19)):  # in two chunks, the second with padding
        seen = h.decode.Observation(
            tokens[:, start + 1 : start + 13], taps[:, :0], padded(taps[:, start:stop], 12),
            jnp.asarray([start]), jnp.asarray([stop - start]),
        )  # fmt: skip
        state = drafter.observe(weights, state, known, seen, h.CAPACITY)
    assert state.lengths == length - 1
    draft, _ = jax.jit(drafter.propose, static_argnums=5)(
        weights, state, known, sampling, keys, h.CAPACITY
    )
    first = 0 if config.sample_from_anchor else 1
    by_hand = draft_by_hand(config, weights, np.asarray(taps[0]), int(text[0, -1]), h.K)[first:]
    expected, before = [], int(text[0, -1])
    for row in by_hand:
        law = head.logits(weights, jnp.asarray(row[None], jnp.float32))[0]
        if head.follow is not None:
            law = law + head.follow(weights, jnp.asarray([before]))[0]
        before = int(law.argmax())
        expected.append(before)
    assert draft.tokens[0].tolist() == [int(text[0, -1]), *expected]


def padded(x, size):
    return jnp.pad(x, ((0, 0), (0, size - x.shape[1]), (0, 0), (0, 0)), constant_values=7.0)


def test_the_markov_head_follows_the_token_that_was_drafted():
    """Were its bias that of the root, some token of the chain would be another one."""
    config = dataclasses.replace(h.DSPARK, confidence="none")
    head, weights = build_block_head(config), init_params(config, jax.random.key(7))
    weights["markov_head"]["markov_w2"]["weight"] *= 30
    text, sampling, keys = h.pack(ROWS, lean=True)
    laws = jax.random.normal(jax.random.key(1), (4, h.K, h.VOCAB))
    draft = grow_at_once(
        chain_of(h.K), laws, text, sampling, keys, "greedy", 99, head.follow, weights
    )
    chain, misled = np.asarray(draft.tokens), 0
    for level in range(h.K):
        bias = np.asarray(head.follow(weights, jnp.asarray(chain[:, level])))
        np.testing.assert_array_equal(chain[:, level + 1], (laws[:, level] + bias).argmax(-1))
        root = np.asarray(head.follow(weights, jnp.asarray(chain[:, 0])))
        misled += (chain[:, level + 1] != np.asarray((laws[:, level] + root).argmax(-1))).sum()
    assert misled > 4


def test_only_the_likeliest_tokens_are_drafted_with_dspark_draft_topk():
    head = build_block_head(h.DSPARK)
    params, (text, sampling, keys) = h.weights(h.CHAINS["dspark"]), h.pack(ROWS, lean=True)
    hot = sampling._replace(temperature=jnp.full(4, 9.0))
    for top_k, least in ((1, 1), (3, 2)):
        drafter = block_drafter(head, h.K, "probabilistic", top_k=top_k)
        state = drafter.init(params.draft, 4, h.CAPACITY)
        draft, _ = drafter.propose(params.draft, state, text, hot, keys, h.CAPACITY)
        support = (np.asarray(draft.probs)[:, 1:] > 1e-6).sum(-1)
        assert (support <= top_k).all()
        assert support.max() >= least


def test_parallel_heads_read_the_committed_text_then_masks():
    """P-EAGLE: the last K rows of one causal pass over all pairs and K - 1 mask pairs."""
    drafter, (config, _) = h.CHAINS["peagle"], h.HEADS["peagle"]
    head = build_feature_head(config)
    result = h.run(drafter, ROWS, lean=True)
    params, text = h.weights(drafter), result.state.text
    draft, _ = jax.jit(drafter.propose, static_argnums=5)(
        params.draft, result.state.drafter, text, result.state.sampling, result.state.keys,
        h.CAPACITY,
    )  # fmt: skip
    shown, _ = jax.jit(one_pass)(params.target, text.tokens)
    features = head.fuse(params.draft, shown.hidden, shown.taps)
    for b, length in enumerate(np.asarray(text.lengths)):
        mask = jnp.broadcast_to(head.mask_features(params.draft), (1, h.K - 1, head.size))
        read = jnp.concatenate([features[b : b + 1, : length - 1], mask], axis=1)
        ids = jnp.concatenate([text.tokens[b, 1:length], jnp.full(h.K - 1, 5)])[None]
        size = ids.shape[1]
        after, _ = head.forward(
            params.draft, ids, read, jnp.arange(size)[None], causal(size),
            head.init_cache(1, h.CAPACITY), h.CAPACITY,
        )  # fmt: skip
        expected = head.logits(params.draft, after[:, -h.K :])[0].argmax(-1)
        np.testing.assert_array_equal(draft.tokens[b, 1:], expected)


def test_pard_reads_the_text_and_then_masks():
    drafter, params = h.CHAINS["pard"], h.weights()
    result = h.run(drafter, ROWS, lean=True)
    text = result.state.text
    draft, _ = jax.jit(drafter.propose, static_argnums=5)(
        params.draft, result.state.drafter, text, result.state.sampling, result.state.keys,
        h.CAPACITY,
    )  # fmt: skip
    for b, length in enumerate(np.asarray(text.lengths)):
        ids = jnp.concatenate([text.tokens[b, :length], jnp.full(h.K - 1, 5)])[None]
        size = ids.shape[1]
        output, _ = h.TARGET.forward(
            params.draft, ids, jnp.arange(size)[None], causal(size),
            h.TARGET.init_cache(1, h.CAPACITY), h.CAPACITY,
        )  # fmt: skip
        expected = h.TARGET.logits(params.draft, output.hidden[:, -h.K :])[0].argmax(-1)
        np.testing.assert_array_equal(draft.tokens[b, 1:], expected)


def best_prefixes(laws: np.ndarray, budget: int) -> set[tuple[int, ...]]:
    """DDTree (arXiv:2604.12989): the likeliest prefixes under the product of laws [K, V]."""
    logs = np.asarray(jax.nn.log_softmax(laws), np.float64)
    order, count = np.argsort(-logs, axis=1, kind="stable"), itertools.count()
    heap = [(-logs[0, order[0, 0]], next(count), (0,))]  # ranks
    found: set[tuple[int, ...]] = set()

    def push(ranks):
        total = sum(logs[i, order[i, r]] for i, r in enumerate(ranks))
        heapq.heappush(heap, (-total, next(count), ranks))

    while heap and len(found) < budget:
        ranks = heapq.heappop(heap)[2]
        found.add(tuple(int(order[i, r]) for i, r in enumerate(ranks)))
        if ranks[-1] + 1 < laws.shape[1]:
            push((*ranks[:-1], ranks[-1] + 1))
        if len(ranks) < len(laws):
            push((*ranks, 0))
    return found


def test_a_dynamic_tree_of_known_laws_is_ddtree():
    """As wide as it is large it is the heap's, 16 times of 16; its chain is DFlash's own."""
    budget = 8
    tree = Tree(depth=h.K, top_k=budget, num_nodes=budget)
    rows = h.random_rows(16, seed=5, plain=True)
    text, sampling, keys = h.pack(rows, lean=True)
    laws = 2 * jax.random.normal(jax.random.key(3), (16, h.K, h.VOCAB))
    draft = grow_at_once(tree, laws, text, sampling, keys, "greedy", 999)
    for b in range(16):
        paths: list[tuple[int, ...]] = [()]
        for node in range(1, budget + 1):
            paths.append((*paths[int(draft.parents[b, node])], int(draft.tokens[b, node])))
        assert set(paths[1:]) == best_prefixes(np.asarray(laws[b]), budget)
    chain = grow_at_once(chain_of(h.K), laws, text, sampling, keys, "greedy", 999)
    np.testing.assert_array_equal(chain.tokens[:, 1:], laws.argmax(-1))


def test_what_a_row_drafts_does_not_depend_on_its_mates():
    """9, bit for bit, of the laws themselves."""
    drafter = block_drafter(build_block_head(h.DFLASH), h.K, "probabilistic")
    params = h.weights(h.CHAINS["dflash"])
    result = h.run(h.CHAINS["dflash"], ROWS, lean=True)
    state, propose = result.state, jax.jit(drafter.propose, static_argnums=5)
    hot = state.sampling._replace(temperature=jnp.full(4, 0.7))
    draft, _ = propose(params.draft, state.drafter, state.text, hot, state.keys, h.CAPACITY)
    turn = jax.tree.map(lambda x: x[::-1], (state.drafter, state.text, hot, state.keys))
    again, _ = propose(Params(*params).draft, *turn, h.CAPACITY)
    for ours, theirs in zip(draft, again, strict=True):
        np.testing.assert_array_equal(ours, theirs[::-1])

"""K by what a request accepts, and by how sure the drafter is: laws, and what is cut off."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.audit.cut import CUTS, certify_cut
from specjax.core.types import Engine
from specjax.drafters.adaptive import adaptive
from specjax.drafters.block import block_drafter
from specjax.drafters.catch_up import catch_up, rest
from specjax.drafters.draft_model import draft_model
from specjax.drafters.none import observe_only
from specjax.drafters.tree import chain_of
from specjax.models.build import build_block_head, init_params
from specjax.testing.laws import LAWS, assert_bitwise
from specjax.testing.subject import long_rows, of_drafter
from specjax.verify.block import block
from specjax.verify.walk import walk
from tests.laws import harness as h

MODEL = h.weights().draft
LEAST = 0.01  # the tiny draft model is never sure of more than a few tokens
SURE = dataclasses.replace(chain_of(h.K), min_confidence=LEAST)
CASES = {
    "by acceptance": adaptive(h.CHAINS["draft_model greedy"]),
    "by acceptance, sampled": adaptive(draft_model(h.TARGET, h.K, "probabilistic"), 0.5),
    "by confidence, sampled": draft_model(h.TARGET, SURE, "probabilistic"),
    "by confidence, a tree": draft_model(
        h.TARGET, dataclasses.replace(h.BEST, min_confidence=LEAST), "coupled"
    ),
    "by both": adaptive(draft_model(h.TARGET, SURE, "coupled")),
    "catching up": catch_up(h.CHAINS["draft_model greedy"]),
}
LAWS_OF = [
    ("by acceptance", "observe"),
    ("by acceptance", "in place"),
    ("by acceptance, sampled", "exact"),
    ("by confidence, sampled", "exact"),
    ("by confidence, a tree", "bitwise"),
    ("by both", "bitwise"),
    ("catching up", "observe"),
    ("catching up", "in place"),
]


@pytest.mark.parametrize(("name", "law"), LAWS_OF)
def test_adaptive_keeps_the_laws(name, law):
    LAWS[law](of_drafter(CASES[name], lambda target: MODEL))


def test_k_follows_each_row_and_not_its_mates():
    """A row whose drafts are right keeps K; where they are wrong it falls to 1."""
    rows = long_rows()
    plain = h.run(h.PLAIN, rows, lean=True)
    knows = h.guided(h.CHAIN)
    params = h.knowing(plain, rows, 1.0)
    wrong = params.draft.tokens.at[2:].add(1) % h.VOCAB
    params = params._replace(draft=params.draft._replace(tokens=wrong))
    found = h.run(adaptive(knows), rows, params=params, lean=True)
    drafted = np.asarray(found.infos.num_drafted)
    assert found.tokens == plain.tokens
    for b in range(4):
        own = drafted[: found.rounds, b]
        own = own[np.asarray(found.infos.num_emitted)[: found.rounds, b] > 0]
        assert own[0] == h.K
        assert set(own[1:]) == {h.K} if b < 2 else own[-1] == 1 and list(own) == sorted(own)[::-1]


@pytest.mark.parametrize("name", ["draft_model greedy", "dspark"])
def test_no_policy_can_change_a_bit_of_the_text(name):
    """Another K of the program, and another max_draft of each row, at random in every round."""
    rows, rng = long_rows(), np.random.default_rng(7)
    rule_of = {k: chained(name, k) for k in (2, h.K)} | {0: observe_only(chained(name, h.K))}
    engines = {
        k: Engine(h.TARGET, one, walk, h.CAPACITY, num_logprobs=h.VOCAB)
        for k, one in rule_of.items()
    }
    params, first = h.weights(h.CHAINS[name]), engines[h.K]
    state, found = h.init_state(first, params, *h.pack(rows, lean=True)), [[] for _ in rows]
    for start in range(0, max(len(row.prompt) for row in rows), 16):
        state, info, _ = h.prefill(first, params, state, start, 16)
        h.harness.collect(found, info, len(rows))
    used, num_drafted = set(), 0
    while (np.asarray(state.text.reason) == 0).any():
        k = int(rng.choice([0, 2, h.K]))
        limits = jnp.asarray(rng.integers(0, h.K + 1, len(rows)), "int32")
        state = state._replace(sampling=state.sampling._replace(max_draft=limits))
        state, info = h.step(engines[k], params, state)
        h.harness.collect(found, info, len(rows))
        used.add(k)
        num_drafted += int(info.num_drafted.sum())
    text = state.text
    tokens = [text.tokens[b, text.starts[b] : text.lengths[b]].tolist() for b in range(len(rows))]
    nothing = jax.tree.map(np.asarray, info)
    result = h.Result(tokens, list(map(np.array, found)), text.reason.tolist(), nothing, 0, state)
    expected = h.run(h.PLAIN, [row._replace(max_draft=0) for row in rows])
    assert_bitwise(result, expected)
    assert used == {0, 2, h.K}
    assert num_drafted > 0


def chained(name, depth):
    if name == "dspark":
        return h.with_head(name, depth)
    return draft_model(h.TARGET, depth, "greedy")


def test_tokens_are_cut_off_where_the_path_is_less_likely_than_the_threshold():
    every = of_drafter(draft_model(h.TARGET, h.K, "probabilistic"), lambda target: MODEL)
    engine, state = every.start([row._replace(temperature=1.0) for row in long_rows()])
    rest = state.drafter, state.text, state.sampling, state.keys, engine.window
    cutting = CASES["by confidence, sampled"]
    full, cut = (jax.device_get(one.propose(MODEL, *rest)[0]) for one in (every.drafter, cutting))
    np.testing.assert_array_equal(full.tokens, cut.tokens)
    expected = np.cumprod(full.probs.max(axis=-1)[:, 1:], axis=1) >= LEAST
    np.testing.assert_array_equal(cut.valid[:, 1:], expected)
    assert 0 < expected.sum() < expected.size


@pytest.mark.parametrize("read", ["hidden", "markov"])
def test_dsparks_confidence_head_says_where_to_cut(read):
    """Its product along the path, from the hidden state and the token before."""
    config = dataclasses.replace(h.DSPARK, confidence=read)
    head, params = build_block_head(config), init_params(config, jax.random.key(4))
    params["confidence_head"]["proj"]["weight"] *= 30.0
    every = block_drafter(head, h.K)
    cutting = block_drafter(head, dataclasses.replace(chain_of(h.K), min_confidence=0.2))
    seeing = every._replace(taps=h.TAPS)
    engine, state = of_drafter(seeing, lambda target: params).start(long_rows())
    rest = state.drafter, state.text, state.sampling, state.keys, engine.window
    full, cut = (jax.device_get(one.propose(params, *rest)[0]) for one in (every, cutting))
    np.testing.assert_array_equal(full.tokens, cut.tokens)
    width = h.K
    given = np.full((len(full.tokens), width), config.mask_token_id, np.int32)
    given[:, 0] = full.tokens[:, 0]
    positions = state.drafter.lengths[:, None] + jnp.arange(width)[None]
    visible, places = jnp.ones((1, width, width), bool), jnp.arange(engine.window)[None]
    where = positions, visible, places, state.drafter, engine.window
    hidden, _ = head.forward(params, jnp.asarray(given), *where)
    assert head.confidence is not None
    before = jnp.asarray(full.tokens[:, :-1])
    logit = np.asarray(head.confidence(params, hidden, before), np.float64)
    expected = np.cumprod(1 / (1 + np.exp(-logit)), axis=1) >= 0.2
    np.testing.assert_array_equal(cut.valid[:, 1:], expected)
    assert 0 < expected.sum() < expected.size


def test_a_cut_before_unsure_places_is_exact_with_block_verification_too():
    assert certify_cut(CUTS["before places where max(q) < 0.6"], rule=block).lossless


@pytest.mark.parametrize("name", ["draft_model greedy", "draft_model coupled", "pard"])
def test_a_draft_model_that_has_rested_drafts_what_one_that_read_along_does(name):
    """K is 0 for some rounds: it reads nothing then, and afterwards proposes the same tokens."""
    rows, params = long_rows(), h.weights(h.CHAINS[name])
    own, found = h.CHAINS[name], []
    for drafting, pausing in ((own, observe_only(own)), (catch_up(own), rest(catch_up(own)))):
        on, off = (Engine(h.TARGET, one, walk, h.CAPACITY) for one in (drafting, pausing))
        state = h.init_state(on, params, *h.pack(rows, lean=True))
        for start in range(0, max(len(row.prompt) for row in rows), 16):
            state, _, _ = h.prefill(on, params, state, start, 16)
        drafts = []
        for engine in (on, off, *(off for _ in range(2 * h.K)), on, on, off, on):
            propose = jax.jit(drafting.propose, static_argnums=5)
            given = params.draft, state.drafter, state.text, state.sampling, state.keys, h.CAPACITY
            drafts.append((state.text.tokens, propose(*given)[0]))
            state, _ = h.step(engine, params, state)
        found.append(drafts)
    running = 0
    for (text, one), (other_text, other) in zip(*found, strict=True):
        np.testing.assert_array_equal(text, other_text)
        np.testing.assert_array_equal(one.valid, other.valid)
        seen = np.asarray(one.valid)
        np.testing.assert_array_equal(np.asarray(one.tokens)[seen], np.asarray(other.tokens)[seen])
        running += int(seen[:, 1:].sum())
    assert running > 50
    state = jax.eval_shape(lambda: catch_up(own).init(params.draft, 2, 32))
    assert rest(catch_up(own)).observe(params.draft, state, None, None, 32) is state

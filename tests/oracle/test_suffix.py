"""Suffix decoding on random lives of several requests: Arctic's cache, the one vLLM calls."""

import functools
import hashlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.audit.philox import Noise
from specjax.drafters import suffix, suffix_index
from specjax.types import Text

WORLDS, REQUESTS, ROUNDS = 64, 3, 18  # caches; requests at a time, twice; rounds of each
LONGEST_PROMPT, MOST_ADDED = 16, 4
ROOM = LONGEST_PROMPT + ROUNDS * MOST_ADDED


class Setting(NamedTuple):
    max_tree_depth: int
    depth: int  # K
    max_spec_factor: float = 1.0
    max_spec_offset: float = 0.0
    min_token_prob: float = 0.1
    max_cached_requests: int = 10_000


SETTINGS = {
    "defaults": Setting(24, 24),
    "wide": Setting(6, 5, 2.0, -1.0, 0.0),
    "evicting": Setting(10, 8, 0.5, 1.0, 0.3, max_cached_requests=REQUESTS + 1),
    "local": Setting(4, 8, 1.5, 0.0, 0.2, max_cached_requests=0),
}


class Lives(NamedTuple):
    """What every request of every world says; ``[world, life, request]`` leads each."""

    prompts: np.ndarray  # lengths
    added: np.ndarray  # [..., rounds] tokens per round
    tokens: np.ndarray  # [..., ROOM] prompt, then output


@functools.cache
def lives(seed: int) -> Lives:
    """Draw small and large alphabets; the worlds with large ones repeat themselves."""
    noise, shape = Noise(seed), (WORLDS, 2, REQUESTS)
    tokens = np.zeros((*shape, ROOM), np.int32)
    for world in range(WORLDS):
        alphabet = (2, 3, 6, 500)[world % 4]
        phrases = noise.integers(0, alphabet, 6, 7)
        picked = noise.integers(0, 6, 2, REQUESTS, ROOM)
        cut = noise.integers(1, 8, 2, REQUESTS, ROOM)
        for life in range(2):
            for request in range(REQUESTS):
                pairs = zip(picked[life, request], cut[life, request], strict=True)
                said = np.concatenate([phrases[i][:n] for i, n in pairs])
                tokens[world, life, request] = said[:ROOM]
    prompts = noise.integers(1, LONGEST_PROMPT + 1, *shape)
    return Lives(prompts, noise.integers(1, MOST_ADDED + 1, *shape, ROUNDS), tokens)


def events(setting: Setting, drawn: Lives, world: int) -> list:
    """Tell one world's story as the oracle's job."""
    told, ends = [], drawn.prompts[world].copy()
    for life in range(2):
        names = [f"{life}.{request}" for request in range(REQUESTS)]
        for request, name in enumerate(names):
            prompt = drawn.tokens[world, life, request, : ends[life, request]]
            told.append(["start", name, prompt.tolist()])
        for number in range(ROUNDS):
            for request, name in enumerate(names):
                text, start = drawn.tokens[world, life, request], ends[life, request]
                ends[life, request] += drawn.added[world, life, request, number]
                end = ends[life, request]
                told.append(["add", name, text[start:end].tolist()])
                context = text[max(0, end - setting.max_tree_depth) : end]
                told.append(["ask", name, context.tolist(), setting.depth])
        told += [["stop", name] for name in names]
    return told


def job(setting: Setting, drawn: Lives) -> dict:
    names = ("max_spec_factor", "max_spec_offset", "min_token_prob")
    options = {name: getattr(setting, name) for name in names}
    cache = {name: getattr(setting, name) for name in ("max_tree_depth", "max_cached_requests")}
    worlds = [
        {"cache": cache, "options": options, "events": events(setting, drawn, world)}
        for world in range(WORLDS)
    ]
    return {"kind": "suffix", "worlds": worlds}


extend = jax.jit(suffix_index.extend)


@functools.partial(jax.jit, static_argnums=0)
def ask(setting: Setting, own, common, tokens, ends) -> suffix.Guess:
    """Speculate in every world at once: each has a row of both indexes."""
    text = Text(tokens, ends, ends, ends, ends * 0)
    context, known = suffix.recent(text, setting.max_tree_depth)
    factor, offset = setting.max_spec_factor, setting.max_spec_offset
    budget = suffix.budgets(setting.max_tree_depth, factor, offset, setting.depth)

    def best(index, nodes):
        nodes = jnp.where(known, nodes, suffix_index.NONE)
        return suffix.follow(index, nodes, budget, setting.depth, setting.min_token_prob)

    found = best(own, own.active[:, : known.shape[1]])
    return suffix.better(found, best(common, suffix_index.match(common, context)))


def ours(setting: Setting, drawn: Lives) -> list[list]:
    """Live through all worlds side by side; per world the drafts in the order of the asks."""
    said = [[] for _ in range(WORLDS)]
    depth, rows = setting.max_tree_depth, np.arange(WORLDS)[:, None]
    nothing = jnp.zeros((WORLDS, depth), jnp.int32)
    common = suffix_index.empty(WORLDS, depth, 2 * REQUESTS * ROOM)
    ends = drawn.prompts.copy()
    for life in range(2):
        if life and setting.max_cached_requests == REQUESTS + 1:  # only the last response stays
            texts, starts = drawn.tokens[:, 0, -1], drawn.prompts[:, 0, -1]
            shifted = texts[rows, np.minimum(starts[:, None] + np.arange(ROOM), ROOM - 1)]
            kept = jnp.asarray(ends[:, 0, -1] - starts, jnp.int32)
            common = suffix_index.empty(WORLDS, depth, 2 * REQUESTS * ROOM)
            common = extend(common, jnp.asarray(shifted), kept)
        own, active = [], [nothing] * REQUESTS
        for request in range(REQUESTS):
            index = suffix_index.empty(WORLDS, depth, ROOM)
            prompt = jnp.asarray(drawn.tokens[:, life, request, :LONGEST_PROMPT])
            own.append(extend(index, prompt, jnp.asarray(ends[:, life, request], jnp.int32)))
        for number in range(ROUNDS):
            for request in range(REQUESTS):
                text, start = drawn.tokens[:, life, request], ends[:, life, request].copy()
                added = drawn.added[:, life, request, number]
                column = np.minimum(start[:, None] + np.arange(MOST_ADDED), ROOM - 1)
                new = jnp.asarray(text[rows, column]), jnp.asarray(added, jnp.int32)
                own[request] = extend(own[request], *new)
                if setting.max_cached_requests:
                    common = extend(common._replace(active=active[request]), *new)
                    active[request] = common.active
                ends[:, life, request] += added
                end = jnp.asarray(ends[:, life, request], jnp.int32)
                collect(said, ask(setting, own[request], common, jnp.asarray(text), end))
    return said


def collect(said: list[list], guess: suffix.Guess) -> None:
    """Add one draft to every world, as the oracle writes it."""
    tokens, probs, valid, scores, matches = jax.device_get(guess)
    for world, drafts in enumerate(said):
        real = valid[world]
        kept = tokens[world][real].tolist(), probs[world][real].tolist()
        drafts.append([kept[0], kept[1], float(scores[world]), int(matches[world])])


def keep(answer: dict) -> dict:
    """Leave out the parents: these drafts are chains."""
    return {"drafts": [[[d[0], d[2], d[3], d[4]] for d in world] for world in answer["drafts"]]}


def digested(answer: dict) -> dict:
    """Keep tokens and match lengths, and a digest of all probabilities and scores."""
    return {"drafts": [brief(drafts) for drafts in keep(answer)["drafts"]]}


def brief(drafts: list) -> list:
    numbers = np.float32([x for _, probs, score, _ in drafts for x in (*probs, score)])
    digest = hashlib.sha256(numbers.tobytes()).hexdigest()
    return [digest[:16], [[tokens, match] for tokens, _, _, match in drafts]]


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "evicting"])
def test_drafts_are_arctics(name, vllm, compared):
    """Concurrent and finished requests, own and common index: every token and every number."""
    setting, drawn = SETTINGS[name], lives(list(SETTINGS).index(name))
    theirs = vllm(f"suffix_{name}", job(setting, drawn), digested)["drafts"]
    mine = [brief(drafts) for drafts in ours(setting, drawn)]
    drafts = [draft for _, world in mine for draft in world]
    expected = [draft for _, world in theirs for draft in world]
    different = [i for i, (a, b) in enumerate(zip(drafts, expected, strict=True)) if a != b]
    assert not different, (drafts[different[0]], expected[different[0]])
    assert mine == theirs
    hits = sum(bool(tokens) for tokens, _ in drafts)
    assert hits > 0.4 * len(drafts)
    compared("suffix drafts", f"Arctic, {name}", f"{len(drafts)} asks, {hits} drafts", "equal")

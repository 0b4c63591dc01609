"""Suffix decoding on lives of several requests: Arctic's cache, the one vLLM calls."""

import functools
import gzip
import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.audit.philox import Noise
from specjax.bundled import BUNDLED, prompts
from specjax.core.types import Text
from specjax.drafters import suffix, suffix_draft, suffix_index
from specjax.engine.text.tokenizer import load_tokenizer
from tests.oracle.prompts import read
from tests.oracle.recordings import digest

REQUESTS, MOST_ADDED = 3, 4  # requests at a time, twice; tokens per round
WORLDS, ROUNDS, LONGEST_PROMPT = 64, 18, 16  # random caches, rounds of every request
REAL_WORLDS, REAL_ROUNDS, REAL_PROMPT = 8, 40, 128
DATA = Path(__file__).parents[3] / "shared" / "data"


class Setting(NamedTuple):
    max_tree_depth: int
    depth: int  # K
    max_spec_factor: float = 1.0
    max_spec_offset: float = 0.0
    min_token_prob: float = 0.1
    use_tree_spec: bool = False
    max_cached_requests: int = 10_000


SETTINGS = {
    "defaults": Setting(24, 24),
    "wide": Setting(6, 5, 2.0, -1.0, 0.0),
    "local": Setting(4, 8, 1.5, 0.0, 0.2, max_cached_requests=0),
    "evicting": Setting(10, 8, 0.5, 1.0, 0.3, max_cached_requests=REQUESTS + 1),
    "tree": Setting(8, 10, 2.0, 2.0, 0.05, use_tree_spec=True),
    "real": Setting(24, 24),
    "real tree": Setting(24, 24, use_tree_spec=True),
}


class Lives(NamedTuple):
    """What every request of every world says; ``[world, life, request]`` leads each."""

    prompts: np.ndarray  # lengths
    added: np.ndarray  # [..., rounds] tokens per round
    tokens: np.ndarray  # [..., room] prompt, then output


@functools.cache
def random_lives(seed: int) -> Lives:
    """Draw small and large alphabets; the worlds with large ones repeat themselves."""
    noise, shape = Noise(seed), (WORLDS, 2, REQUESTS)
    room = LONGEST_PROMPT + ROUNDS * MOST_ADDED
    tokens = np.zeros((*shape, room), np.int32)
    for world in range(WORLDS):
        alphabet = (2, 3, 6, 500)[world % 4]
        phrases = noise.integers(0, alphabet, 6, 7)
        picked = noise.integers(0, 6, 2, REQUESTS, room)
        cut = noise.integers(1, 8, 2, REQUESTS, room)
        for life in range(2):
            for request in range(REQUESTS):
                pairs = zip(picked[life, request], cut[life, request], strict=True)
                said = np.concatenate([phrases[i][:n] for i, n in pairs])
                tokens[world, life, request] = said[:room]
    lengths = noise.integers(1, LONGEST_PROMPT + 1, *shape)
    return Lives(lengths, noise.integers(1, MOST_ADDED + 1, *shape, ROUNDS), tokens)


@functools.cache
def real_lives(texts: tuple[str, ...]) -> Lives:
    """Cut texts, one after the other, into requests of as many tokens."""
    encode = load_tokenizer(BUNDLED["bundled"]).encode
    tokens = np.concatenate([np.asarray(encode(text), np.int32) for text in texts])
    shape, noise = (REAL_WORLDS, 2, REQUESTS), Noise(0)
    room = REAL_PROMPT + REAL_ROUNDS * MOST_ADDED
    lengths = noise.integers(REAL_PROMPT // 2, REAL_PROMPT + 1, *shape)
    added = noise.integers(1, MOST_ADDED + 1, *shape, REAL_ROUNDS)
    return Lives(lengths, added, np.resize(tokens, (*shape, room)))


def events(setting: Setting, drawn: Lives, world: int) -> list:
    """Tell one world's story as the oracle's job."""
    told, ends = [], drawn.prompts[world].copy()
    for life in range(2):
        names = [f"{life}.{request}" for request in range(REQUESTS)]
        for request, name in enumerate(names):
            prompt = drawn.tokens[world, life, request, : ends[life, request]]
            told.append(["start", name, prompt.tolist()])
        for number in range(drawn.added.shape[-1]):
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
    names = ["max_spec_factor", "max_spec_offset", "min_token_prob"]
    names += ["use_tree_spec"] * setting.use_tree_spec
    options = {name: getattr(setting, name) for name in names}
    cache = {name: getattr(setting, name) for name in ("max_tree_depth", "max_cached_requests")}
    worlds = [
        {"cache": cache, "options": options, "events": events(setting, drawn, world)}
        for world in range(len(drawn.tokens))
    ]
    return {"kind": "suffix", "worlds": worlds}


extend = jax.jit(suffix_index.extend)
forget = jax.jit(functools.partial(suffix_index.extend, one=suffix_index.forget))


@functools.partial(jax.jit, static_argnums=0)
def ask(setting: Setting, own, common, tokens, ends) -> suffix_draft.SuffixDraft:
    """Speculate in every world at once: each has a row of both indexes."""
    text = Text(tokens, ends, ends, ends, ends * 0)
    context, known = suffix.recent(text, setting.max_tree_depth)
    factor, offset = setting.max_spec_factor, setting.max_spec_offset
    budget = suffix.budgets(setting.max_tree_depth, factor, offset, setting.depth)

    def best(index, nodes):
        nodes, least = jnp.where(known, nodes, suffix_index.NONE), setting.min_token_prob
        limits = jnp.asarray(budget), setting.depth, least, setting.use_tree_spec
        return suffix_draft.draft_from_matches(index, nodes, *limits)

    found = best(own, own.active[:, : known.shape[1]])
    return suffix_draft.higher_scoring(found, best(common, suffix_index.match(common, context)))


def ours(setting: Setting, drawn: Lives) -> list[list]:
    """Live through all worlds side by side; per world the drafts in the order of the asks."""
    num_worlds, _, _, room = drawn.tokens.shape
    said = [[] for _ in range(num_worlds)]
    depth, rows = setting.max_tree_depth, np.arange(num_worlds)[:, None]
    nothing = jnp.zeros((num_worlds, depth), jnp.int32)
    common = suffix_index.empty(num_worlds, depth, 2 * REQUESTS * room)
    ends, longest = drawn.prompts.copy(), drawn.prompts.max()
    for life in range(2):
        if life and setting.max_cached_requests == REQUESTS + 1:  # all but the last response go
            for request in range(REQUESTS - 1):
                start, end = drawn.prompts[:, 0, request], ends[:, 0, request]
                column = np.minimum(start[:, None] + np.arange(room), room - 1)
                response = jnp.asarray(drawn.tokens[:, 0, request][rows, column])
                common = common._replace(active=nothing)
                common = forget(common, response, jnp.asarray(end - start, jnp.int32))
        own, active = [], [nothing] * REQUESTS
        for request in range(REQUESTS):
            index = suffix_index.empty(num_worlds, depth, room)
            prompt = jnp.asarray(drawn.tokens[:, life, request, :longest])
            own.append(extend(index, prompt, jnp.asarray(ends[:, life, request], jnp.int32)))
        for number in range(drawn.added.shape[-1]):
            for request in range(REQUESTS):
                text, start = drawn.tokens[:, life, request], ends[:, life, request].copy()
                added = drawn.added[:, life, request, number]
                column = np.minimum(start[:, None] + np.arange(MOST_ADDED), room - 1)
                new = jnp.asarray(text[rows, column]), jnp.asarray(added, jnp.int32)
                own[request] = extend(own[request], *new)
                if setting.max_cached_requests:
                    common = extend(common._replace(active=active[request]), *new)
                    active[request] = common.active
                ends[:, life, request] += added
                end = jnp.asarray(ends[:, life, request], jnp.int32)
                collect(said, ask(setting, own[request], common, jnp.asarray(text), end))
    return said


def collect(said: list[list], guess: suffix_draft.SuffixDraft) -> None:
    """Add one draft to every world, as the oracle writes it."""
    tokens, parents, probs, valid, scores, matches = jax.device_get(guess)
    for world, drafts in enumerate(said):
        real = valid[world]
        kept = tokens[world][real], parents[world][real] - 1, probs[world][real]
        kept = [part.tolist() for part in kept]
        drafts.append([*kept, float(scores[world]), int(matches[world])])


def brief(setting: Setting, drafts: list) -> list:
    """Keep a digest of all probabilities and scores, and every draft's match and signatures."""
    numbers = [x for _, _, probs, score, _ in drafts for x in (*probs, score)]
    numbers = hashlib.sha256(np.asarray(numbers, np.float32).tobytes()).hexdigest()
    return [numbers[:16], [signatures(setting, *draft) for draft in drafts]]


def signatures(setting: Setting, tokens, parents, probs, score, match) -> list:
    """Return the match, and digests of the whole draft and of what no tie can have put there.

    If the budget cut a draft short, others of its least likely strings may be as likely.
    """
    if not tokens:
        return [match]
    limits = setting.max_spec_factor, setting.max_spec_offset, setting.depth
    budget = suffix.budgets(match + 1, *limits)[match - 1]
    least, found = min(probs) if len(tokens) == budget else 0.0, []
    for token, parent in zip(tokens, parents, strict=True):
        found.append([*(found[parent] if parent >= 0 else ()), token])
    surely = sorted(one for one, prob in zip(found, probs, strict=True) if prob > least)
    return [match, *(digest(part)[:6] for part in ([tokens, parents], surely))]


def check(name: str, drawn: Lives, recording: str, vllm) -> tuple[int, int, int]:
    """Compare all asks; return how many, how many drafted, and how many differ at a tie."""
    setting = SETTINGS[name]

    def keep(answer):
        return {"drafts": [brief(setting, drafts) for drafts in answer["drafts"]]}

    theirs = vllm(recording, job(setting, drawn), keep)["drafts"]
    mine, asks, hits, ties = ours(setting, drawn), 0, 0, 0
    for drafts, (numbers, expected) in zip(mine, theirs, strict=True):
        own_numbers, own = brief(setting, drafts)
        assert own_numbers == numbers  # every probability and every score
        for draft, a, b in zip(drafts, own, expected, strict=True):
            asks, hits, ties = asks + 1, hits + (len(a) > 1), ties + (a != b)
            assert a == b or (a[0] == b[0] and a[2:] == b[2:]), draft
    return asks, hits, ties


@pytest.mark.parametrize("name", ["defaults", "wide", "local", "evicting", "tree"])
def test_drafts_are_arctics(name, vllm, compared):
    """Concurrent, finished and evicted requests, own and common index: every number."""
    order = "defaults", "wide", "evicting", "local", "tree"
    asks, hits, ties = check(name, random_lives(order.index(name)), f"suffix_{name}", vllm)
    assert hits > 0.4 * asks
    assert ties <= 0.5 * (name == "tree") * asks
    counted = f"equal, but for {ties} ties" if ties else "equal"
    compared("suffix drafts", f"Arctic, {name}", f"{asks} asks, {hits} drafts", counted)


def lines(name: str) -> list[dict]:
    """Read a data set of `../shared/data`, or skip."""
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    return [json.loads(line) for line in data.decode().splitlines()]


TEXTS = {
    "prompts": lambda: [turn for one in prompts() for turn in one["turns"]],
    "library": read,
    "humaneval": lambda: [
        one["prompt"] + one["canonical_solution"] for one in lines("HumanEval.jsonl.gz")
    ],
    "gsm8k": lambda: [
        f"{one['question']}\n{one['answer']}" for one in lines("gsm8k_test_300.jsonl")
    ],
    "spec_bench": lambda: [turn for one in lines("spec_bench.jsonl") for turn in one["turns"]],
}


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("name", TEXTS)
def test_drafts_on_real_texts_are_arctics(name, trees, vllm, compared):
    drawn = real_lives(tuple(TEXTS[name]()))
    setting, recording = (
        ("real tree", f"suffix_{name}_tree") if trees else ("real", f"suffix_{name}")
    )
    asks, hits, ties = check(setting, drawn, recording, vllm)
    assert hits > 0.1 * asks
    assert ties <= 0.5 * trees * asks
    counted = f"equal, but for {ties} ties" if ties else "equal"
    what = f"Arctic, {name}{', trees' * trees}"
    compared("suffix drafts", what, f"{asks} asks, {hits} drafts", counted)

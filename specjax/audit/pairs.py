"""Audit the shipped drafters with the shipped rules: the joint distribution of every pair.

The models are toys: a table has the logits after each token, so that a draft model, EAGLE's,
Medusa's and DFlash's heads are the same table behind four interfaces, and only the shipped code
between them differs. What drafts in parallel reads mask tokens, so that its later tokens do not
depend on its earlier ones.
"""

import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from specjax.audit.joint import Joint, joint
from specjax.audit.rules import EXACT, LOSSLESS, ROUNDING
from specjax.core.cache import init_cache, init_slots
from specjax.core.sampling import FORBIDDEN
from specjax.core.types import (
    BlockHead,
    Cache,
    Drafter,
    Engine,
    FeatureHead,
    Params,
    Penalties,
    PyTree,
    Rule,
    Sampling,
    Stages,
)
from specjax.drafters.block import block_drafter
from specjax.drafters.draft_model import draft_model
from specjax.drafters.fallback import Both, fallback
from specjax.drafters.feature import feature
from specjax.drafters.hierarchical import hierarchical
from specjax.drafters.ngram import ngram
from specjax.drafters.stages import staged
from specjax.drafters.suffix import suffix
from specjax.drafters.tree import Tree, chain_of, fixed
from specjax.models.toy import markov_target
from specjax.verify.block import block
from specjax.verify.rejection import rejection
from specjax.verify.rejection_tree import rejection_tree
from specjax.verify.walk import walk

CHAIN, TREE = 4, 3  # the vocabularies of pairs with chains, and with siblings
K = 2


class Pair(NamedTuple):
    """A drafter and a rule that can be used together."""

    name: str
    promise: str  # LOSSLESS or EXACT
    drafter: Drafter
    rule: Rule
    size: int
    form: str = "table"  # of the drafter's params: "table", "none", "both" or "engine"
    prompt: tuple[int, ...] = (0,)


class Certified(NamedTuple):
    """The findings on one pair and one kind of request."""

    pair: str
    request: str
    promise: str
    found: Joint
    seconds: float

    @property
    def kept(self) -> bool:
        """Whether the pair keeps its promise."""
        return self.found.tv + self.found.doubt < ROUNDING


def shipped_pairs() -> tuple[Pair, ...]:
    """Return the pairs of shipped drafters and rules, those that sample first."""
    model, small = markov_target(CHAIN), markov_target(TREE)
    siblings, best = fixed([(0,), (1,), (0, 0)]), Tree(2, 2, 3)
    sampled, matched = "probabilistic", suffix(K, 4, 1.0, 0.0)
    branches = suffix(K, 4, 1.0, 0.0, use_tree_spec=True)
    inner = Engine(small, ngram(1, 2, 1), walk, 0)
    told = {"form": "none", "prompt": (0, 1, 0, 1, 2, 0, 1)}
    heads = {
        "draft_model": draft_model(model, K, sampled),
        "EAGLE": feature(toy_feature_head(CHAIN), K, sampled),
        "Medusa": staged(toy_stages(CHAIN), K, sampled),
        "PARD": draft_model(model, K, sampled, 2**30, 1),
        "P-EAGLE": feature(toy_feature_head(CHAIN, at_once=True), K, sampled),
        "DFlash": block_drafter(toy_block_head(CHAIN), K, sampled),
        "DSpark": block_drafter(toy_block_head(CHAIN, markov=True), K, sampled),
    }
    cut = draft_model(model, replace(chain_of(K), min_confidence=0.3), sampled)
    ratio = {"rejection": rejection, "block": block, "rejection_tree": rejection_tree}
    chains = [
        Pair(f"{drafter}, {rule}", EXACT, heads[drafter], ratio[rule], CHAIN)
        for drafter in heads
        for rule in ratio
        if drafter == "draft_model" or rule != "rejection_tree"
    ]
    trees = [
        Pair(f"{shape}{way}, {name}", promise, draft_model(small, tree, method), rule, TREE)
        for shape, tree in (("siblings", siblings), ("dynamic tree", best))
        for way, method, name, promise, rule in (
            ("", sampled, "rejection_tree", EXACT, rejection_tree),
            (" coupled", "coupled", "walk", LOSSLESS, walk),
        )
    ]
    ddtree = block_drafter(toy_block_head(TREE), best, sampled)
    return (
        *chains,
        Pair("draft_model cut where unsure, rejection", EXACT, cut, rejection, CHAIN),
        Pair("draft_model, walk", LOSSLESS, draft_model(model, K, sampled), walk, CHAIN),
        Pair("coupled, walk", LOSSLESS, draft_model(model, K, "coupled"), walk, CHAIN),
        Pair("coupled, rejection", EXACT, draft_model(model, K, "coupled"), rejection, CHAIN),
        Pair("greedy, walk", LOSSLESS, draft_model(model, K), walk, CHAIN),
        *trees,
        Pair("DDTree, rejection_tree", EXACT, ddtree, rejection_tree, TREE),
        Pair("suffix, rejection", EXACT, matched, rejection, TREE, **told),
        Pair("suffix, walk", LOSSLESS, matched, walk, TREE, **told),
        Pair("suffix tree, rejection_tree", EXACT, branches, rejection_tree, TREE, **told),
        Pair("ngram, rejection", EXACT, ngram(K, 2, 1), rejection, TREE, **told),
        Pair(
            "suffix or draft_model, rejection", EXACT,
            fallback(matched, draft_model(small, K, sampled)), rejection, TREE, "both",
        ),
        Pair("hierarchical, rejection", EXACT, hierarchical(inner, K), rejection, TREE, "engine"),
    )  # fmt: skip


SEVERAL = ("draft_model, rejection", "coupled, walk", "siblings, rejection_tree")  # each request
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature 0.6": {"temperature": 0.6},
    "temperature 0": {"temperature": 0.0},
    "top_k 2": {"top_k": 2},
    "top_p 0.7": {"top_p": 0.7},
    "min_p 0.4": {"min_p": 0.4},
    "penalties": {"penalties": (1.3, 0.2, 0.4)},
    "stop": {"stop": 1},
    "stop after 3": {"stop": 1, "min_tokens": 3},
    "mask": {"forbidden": 1},
    "bad words": {"bad_word": (0, 2)},
    "K = 1": {"max_draft": 1},
}


def request(
    size: int, *, temperature: float = 1.0, max_draft: int = K, stop: int | None = None,
    min_tokens: int = 0, top_k: int | None = None, top_p: float = 1.0, min_p: float = 0.0,
    penalties: tuple[float, float, float] = (1.0, 0.0, 0.0), forbidden: int | None = None,
    bad_word: tuple[int, int] | None = None,
) -> Sampling:  # fmt: skip
    """Return one row's sampling parameters, with every field present: one program for all."""

    def one(value: int | float, dtype: Any = jnp.float32) -> Any:
        return jnp.full(1, value, dtype)

    bias = jnp.zeros((1, size))
    return Sampling(
        temperature=one(temperature),
        max_draft=one(max_draft, jnp.int32),
        stop_ids=jnp.full((1, 1), size if stop is None else stop, jnp.int32),
        min_tokens=one(min_tokens, jnp.int32),
        top_k=one(size if top_k is None else top_k, jnp.int32),
        top_p=one(top_p),
        min_p=one(min_p),
        penalties=Penalties(*map(one, penalties)),
        bias=bias if forbidden is None else bias.at[0, forbidden].set(FORBIDDEN),
        bad_words=jnp.full((1, 1, 2), size, jnp.int32) if bad_word is None
        else jnp.asarray([[bad_word]], jnp.int32),
    )  # fmt: skip


def tables(size: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return random logits [V, V] after each token, of a target and of a draft model."""
    target, draft = np.random.default_rng(seed).dirichlet(np.ones(size), (2, size))
    return np.log(target), np.log(draft)


def certify(pair: Pair, kind: str = "plain", *, rounds: int = 2) -> Certified:
    """Return the findings on a pair for one of ``REQUESTS``."""
    target, draft = tables(pair.size)
    table = jnp.asarray(draft, jnp.float32)
    params: dict[str, PyTree] = {
        "table": table, "none": None, "both": Both(None, table), "engine": Params(table, ()),
    }  # fmt: skip
    start = time.perf_counter()
    found = joint(
        pair.drafter, pair.rule, Params(target, params[pair.form]), prompt=pair.prompt,
        sampling=request(pair.size, **REQUESTS[kind]), rounds=rounds,
    )  # fmt: skip
    return Certified(pair.name, kind, pair.promise, found, time.perf_counter() - start)


def certify_all(names: Sequence[str] = (), kinds: Sequence[str] = ()) -> Iterator[Certified]:
    """Yield the findings on shipped pairs: plain requests, and all others for ``SEVERAL``.

    Args:
        names: of pairs; all if empty.
        kinds: of requests, for each of these pairs; if empty, as above.

    Raises:
        ValueError: there is no pair, or request, of such a name.
    """
    pairs = {pair.name: pair for pair in shipped_pairs()}
    for name, known in [(one, pairs) for one in names] + [(one, REQUESTS) for one in kinds]:
        if name not in known:
            raise ValueError(f"there is no {name!r}: choose from {'; '.join(known)}")
    for name in names or pairs:
        every = REQUESTS if name in SEVERAL and not names else ("plain",)
        for kind in kinds or every:
            yield certify(pairs[name], kind)


@functools.cache
def toy_feature_head(size: int, *, at_once: bool = False) -> FeatureHead:
    """Return EAGLE's interface to a table, its ``params``: a feature is a row of logits.

    With ``at_once`` it is P-EAGLE's, and token 0 the mask.
    """

    def forward(
        params, tokens, features, positions, visible, cache, window, only=None, present=None
    ):
        rows = params[tokens]
        if only is not None:
            rows = jnp.take_along_axis(rows, only[:, None, None], axis=1)
        return rows, cache

    return FeatureHead(
        init_cache=one_layer,
        fuse=lambda params, hidden, taps: hidden,
        forward=forward,
        logits=lambda params, hidden: hidden,
        size=size,
        dtype="float32",
        mask_token_id=0,
        mask_features=(lambda params: jnp.zeros((1, 1, size))) if at_once else None,
    )


@functools.cache
def toy_stages(size: int) -> Stages:
    """Return Medusa's interface to a table, its ``params``."""
    return Stages(
        start=lambda params, hidden: hidden,
        step=lambda params, carry, token, stage: (carry, params[token]),
        vocab_size=size,
        hidden_size=size,
        dtype="float32",
    )


@functools.cache
def toy_block_head(size: int, *, markov: bool = False) -> BlockHead:
    """Return DFlash's interface to a table, its ``params``; token 0 is the mask.

    With ``markov`` it is DSpark's, and what follows a token is all.
    """

    def forward(params, tokens, positions, visible, places, cache, window):
        return params[tokens] * (not markov), cache

    return BlockHead(
        init_cache=one_layer,
        remember=lambda params, taps, positions, cache: cache,
        forward=forward,
        logits=lambda params, hidden: hidden,
        follow=(lambda params, tokens: params[tokens]) if markov else None,
        confidence=None,
        mask_token_id=0,
        sample_from_anchor=markov,
    )


def one_layer(batch_size: int, capacity: int) -> Cache:
    """Return a cache of one layer that nothing reads."""
    return init_cache([init_slots(1, (1, 1), "float32", batch_size, capacity)], batch_size)

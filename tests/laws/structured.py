"""``make structured``: texts under random JSON schemas, by random models, plain and drafted.

Each hundred schemas get a model of their own, and every schema is completed at T = 1.5 plainly and
with every drafter of ``ARMS``: a drafter changes no token and no bit of a log probability (law 1),
and a text that ends fits its schema, as jsonschema reads it. Under the rules of ``RATIO``, which
write other texts, they must fit too. A text that reaches ``MOST_TOKENS`` has not ended; those are
counted.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jsonschema
import numpy as np

from specjax.core.types import Drafter, Params, Rule
from specjax.drafters.draft_model import draft_model
from specjax.engine.request_state import RequestState
from specjax.host.compile_cache import enable_compile_cache
from specjax.models.build import init_params
from specjax.verify.rejection import rejection
from specjax.verify.rejection_tree import rejection_tree
from specjax.verify.walk import walk
from tests.laws import grammars as g
from tests.laws import harness as h
from tests.laws.schemas import random_schema

MOST_CHARACTERS, MOST_TOKENS = 90, 110
PER_MODEL, SLOTS = 100, 16
TEMPERATURE = 1.5
FORMATS = jsonschema.FormatChecker(("date", "ipv4", "uuid"))


class Arm(NamedTuple):
    """A drafter, the rule that verifies it, and which head it has; None: none, or a model."""

    drafter: Drafter
    rule: Rule = walk
    head: str | None = None


CHAINS = ("ngram", "suffix", "draft_model coupled")
ARMS = {
    **{name: Arm(h.CHAINS[name]) for name in CHAINS},
    "mtp": Arm(h.CHAINS["mtp"], head="mtp"),
    "draft_model, best tree": Arm(h.GROWN["draft_model best"]),
    "eagle3, fixed tree": Arm(h.GROWN["eagle3"], head="eagle3"),
}
RATIO = {
    "rejection": Arm(draft_model(h.TARGET, h.K, "probabilistic"), rejection),
    "rejection_tree": Arm(draft_model(h.TARGET, h.BUSH, "probabilistic"), rejection_tree),
}
EVERY = (*ARMS, *RATIO)


class Tally(NamedTuple):
    """What came of the texts of one arm."""

    texts: int
    ended: int
    faults: list[str]
    drafted: int
    accepted: int


def random_params(seed: int, head: str | None) -> Params:
    """Return the weights of a random target, and of a random head or of a model much like it."""
    scale = np.random.default_rng(seed).uniform(1.0, 1.8)
    target = jax.tree.map(lambda leaf: leaf * scale, init_params(h.TINY, jax.random.key(seed)))
    if head is not None:
        draft = init_params(h.HEADS[head][0], jax.random.key(seed + 1))
        if "vocab_rows" in draft:  # the last 8 tokens are not in its vocabulary
            draft["vocab_rows"] = jnp.minimum(jnp.arange(h.VOCAB, dtype=jnp.int32), h.VOCAB - 8)
        return Params(target, draft)
    leaves, tree = jax.tree.flatten(target)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    noisy = [x + 0.03 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    return Params(target, jax.tree.unflatten(tree, noisy))


def compare(first: int, count: int, names: Iterable[str] = EVERY) -> dict[str, Tally]:
    """Complete some schemas in every way; return a tally per way, the plain one first.

    Args:
        first: the number of the first schema, which is also the seed of the model.
        count: of schemas.
        names: of ``ARMS`` and ``RATIO``.
    """
    schemas = [
        random_schema(np.random.default_rng(number), MOST_CHARACTERS)
        for number in range(first, first + count)
    ]
    requests = [
        g.request(first + i, g.json_form(schema), TEMPERATURE, max_tokens=MOST_TOKENS)
        for i, schema in enumerate(schemas)
    ]
    tallies, plain = {}, None
    for name in ("plain", *names):
        arm = {"plain": Arm(h.PLAIN), **ARMS, **RATIO}[name]
        params = random_params(first, arm.head)
        found = g.complete(arm.drafter, requests, params, rule=arm.rule, slots=SLOTS)
        plain = plain or found
        faults = list(misfits(found, schemas))
        if arm.rule is walk:
            faults += differences(found, plain)
        rounds = [one for state in found for one in state.rounds]
        tallies[name] = Tally(
            texts=count,
            ended=sum(state.finish_reason == "stop" for state in found),
            faults=[f"{name}, {fault}" for fault in faults],
            drafted=sum(len(one.drafted) for one in rounds),
            accepted=sum(one.num_accepted for one in rounds),
        )
    return tallies


def misfits(found: Sequence[RequestState], schemas: Sequence[Any]) -> Iterator[str]:
    """Yield the texts that have ended and do not fit their schemas."""
    for state, schema in zip(found, schemas, strict=True):
        if state.finish_reason == "stop":
            try:
                jsonschema.validate(json.loads(g.text_of(state)), schema, format_checker=FORMATS)
                continue
            except (ValueError, jsonschema.ValidationError) as error:
                reason = str(error).splitlines()[0]
        elif state.finish_reason == "length":
            continue
        else:
            reason = f"finish_reason {state.finish_reason}: {state.failure}"
        text = g.text_of(state)
        yield f"request {state.request.seed}, {text!r} of {json.dumps(schema)}: {reason}"


def differences(found: Sequence[RequestState], plain: Sequence[RequestState]) -> Iterator[str]:
    """Yield the texts or log probabilities that are not those of plain decoding."""
    for ours, theirs in zip(found, plain, strict=True):
        try:
            g.same([ours], [theirs])
        except AssertionError as error:
            yield f"request {ours.request.seed} differs: {' '.join(str(error).split())}"


def total(tallies: Sequence[Tally]) -> Tally:
    """Return the sum of some tallies."""
    return Tally(*(sum(column[1:], column[0]) for column in zip(*tallies, strict=True)))


def run(count: int, say: Callable[[str], None]) -> list[str]:
    """Compare ``count`` schemas, say what came of each model's and of all, return the faults."""
    start, parts = time.monotonic(), []
    for first in range(0, count, PER_MODEL):
        parts.append(compare(first, min(PER_MODEL, count - first)))
        one = total(list(parts[-1].values()))
        say(
            f"{first + parts[-1]['plain'].texts:5} schemas  {one.ended:5} of {one.texts} texts "
            f"ended  {len(one.faults)} faults  {time.monotonic() - start:6.0f} s"
        )
        for fault in one.faults:
            say(fault)
    say(f"{'':24}  texts  ended  faults  drafted  accepted")
    for name in parts[0]:
        one = total([part[name] for part in parts])
        say(
            f"{name:24}  {one.texts:5}  {one.ended:5}  {len(one.faults):6}  {one.drafted:7}  "
            f"{one.accepted:8}"
        )
    return [fault for part in parts for one in part.values() for fault in one.faults]


def main() -> None:
    """Compare, and keep the log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemas", type=int, default=2000)
    parser.add_argument("--log", type=Path, default=Path(__file__).with_name("structured.log"))
    chosen = parser.parse_args()
    enable_compile_cache()
    kept = [
        f"{chosen.schemas} schemas of at most {MOST_CHARACTERS} characters, T = {TEMPERATURE}, "
        f"max_tokens {MOST_TOKENS}; a random model per {PER_MODEL}; plain, {len(ARMS)} drafters "
        f"bitwise the same, {len(RATIO)} ratio rules"
    ]
    print(kept[0])

    def say(line: str) -> None:
        print(line, flush=True)
        kept.append(line)

    faults = run(chosen.schemas, say)
    say(f"failed: {len(faults)} faults" if faults else "passed")
    chosen.log.write_text("\n".join(kept) + "\n", encoding="utf-8")
    if faults:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

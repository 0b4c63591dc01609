"""Every comparison in ``specjax/verify`` matters: flip any one, and the audit says otherwise."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.audit.cases import KINDS, random_cases
from specjax.audit.exact import exact_distribution
from specjax.audit.request import plain_request, repeat
from specjax.core import sampling as s
from specjax.core.topology import chain_parents
from specjax.core.types import Draft, Rule
from tests.verify.mutants import FOLDER, MODULES, NONE, Nest

SIZE, K, TREE = 4, 2, (0, 0, 0, 1)
EQUIVALENT: dict[str, str] = {}  # comparisons whose flip changes nothing, and why: none is known


def law(nest: Nest, number: int, rule: Rule, *, over: float = 1.0, **how: Any) -> np.ndarray:
    """Audit a rule while a mutant is active; drafts tell ``over`` times the law they have."""
    p_tree, q_tree = random_cases(len(KINDS), SIZE, K)
    plain = plain_request(p_tree, K)
    marked = plain._replace(text=plain.text._replace(limits=jnp.full(1, number, jnp.int32)))
    found = exact_distribution(armed(nest, rule, over), p_tree, q_tree, K, request=marked, **how)
    return np.concatenate([leaf.ravel() for leaf in found])


def armed(nest: Nest, rule: Rule, over: float) -> Rule:
    """Wrap a rule so that it reads which mutant is active off the text's limits, once per nest."""
    if (rule, over) not in nest.armed:

        def verify(noise, draft, logits, text, sampling, depth):
            nest.active = text.limits[0] if nest.dynamic else nest.active
            if draft.probs is not None:
                draft = draft._replace(probs=over * draft.probs)
            return rule.verify(noise, draft, logits, text, sampling, depth)

        nest.armed[rule, over] = Rule(rule.draw_noise, verify)
    return nest.armed[rule, over]


def addresses(nest: Nest):
    """Draw the noise of two greedy rows, and of two that sample."""
    plain = repeat(plain_request(np.ones((1, 1, SIZE)), K), 2)
    draft = Draft(jnp.zeros((2, 3), jnp.int32), chain_parents(2, 3), jnp.ones((2, 3), bool), None)
    keys = jnp.stack([s.row_key(0), s.row_key(1)])

    @jax.jit
    def draw(number, temperature):
        nest.active, sampling = number, plain.sampling._replace(temperature=temperature)
        ways = (nest.modules["noise"].by_token, nest.modules["noise"].by_round)
        noise = [address(keys, plain.text, draft, sampling, SIZE) for address in ways]
        return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(noise)])

    return lambda number: np.concatenate([draw(number, jnp.full(2, t)) for t in (0.0, 1.0)])


def conditional(nest: Nest, number: int) -> np.ndarray:
    nest.active = number
    return np.array(nest.modules["synthetic"].to_conditional((1.0, 0.5, 0.0, 0.0)))


def looks(nest: Nest):
    """List what an audit of a module looks at, each as a function of the active mutant."""
    get = {name: vars(module) for name, module in nest.modules.items()}
    rejection, tree = get["rejection"]["rejection"], get["rejection_tree"]["rejection_tree"]
    block, walk = get["block"]["block"], get["walk"]["walk"]
    typical, entropy = get["typical"]["typical"](0.25, 10.0), get["entropy"]["entropy"]()
    synthetic = get["synthetic"]["synthetic"]((0.5, 0.25))
    return {
        "noise": [addresses(nest)],
        "probs_rule": [lambda n: law(nest, n, rejection)],
        "verdict": [lambda n: law(nest, n, rejection)],
        "walk": [lambda n: law(nest, n, walk)],
        "rejection": [
            lambda n: law(nest, n, rejection),
            lambda n: law(nest, n, rejection, with_probs=False),
            lambda n: law(nest, n, synthetic),  # refuses where p = q
        ],
        "rejection_tree": [
            lambda n: law(nest, n, tree, parents=TREE),
            lambda n: law(nest, n, tree, parents=TREE, over=1 + 2.0**-9),
        ],
        "block": [lambda n: law(nest, n, block)],
        "typical": [lambda n: law(nest, n, typical, parents=TREE)],
        "entropy": [lambda n: law(nest, n, entropy)],
        "synthetic": [lambda n: law(nest, n, synthetic), lambda n: conditional(nest, n)],
    }


def differs(look, number: int, sound: np.ndarray) -> bool:
    """Look with a mutant active; a crash differs too."""
    try:
        return not np.allclose(look(number), sound, rtol=0, atol=1e-10)
    except (TypeError, AttributeError, ValueError, IndexError, ZeroDivisionError):
        return True


@pytest.mark.parametrize("module", MODULES)
def test_no_comparison_can_be_flipped_unnoticed(module):
    nest = Nest(module)
    shared, survivors = looks(nest)[module], []
    sound = [look(NONE) for look in shared]
    for mutant in nest.mutants:
        mine = shared
        if mutant.flip in ("Is", "IsNot"):  # decided while tracing: a program of its own
            own = Nest(module)
            own.dynamic, own.active = False, mutant.number
            mine = looks(own)[module]
        pairs = zip(mine, sound, strict=True)
        caught = any(differs(look, mutant.number, right) for look, right in pairs)
        if not caught and mutant.said not in EQUIVALENT:
            survivors.append(mutant)
    assert not survivors


def test_every_rule_is_mutated():
    files = {file.stem for file in FOLDER.glob("*.py")} - {"__init__"}
    assert files == set(MODULES)
    assert len([mutant for module in MODULES for mutant in Nest(module).mutants]) >= 30

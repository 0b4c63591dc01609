"""Enumerate the exact distribution of what a verification rule emits, drafts and noise included.

The shipped kernel runs on every draft and on every cell of its noise (``noise_partition``), so no
rule is written down a second time. Emitted tokens are continued by the target to K + 1 tokens, so
that rounds of different lengths can be compared with the target's distribution. The kernel runs
in float32, as shipped; probabilities are summed in float64.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.audit.drafts import Drafts, batches, draw
from specjax.audit.noise_partition import RunKernel, noise_partition
from specjax.audit.prefixes import continued, num_contexts, texts
from specjax.audit.request import Request, plain_request, repeat
from specjax.core import sampling as s
from specjax.core.types import Draft, Rule, Sampling, Text, Verdict
from specjax.theory.arrays import Value
from specjax.verify.noise import TINY, Noise

FLOATS = 2**23  # of the largest array in one call of the kernel


class RuleOutput(NamedTuple):
    """The distribution of what a rule emits, per case."""

    joint: np.ndarray  # [cases, V ** (K + 1)] probabilities of the texts of K + 1 tokens
    tv: np.ndarray  # [cases] total variation between ``joint`` and the target's own
    expected_length: np.ndarray  # [cases] tokens emitted per round
    stray: np.ndarray  # [cases] probability of texts that the target never writes
    doubt: np.ndarray  # [cases] weight of the cells whose two ends disagree: bounds tv's error


def exact_distribution(
    rule: Rule,
    p_tree: np.ndarray,
    q_tree: np.ndarray,
    K: int,
    *,
    parents: Sequence[int] | None = None,
    valid: Sequence[bool] | None = None,
    replacement: bool = True,
    with_probs: bool = True,
    drawn: np.ndarray | None = None,
    request: Request | None = None,
    parts: int = 1,
) -> RuleOutput:
    """Return the exact distribution of what a rule emits, for drafts from q and target p.

    Args:
        rule: the verification rule, as shipped.
        p_tree: [cases, C, V] the target given every prefix (see ``prefixes``).
        q_tree: [cases, C, V] the draft likewise.
        K: depth of the drafts.
        parents: shape of the drafts; a chain of K tokens if None.
        valid: which nodes exist; all if None.
        replacement: whether siblings are drawn with replacement.
        with_probs: whether the rule receives q as ``Draft.probs``.
        drawn: the distribution that drafts really come from, if it is not q.
        request: logits, text and sampling options with p as their ``plain_distribution``; if
            None, logits are log p at temperature 1.
        parts: see ``noise_partition``.
    """
    cases, _, size = p_tree.shape
    shape = tuple(max(n - 1, 0) for n in range(K + 1)) if parents is None else tuple(parents)
    there = np.array([True] * len(shape) if valid is None else valid)
    request = plain_request(p_tree, K) if request is None else request
    drafts = draw(q_tree, q_tree if drawn is None else drawn, shape, there, replacement)
    mass = np.zeros((cases, num_contexts(size, K + 1)))
    expected_length, doubt = np.zeros(cases), np.zeros(cases)
    walks = reads_gumbel_noise(rule, size)
    for some in batches(drafts, FLOATS // (size * len(shape) * size)):
        given = some if with_probs else some._replace(probs=None)
        run = prepare(rule, K, walks, given, shape, request)
        for cells in noise_partition(run, shape, some.tokens, size, parts=parts, walks=walks):
            verdicts = [run(*end) for end in cells.ends]
            path, num_accepted = map(np.asarray, (verdicts[0].path, verdicts[0].num_accepted))
            stop = np.take_along_axis(path, num_accepted[..., None], axis=-1)
            share = np.take_along_axis(cells.shares, stop, axis=-1)[..., 0]
            share = cells.shares.prod(axis=-1) if walks else share
            weight, case = some.chances * cells.width * share, np.tile(some.case, (size, 1))
            emitted = [context_of(one, size) for one in verdicts]
            for one, context in zip(verdicts, emitted, strict=True):
                np.add.at(mass, (case, context), weight / 2)
                np.add.at(expected_length, case, weight * (one.num_accepted + 1) / 2)
            np.add.at(doubt, case, weight * (emitted[0] != emitted[1]))
    joint, target = continued(mass, p_tree, K + 1), texts(p_tree, K + 1)
    return RuleOutput(
        joint=joint,
        tv=abs(joint - target).sum(axis=-1) / 2,
        expected_length=expected_length,
        stray=np.where(target == 0, joint, 0.0).sum(axis=-1),
        doubt=doubt,
    )


def prepare(
    rule: Rule, K: int, walks: bool, drafts: Drafts, shape: tuple[int, ...], request: Request
) -> RunKernel:
    """Return the kernel on these drafts, as a function of the noise alone."""
    rows = len(drafts.tokens)
    text, sampling = repeat(request.text, rows), repeat(request.sampling, rows)
    root = text.tokens[:, text.lengths[0] - 1]
    draft = Draft(
        tokens=jnp.asarray(drafts.tokens, jnp.int32).at[:, 0].set(root),
        parents=jnp.tile(jnp.asarray(shape, jnp.int32), (rows, 1)),
        valid=jnp.asarray(drafts.valid),
        probs=None if drafts.probs is None else jnp.asarray(drafts.probs, jnp.float32),
    )
    seen = request.logits[drafts.case[:, None], drafts.contexts]
    given = draft, jnp.asarray(seen, jnp.float32), text, sampling

    def run(uniforms: np.ndarray, exponentials: np.ndarray) -> Verdict:
        noise = jnp.asarray(uniforms, jnp.float32), jnp.asarray(exponentials, jnp.float32)
        return jax.device_get(judge(rule, K, walks, *noise, *given))

    return run


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def judge(
    rule: Rule,
    K: int,
    walks: bool,
    uniforms: Value,
    exponentials: Value,
    draft: Draft,
    logits: Value,
    text: Text,
    sampling: Sampling,
) -> Verdict:
    """Return the verdicts on R drafts for each of M noises [M, R, N] and [M, R, N, V]."""

    def once(uniforms, exponentials) -> Verdict:
        noise = (
            -jnp.log(jnp.maximum(exponentials, TINY)) if walks else Noise(uniforms, exponentials)
        )
        return rule.verify(noise, draft, logits, text, sampling, K)

    return jax.vmap(once)(uniforms, exponentials)


def reads_gumbel_noise(rule: Rule, size: int) -> bool:
    """Return whether a rule reads Gumbel noise at every node (``walk``), unlike the ratio rules."""
    request, root = plain_request(np.ones((1, 1, size)), 0), jnp.zeros((1, 1), jnp.int32)
    draft = Draft(root, root, root == 0, None)

    def draw(keys, text, draft, sampling):
        return rule.draw_noise(keys, text, draft, sampling, size)

    noise = jax.eval_shape(draw, s.row_key(0)[None], request.text, draft, request.sampling)
    return isinstance(noise, jax.ShapeDtypeStruct)


def context_of(verdict: Verdict, size: int) -> np.ndarray:
    """Return the index of the prefix that the emitted tokens form (see ``prefixes``)."""
    context = np.zeros_like(verdict.num_accepted)
    for i in range(verdict.tokens.shape[-1]):
        longer = context * size + 1 + verdict.tokens[..., i]
        context = np.where(i <= verdict.num_accepted, longer, context)
    return context

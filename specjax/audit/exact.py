"""The exact law of a verification rule: the shipped kernel, over every draft and all noise.

Emitted tokens are continued by the target to a horizon of K + 1, so that rounds of different
lengths can be compared with its law. The kernel runs in float32, as shipped; probabilities are
summed in float64. How noise is integrated without a second copy of any rule: ``boxes``.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling as s
from specjax.audit.boxes import Ask, cut
from specjax.audit.drafts import Drafts, batches, draw
from specjax.audit.prefixes import continued, num_contexts, texts
from specjax.audit.request import Request, plain_request, repeat
from specjax.types import Draft, Rule, Verdict
from specjax.verify.noise import TINY, Noise

FLOATS = 2**23  # of the largest array in one call of the kernel


class Law(NamedTuple):
    """What a rule does, per case."""

    joint: np.ndarray  # [cases, V ** (K + 1)] law of the texts of K + 1 tokens
    tv: np.ndarray  # [cases] its total variation from the target's
    expected_length: np.ndarray  # [cases] tokens emitted per round
    stray: np.ndarray  # [cases] probability of texts the target never writes
    doubt: np.ndarray  # [cases] weight of the boxes whose two ends disagree; tv errs by less


def exact_law(
    rule: Rule,
    p_tree: np.ndarray,
    q_tree: np.ndarray,
    K: int,
    *,
    parents: Sequence[int] | None = None,
    valid: Sequence[bool] | None = None,
    replacement: bool = True,
    told: bool = True,
    drawn: np.ndarray | None = None,
    request: Request | None = None,
    parts: int = 1,
) -> Law:
    """Enumerate what a rule emits when drafts come from q and the target's law is p.

    Both are trees [cases, C, V], see ``prefixes``. ``parents`` is the draft's shape (None: a
    chain of K tokens) and ``valid`` marks its nodes (None: all); siblings are drawn with or
    without ``replacement``. ``told`` False hides the draft's law from the rule; ``drawn`` is
    the law that drafts really come from, if it is not q. A ``request`` has logits of its own,
    of which p is the ``plain_law``; without one they are log p. ``parts``: see ``boxes.cut``.
    """
    cases, _, size = p_tree.shape
    shape = tuple(max(n - 1, 0) for n in range(K + 1)) if parents is None else tuple(parents)
    there = np.array([True] * len(shape) if valid is None else valid)
    request = plain_request(p_tree, K) if request is None else request
    drafts = draw(q_tree, q_tree if drawn is None else drawn, shape, there, replacement)
    mass = np.zeros((cases, num_contexts(size, K + 1)))
    expected_length, doubt = np.zeros(cases), np.zeros(cases)
    walks = reads_races_only(rule, size)
    for some in batches(drafts, FLOATS // (size * len(shape) * size)):
        ask = listen(rule, K, walks, some if told else some._replace(probs=None), shape, request)
        for boxes in cut(ask, shape, some.tokens, size, parts=parts, walks=walks):
            said = [ask(*end) for end in boxes.ends]
            path, num_accepted = np.asarray(said[0].path), np.asarray(said[0].num_accepted)
            stop = np.take_along_axis(path, num_accepted[..., None], axis=-1)
            share = np.take_along_axis(boxes.shares, stop, axis=-1)[..., 0]
            share = boxes.shares.prod(axis=-1) if walks else share
            weight, case = some.chances * boxes.width * share, np.tile(some.case, (size, 1))
            emitted = [context_of(one, size) for one in said]
            for one, context in zip(said, emitted, strict=True):
                np.add.at(mass, (case, context), weight / 2)
                np.add.at(expected_length, case, weight * (one.num_accepted + 1) / 2)
            np.add.at(doubt, case, weight * (emitted[0] != emitted[1]))
    joint, target = continued(mass, p_tree, K + 1), texts(p_tree, K + 1)
    return Law(
        joint=joint,
        tv=abs(joint - target).sum(axis=-1) / 2,
        expected_length=expected_length,
        stray=np.where(target == 0, joint, 0.0).sum(axis=-1),
        doubt=doubt,
    )


def listen(
    rule: Rule, K: int, walks: bool, drafts: Drafts, shape: tuple[int, ...], request: Request
) -> Ask:
    """Set the kernel up, so that it can be asked with any noise."""
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

    def ask(uniforms: np.ndarray, clocks: np.ndarray) -> Verdict:
        noise = jnp.asarray(uniforms, jnp.float32), jnp.asarray(clocks, jnp.float32)
        return jax.device_get(judge(rule, K, walks, *noise, *given))

    return ask


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def judge(rule: Rule, K: int, walks: bool, uniforms, clocks, draft, logits, text, sampling):
    """Call the kernel on R drafts, once for each of M noises: [M, R, N] and [M, R, N, V]."""

    def once(uniforms, clocks) -> Verdict:
        noise = -jnp.log(jnp.maximum(clocks, TINY)) if walks else Noise(uniforms, clocks)
        return rule.verify(noise, draft, logits, text, sampling, K)

    return jax.vmap(once)(uniforms, clocks)


def reads_races_only(rule: Rule, size: int) -> bool:
    """Tell a rule that walks, on Gumbel noise at every node, from the ratio rules."""
    request, root = plain_request(np.ones((1, 1, size)), 0), jnp.zeros((1, 1), jnp.int32)
    given = s.row_key(0)[None], request.text, Draft(root, root, root == 0, None), request.sampling
    noise = jax.eval_shape(lambda *args: rule.address(*args, size), *given)
    return isinstance(noise, jax.ShapeDtypeStruct)


def context_of(said: Verdict, size: int) -> np.ndarray:
    """Return the context that emitted tokens make."""
    context = np.zeros_like(said.num_accepted)
    for i in range(said.tokens.shape[-1]):
        longer = context * size + 1 + said.tokens[..., i]
        context = np.where(i <= said.num_accepted, longer, context)
    return context

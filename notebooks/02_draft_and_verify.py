# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 02 · Draft and verify: 15 lines of NumPy, 40 of JAX
#
# **You will** write accept/reject in fifteen lines, prove it in fractions, and see why a seed's
# text stays the same. **Before this**: Python and NumPy; JAX is explained where it comes.
# **Time**: 40 minutes.
#
# **Question.** A large model emits one token per forward pass. If something cheap guesses the
# next few tokens, can one pass confirm several of them *without changing a single character* of
# what the large model would have said?
#
# **Formula.** A *drafter* proposes $K$ tokens. One forward pass of the *target* over the last
# committed token (the *root*) and the $K$ proposals tells what the target says after each of
# them. Proposals are *accepted* up to the first that the target disagrees with, and the target's
# own token at that place comes for free: *recovered* after a rejection, *bonus* if all were
# accepted. So a round emits (accepted + 1) tokens ([Leviathan, Kalman & Matias
# 2023](https://arxiv.org/abs/2211.17192)). If each proposal is accepted with the same probability
# $\alpha$, independently of the others,
#
# $$ E[\text{tokens per round}] = 1 + \alpha + \alpha^2 + \dots + \alpha^K
#    = \frac{1 - \alpha^{K+1}}{1 - \alpha}. $$
#
# Two words, and they are not the same. **Lossless**: the same text for the same seed.
# **Exact**: the same probability distribution, perhaps another sample of it.

# %%
# %matplotlib inline
import functools
import inspect
import itertools
import json
from collections import Counter
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from scipy.stats import chisquare

from specjax import LLM, SamplingParams
from specjax.bundled import prompts, recording
from specjax.core import decode
from specjax.core.sampling import CHOOSE, exponential, row_key
from specjax.core.types import Engine, Params, Sampling, State, Text
from specjax.drafters.draft_model import draft_model
from specjax.models.toy import markov_target
from specjax.verify.rejection import rejection
from specjax.verify.walk import walk
from specjax.viz.palette import BLACK, BLUE, ORANGE, SMALL
from specjax.viz.sliders import sliders
from specjax.viz.timeline import ACCEPTED, BONUS, RECOVERED, RoundTokens, token_timeline

# %% [markdown]
# ## Fifteen lines of NumPy
#
# The target is a function that gives a distribution $p$ after a text, the draft one that gives
# $q$. Here the text's last token is all that counts, so both are tables with a row per token. The
# draft samples $K$ tokens, $d \sim q$. Each is accepted with probability $\min(1, p(d)/q(d))$; at
# the first rejection a token is drawn from $\max(p - q, 0)$, normalised, and the rest is dropped
# ([Leviathan, Kalman & Matias 2023](https://arxiv.org/abs/2211.17192); [Chen et al.
# 2023](https://arxiv.org/abs/2302.01318)).


# %%
def accept_reject(p, q, root, num_draft, rng):
    """Draft from q, keep what p agrees with, and add one token of p."""
    drafted, token = [], root
    for _ in range(num_draft):
        token = rng.choice(len(q), p=q[token])
        drafted.append(token)
    emitted, token = [], root
    for d in drafted:
        if rng.random() * q[token][d] < p[token][d]:
            emitted.append(d)
            token = d
        else:
            left = np.maximum(p[token] - q[token], 0)
            return [*emitted, rng.choice(len(p), p=left / left.sum())]
    return [*emitted, rng.choice(len(p), p=p[token])]


assert len(inspect.getsource(accept_reject).splitlines()) == 15


# %% [markdown]
# ## The proof, in fractions
#
# Three tokens, and $K = 2$. Everything that can happen in a round can be listed with its
# probability, so we do not have to believe anything: all ways to emit a string, times what plain
# decoding would add, must give the target's probability. Not approximately: these are fractions.
# The text for a seed depends on the draft, so this rule is not lossless, but it is **exact**. The
# chance that one draft token is accepted is $\alpha = \sum_x \min(p(x), q(x)) = 1 - \mathrm{TV}(p,
# q)$.


# %%
def rotations(*distribution):
    """Make a Markov table [3][3]: the same distribution after each token, rotated."""
    return [[distribution[(x - t) % 3] for x in range(3)] for t in range(3)]


def one_over(*parts):
    return [Fraction(1, part) for part in parts]


p, q = rotations(*one_over(2, 4, 4)), rotations(*one_over(4, 2, 4))


def acceptance_of(p, q):
    """Leviathan's rule."""
    return min(Fraction(1), p / q)


def residual_of(p, q, drafted):
    """What to draw from after a rejection, not yet normalised."""
    return [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]


def outcomes(root, depth, accept=acceptance_of, residual=residual_of):
    """Yield all (emitted tokens, probability) of one round."""
    if depth == 0:
        yield from (((x,), p[root][x]) for x in range(3))  # the bonus token
        return
    for d in range(3):
        kept = q[root][d] * accept(p[root][d], q[root][d])
        for rest, chance in outcomes(d, depth - 1, accept, residual):
            yield (d, *rest), kept * chance
        left = residual(p[root], q[root], d)
        if q[root][d] > kept:
            for x in range(3):
                yield (x,), (q[root][d] - kept) * left[x] / sum(left)


def plain_distribution(root, string):
    """Return the target's probability of a string."""
    chance = Fraction(1)
    for x in string:
        chance, root = chance * p[root][x], x
    return chance


def distribution_of(root, depth, **rule):
    """Return the distribution of K + 1 tokens; plain decoding adds what a round left out."""
    distribution = dict.fromkeys(itertools.product(range(3), repeat=depth + 1), Fraction(0))
    for emitted, chance in outcomes(root, depth, **rule):
        for string in distribution:
            if string[: len(emitted)] == emitted:
                distribution[string] += chance * plain_distribution(
                    emitted[-1], string[len(emitted) :]
                )
    return distribution


for root in range(3):
    for string, chance in distribution_of(root, depth=2).items():
        assert chance == plain_distribution(root, string)

agree = sum(min(a, b) for a, b in zip(p[0], q[0], strict=True))
mean = sum(chance * len(emitted) for emitted, chance in outcomes(0, 2))


def tokens_per_round(alpha, num_draft):
    """Return 1 + alpha + ... + alpha^K in closed form."""
    return (1 - alpha ** (num_draft + 1)) / (1 - alpha)


print(f"alpha = {agree}, tokens per round = {mean}: enumeration and formula agree")
assert agree == Fraction(3, 4)
assert mean == tokens_per_round(agree, 2) == Fraction(37, 16)

# %% [markdown]
# The list of outcomes and the fifteen lines are the same algorithm twice. To be sure of that, run
# the fifteen lines 20,000 times and count what a round emits: a chi-square test against the list.

# %%
P, Q, ROUNDS_RUN = np.array(p, float), np.array(q, float), 20_000
rng = np.random.default_rng(0)
seen = Counter(tuple(map(int, accept_reject(P, Q, 0, 2, rng))) for _ in range(ROUNDS_RUN))
listed = Counter()
for emitted, chance in outcomes(0, 2):
    listed[emitted] += chance
assert seen.keys() <= listed.keys()
possible = [emitted for emitted, chance in listed.items() if chance]
pvalue = chisquare(
    [seen[one] for one in possible], [ROUNDS_RUN * float(listed[one]) for one in possible]
).pvalue
print(f"{len(possible)} outcomes of a round, p-value {pvalue:.2f}")
assert pvalue > 1e-3

# %% [markdown]
# Why it works, in one line: token $x$ comes out accepted with probability $q(x)\min(1, p(x)/q(x))
# = \min(p(x), q(x))$; a rejection has the probability $\sum_y \max(p(y) - q(y), 0)$, and then $x$
# comes with its share of it, $\max(p(x) - q(x), 0)$. The two add up to $p(x)$.

# %%
figure = Figure(figsize=(7.2, 3.2), dpi=150, layout="constrained")
ax = figure.add_subplot()
place, kept = np.arange(3), np.minimum(P[0], Q[0])
ax.bar(place - 0.2, Q[0], 0.36, color="white", edgecolor=BLACK, label="drafted, q")
ax.bar(place + 0.2, kept, 0.36, color=BLUE, label="accepted, min(p, q)")
ax.bar(place + 0.2, P[0] - kept, 0.36, bottom=kept, color=ORANGE, hatch="//", label="recovered")
ax.set_xticks(place, [f"token {x}" for x in place])
ax.set_ylabel("probability", fontsize=SMALL)
ax.set_title(
    "Accepted and recovered add up to the target's p, whatever q is", fontsize=11, loc="left"
)
ax.legend(frameon=False, fontsize=SMALL)
ax.get_figure()

# %% [markdown]
# ## The same seed, and batches
#
# Accept/reject keeps the distribution, but which text a seed gives depends on the draft: other
# drafts, other coins. The second rule, *walk*, lets the target choose a token at every place, with
# noise that depends on nothing but the seed of the request and the index of the token in the text.
# A draft token is kept if it equals that choice. Neither the round nor the row of a batch nor the
# node of a tree is part of it, so that none of them changes the text, as long as logits are the
# same numbers (notebook 12).
#
# ## The forty lines
#
# The toy target is a Markov chain: its "forward pass" is to look up a row of a table of logits.
# The draft is a worse copy of that table.
#
# The idea that makes it lossless at *any* temperature is in `choose`. Sampling adds Gumbel noise,
# $-\log E$ with an exponential $E$, times the temperature to the logits and takes the largest,
# which is a sample of the softmax of logits over temperature. The noise of a token has an
# **address** (the seed of the request and the index of the token in the text) instead of a
# history. However many rounds it took to get there, the token at index 17 is chosen with the noise
# of index 17.


# %%
# JAX for who knows NumPy: jnp is NumPy whose arrays never change, so x.at[i].set(v) returns a copy
# (mode="drop" ignores places outside). lax.scan(f, start, length=n) is a loop that collects what f
# returns second, vmap(f) calls f for every row at once, jit compiles. jax.random.fold_in(key, i)
# makes the i-th key out of a key: whenever it is asked, the same one.


class Tables(NamedTuple):
    target: jax.Array  # [V, V]: the logits after each token
    draft: jax.Array  # [V, V]


def choose(logits, temperature, key, index):
    """Sample the token at ``index`` of the text; temperature 0 needs no case of its own."""
    key = jax.random.fold_in(jax.random.fold_in(key, index), CHOOSE)
    noise = -jnp.log(exponential(key, logits.shape))
    return jnp.argmax(logits + temperature * noise)


def draft(table, root, num_draft):
    """Propose the draft's most likely continuation of the root, token by token: [K]."""

    def extend(token, _):
        token = jnp.argmax(table[token])
        return token, token

    return jax.lax.scan(extend, root, length=num_draft)[1]


def verify(table, root, drafted, length, temperature, key):
    """Let the target choose after the root and after every proposal, in one pass: [K + 1]."""
    nodes = jnp.concatenate([root[None], drafted])
    index = length + jnp.arange(nodes.shape[0])
    choices = jax.vmap(choose, (0, None, None, 0))(table[nodes], temperature, key, index)
    accepted = jnp.cumprod(drafted == choices[:-1])  # a rejection ends it
    return choices, accepted.sum()


def one_round(tables, text, length, num_draft, temperature, key):
    """Draft, verify, and commit what the target chose: accepted tokens and one more."""
    root = text[length - 1]
    drafted = draft(tables.draft, root, num_draft)
    choices, num_accepted = verify(tables.target, root, drafted, length, temperature, key)
    index = jnp.arange(num_draft + 1)
    slots = jnp.where(index <= num_accepted, length + index, text.size)  # past the end: dropped
    return text.at[slots].set(choices, mode="drop"), length + num_accepted + 1, num_accepted


def complete(tables, text, length, num_draft, temperature, key, rounds):
    """Run some rounds. Returns the text, its length, and the accepted tokens per round."""

    def body(carry, _):
        text, length, num_accepted = one_round(tables, *carry, num_draft, temperature, key)
        return (text, length), num_accepted

    (text, length), accepted = jax.lax.scan(body, (text, length), length=rounds)
    return text, length, accepted


# %%
written = [inspect.getsource(f) for f in (choose, draft, verify, one_round, complete)]
num_lines = sum(bool(line.strip()) for source in written for line in source.splitlines())
print(f"{num_lines} lines")
assert num_lines <= 40

# %% [markdown]
# ## Same seed, same text
#
# Plain decoding is the same program with $K = 0$. For every temperature, seed and depth the
# drafted text must equal the plain one, token for token, not only on average. We run 200 texts
# side by side: four temperatures, fifty seeds each.

# %%
V, NUM_SEEDS, ROUNDS = 12, 50, 60
TEMPERATURES, DEPTHS = (0.0, 0.5, 1.0, 2.0), (1, 4, 8)


@functools.partial(jax.jit, static_argnames=("num_draft", "rounds"))
def complete_rows(tables, text, length, num_draft, temperature, keys, rounds):
    """Complete row by row: every argument but the length and the sizes leads with B."""

    def one(tables, text, temperature, key):
        return complete(tables, text, length, num_draft, temperature, key, rounds)

    return jax.vmap(one)(tables, text, temperature, keys)


def room(num_draft):
    """Return B empty texts with room for the rounds; the prompt is token 0."""
    return jnp.zeros((4 * NUM_SEEDS, 2 + ROUNDS * (num_draft + 1)), jnp.int32)


per_row = functools.partial(jnp.repeat, repeats=NUM_SEEDS, axis=0)  # four settings -> B rows
keys = jnp.tile(jnp.stack([row_key(seed) for seed in range(NUM_SEEDS)]), 4)
temperatures = per_row(jnp.asarray(TEMPERATURES, jnp.float32))

key_of_target, key_of_draft = jax.random.split(jax.random.key(0))
target_table = 2.0 * jax.random.normal(key_of_target, (V, V), jnp.float32)
draft_table = target_table + jax.random.normal(key_of_draft, (V, V), jnp.float32)
tables = Tables(*(per_row(jnp.stack([table] * 4)) for table in (target_table, draft_table)))

plain, _, _ = complete_rows(tables, room(0), 1, 0, temperatures, keys, ROUNDS)
plain = plain[:, 1 : ROUNDS + 1]
num_compared = 0
for num_draft in DEPTHS:
    text, _, _ = complete_rows(tables, room(num_draft), 1, num_draft, temperatures, keys, ROUNDS)
    np.testing.assert_array_equal(text[:, 1 : ROUNDS + 1], plain)
    num_compared += plain.size
print(f"{num_compared:,} drafted tokens equal the plain ones")
assert num_compared == 36_000

# %% [markdown]
# ## The forty lines are what ships
#
# `specjax.core.decode.step` is the same round for batches, trees of drafts, key-value caches,
# penalties and stop tokens, and `decode.generate` repeats it. Given the same two tables it must
# commit the same tokens and accept as many in every round. (It reads the prompt first and emits
# one undrafted token, as vLLM does; so the forty lines start from a text of two tokens.)

# %%
K = 4
text = room(K).at[:, 1].set(plain[:, 0])
by_hand, lengths, accepted = complete_rows(tables, text, 2, K, temperatures, keys, ROUNDS)


def read_prompt(engine, params, keys, temperatures, limit) -> State:
    """Start B rows with the prompt, token 0; each emits its first token, undrafted."""
    one = jnp.ones(keys.shape[0], jnp.int32)
    tokens = jnp.zeros((one.size, engine.window), jnp.int32)
    text = Text(tokens, starts=one, lengths=one, limits=limit * one, reason=0 * one)
    never = jnp.full((one.size, 1), engine.target.vocab_size, jnp.int32)
    sampling = Sampling(temperatures, max_draft=engine.drafter.depth * one, stop_ids=never)
    state = decode.init_state(engine, params, text, sampling, keys)
    prefill = jax.jit(decode.prefill, static_argnums=(0, 4))
    return prefill(engine, params, state, jnp.zeros((), jnp.int32), 1)[0]


def run(engine, params, state, rounds):
    """Repeat ``decode.step``; the numbers of round i are row i of the info."""
    generate = jax.jit(decode.generate, static_argnums=(0, 5))
    most, least = jnp.asarray(rounds, jnp.int32), jnp.asarray(1, jnp.int32)
    return generate(engine, params, state, most, least, rounds)


toy = markov_target(V)
capacity = by_hand.shape[1] + K + 1
engine = Engine(toy, draft_model(toy, K), walk, window=capacity)
params = Params(target=target_table, draft=draft_table)
state = read_prompt(engine, params, keys, temperatures, limit=capacity)
state, info, _ = run(engine, params, state, ROUNDS)

np.testing.assert_array_equal(info.num_accepted, accepted.T)
np.testing.assert_array_equal(state.text.lengths, lengths)
texts = (np.asarray(by_hand), np.asarray(state.text.tokens), np.asarray(lengths))
for ours, theirs, length in zip(*texts, strict=True):
    np.testing.assert_array_equal(ours[:length], theirs[:length])
print(f"{len(lengths)} texts, {ROUNDS} rounds: the shipped step commits the same tokens")
assert (len(lengths), ROUNDS) == (200, 60)

# %% [markdown]
# ## How many tokens per round?
#
# Build a target whose acceptance is constant: after token $t$ it says $t + 1$ with probability
# $\alpha$ and anything else with equal shares, and the draft always proposes $t + 1$. Now the
# formula must hold. The number of tokens of a round is truncated geometric,
# $P(n) = \alpha^{n-1}(1 - \alpha)$ for $n \le K$ and $P(K + 1) = \alpha^K$, so its variance is
# known too, and we can say beforehand how far a mean of 3,000 rounds may be off: with 4.5
# standard errors, less than one false alarm in ten thousand runs of this table.

# %%
ALPHAS = (0.3, 0.6, 0.8, 0.9)


def constant_acceptance(alpha):
    """Make the two tables: the target follows the draft's only idea with probability alpha."""
    onward = jnp.roll(jnp.eye(V, dtype=jnp.float32), 1, axis=1)
    return Tables(jnp.log(alpha * onward + (1 - alpha) / (V - 1) * (1 - onward)), onward)


tables = jax.tree.map(lambda *four: per_row(jnp.stack(four)), *map(constant_acceptance, ALPHAS))
ones = jnp.ones_like(temperatures)
print("  alpha   K   formula   measured    allowed")
for num_draft in DEPTHS:
    _, _, accepted = complete_rows(tables, room(num_draft), 1, num_draft, ones, keys, ROUNDS)
    measured = 1 + np.asarray(accepted).reshape(4, NUM_SEEDS * ROUNDS)
    for alpha, counts in zip(ALPHAS, measured, strict=True):
        n = np.arange(1, num_draft + 2)
        distribution = alpha ** (n - 1) * np.where(n <= num_draft, 1 - alpha, 1.0)
        exact = tokens_per_round(alpha, num_draft)
        assert np.isclose(distribution.sum(), 1)
        assert np.isclose((n * distribution).sum(), exact)
        spread = np.sqrt((n**2 * distribution).sum() - exact**2)
        allowed = 4.5 * spread / np.sqrt(counts.size)
        print(f"{alpha:7} {num_draft:3} {exact:9.3f} {counts.mean():10.3f}     ±{allowed:.3f}")
        assert abs(counts.mean() - exact) <= allowed

# %% [markdown]
# Note what the table says about long drafts: at $\alpha = 0.3$ going from $K = 4$ to $K = 8$
# brings next to nothing, while each drafted token costs a draft step. All cells of the table share
# their fifty seeds, so that they err to the same side. And $\alpha$ depends on the rule: here a
# fixed guess is kept with the chance that the target chooses it, above it was $\sum \min(p, q)$.
# The formula is the same.

# %%
assert tokens_per_round(0.3, 8) - tokens_per_round(0.3, 4) < 0.01

# %% [markdown]
# ## Accept/reject, as shipped
#
# Accept and reject ships as `specjax.verify.rejection`, with noise by address too. It draws real
# noise in float32, so it gets a statistical test: 20,000 rows through `decode.generate`, and a
# chi-square test of the joint distribution of three tokens that one whole round can emit. The same
# test must notice a draft that lies about its distribution.

# %%
NUM_ROWS = 20_000
small = markov_target(3)
seeds = jnp.arange(NUM_ROWS, dtype=jnp.uint32)
row_keys = jax.vmap(lambda seed: jax.random.wrap_key_data(jnp.stack([seed * 0, seed])))(seeds)
as_logits = functools.partial(np.log, dtype=np.float32)
small_params = Params(
    target=jnp.asarray(as_logits(np.array(p, float))),
    draft=jnp.asarray(as_logits(np.array(q, float))),
)


def engine_with(rule):
    return Engine(small, draft_model(small, 2, "probabilistic"), rule, window=8)


honest = engine_with(rejection)
ready = read_prompt(honest, small_params, row_keys, jnp.ones(NUM_ROWS), limit=5)


def count_texts(engine):
    """Complete each row to four tokens (the undrafted one, and three), and count the texts."""
    state, _, _ = run(engine, small_params, ready, 3)
    assert (state.text.lengths == 5).all()
    code = (state.text.tokens[:, 1:5] * jnp.asarray([[27, 9, 3, 1]])).sum(axis=1)
    return np.bincount(np.asarray(code), minlength=81)


expected = [
    NUM_ROWS * float(plain_distribution(0, string))
    for string in itertools.product(range(3), repeat=4)
]
assert min(expected) > 5  # a chi-square test wants that
shipped = chisquare(count_texts(honest), expected).pvalue


def lying(noise, draft, logits, text, sampling, depth):
    """Claim that the draft was uniform."""
    lie = jnp.full((*draft.tokens.shape, 3), 1 / 3)
    return rejection.verify(noise, draft._replace(probs=lie), logits, text, sampling, depth)


caught = chisquare(count_texts(engine_with(rejection._replace(verify=lying))), expected).pvalue
print(f"p-value of the shipped rule: {shipped:.2f}; the lying draft is caught: {caught < 1e-6}")
assert shipped > 1e-3
assert caught < 1e-6

# %% [markdown]
# ## From a chain to a tree
#
# If the target chooses at every node, nothing forces the nodes to be a chain. Offer *two* tokens
# after the root, each with a continuation: the target's choice after the root is one of them more
# often than it is the one. Verification is one loop: from the root, go to the child that carries
# what the target chose, until there is none. The noise has the same address, so the text is the
# same again.


# %%
def follow(parents, tokens, choices):
    """Return the target's choices down the tree: at each node, to the child that carries it."""
    node, emitted = 0, [choices[0]]
    while children := [
        i for i, up in enumerate(parents) if i and up == node and tokens[i] == choices[node]
    ]:
        node = children[0]
        emitted.append(choices[node])
    return emitted


choose_all = jax.jit(jax.vmap(choose, (0, None, None, 0)))


def complete_with(tree_of, length, key, temperature=1.0):
    """Complete one text with trees of drafts; return it and the number of rounds."""
    text, num_rounds = [0], 0
    while len(text) < length:
        parents, tokens = tree_of(text[-1])
        depth = [0]
        for node in range(1, len(parents)):
            depth.append(depth[parents[node]] + 1)
        index = jnp.asarray(len(text) + np.array(depth))
        rows = target_table[jnp.asarray(tokens)]
        chosen = choose_all(rows, temperature, key, index)
        text += follow(parents, tokens, np.asarray(chosen).tolist())
        num_rounds += 1
    return text[:length], num_rounds


likely = np.argsort(-np.asarray(draft_table), axis=1)  # the draft's order of tokens after each


def chain(root):
    return [0, 0, 1], [root, likely[root, 0], likely[likely[root, 0], 0]]


def two_branches(root):
    first, second = likely[root, :2]
    return [0, 0, 0, 1, 2], [root, first, second, likely[first, 0], likely[second, 0]]


results = {shape.__name__: complete_with(shape, 120, row_key(3)) for shape in (chain, two_branches)}
for name, (_, num_rounds) in results.items():
    print(f"{name:13} {120 / num_rounds:.2f} tokens per round")
assert results["chain"][0] == results["two_branches"][0]
assert results["chain"][0][1:61] == plain[2 * NUM_SEEDS + 3].tolist()  # temperature 1, seed 3
assert results["two_branches"][1] < results["chain"][1]

# %% [markdown]
# Five nodes instead of three for more tokens per round: whether that pays is notebook 08.
#
# ## A real completion
#
# Now the trained pair that ships with specjax: a small model of Python source as the target, and a
# smaller one as the draft, at temperature 0.6. First the claim of this notebook again, on
# the real thing: the text is the same with and without the draft.

# %%
speculative_config = {
    "method": "draft_model",
    "model": "bundled:draft",
    "num_speculative_tokens": K,
}
ask = SamplingParams(temperature=0.6, seed=2, max_tokens=48, ignore_eos=True)
question = prompts()[0]["turns"][0]

plain_llm = LLM("bundled", max_model_len=1024)
llm = LLM("bundled", speculative_config=speculative_config, max_model_len=1024)
(answer,) = plain_llm.generate(question, ask)
for progress, transcript in llm.stream(question, ask):  # noqa: B007 (both grow in place)
    assert answer.outputs[0].token_ids[: len(progress.tokens)] == progress.tokens
assert transcript.text == answer.outputs[0].text
assert len(progress.tokens) == 48
print(transcript.text)

# %% [markdown]
# The stream reports what each round committed and how many drafts were accepted, but not the text
# of the rejected ones. No matter: a greedy draft model proposes what it would say by itself, so we
# ask it to continue the text as it stood before each round. What the target accepted must be the
# beginning of that: another check.

# %%
draft_llm = LLM("bundled:draft", max_model_len=1024, max_num_seqs=16)
prompt_ids = answer.prompt_token_ids
before, known = [], list(prompt_ids)
for one in progress.rounds:  # rounds[0] is the undrafted first token
    before.append({"prompt_token_ids": list(known)})
    known += one.tokens
greedy = SamplingParams(temperature=0.0, max_tokens=K, ignore_eos=True)
proposals = [out.outputs[0].token_ids for out in draft_llm.generate(before[1:], greedy)]


def words(ids):
    return tuple(llm.get_tokenizer().decode([i]) for i in ids)


timeline = []
for proposed, one in zip(proposals, progress.rounds[1:], strict=True):
    accepted_here = one.tokens[: one.num_accepted]
    assert list(proposed[: len(accepted_here)]) == list(accepted_here)
    timeline.append(RoundTokens(words(proposed), one.num_accepted, words(one.tokens)))


# %%
def first_tokens(number):
    """Return the rounds that write so many tokens, the last one as far as it has come."""
    shown = []
    for one in timeline:
        some = min(number, len(one.emitted))
        if some == 0:
            break
        begun = RoundTokens(one.drafted[:some], some, one.emitted[:some])
        shown.append(one if some == len(one.emitted) else begun)
        number -= some
    return shown


def show(tokens=28):
    """Draw the rounds of so many tokens; their filled cells are the text."""
    shown = first_tokens(tokens)
    written = [word for one in shown for word in one.emitted]
    title = f"{len(shown)} passes of the target wrote {len(written)} tokens"
    cells, axes = token_timeline(shown, title=title)
    emitting = [cell.text for cell in cells if cell.kind in (ACCEPTED, RECOVERED, BONUS)]
    assert emitting == written
    return axes.get_figure()


assert len(timeline) >= 12
for number in range(1, 29):
    token_timeline(first_tokens(number))
    assert sum(len(one.emitted) for one in first_tokens(number)) == number
assert first_tokens(28) == timeline[:12]
sliders(show, tokens=(1, sum(len(one.emitted) for one in timeline)))  # token by token

# %% [markdown]
# Read the filled cells row by row and you read the text. Every row costs one pass of the target.
# One identity ties the figure to the text: the undrafted first token, plus one token per
# round, plus the accepted ones, is the text (less what the last round had beyond the limit).

# %%
cut = sum(one.num_accepted + 1 - len(one.emitted) for one in timeline)
assert 1 + sum(one.num_accepted + 1 for one in timeline) - cut == len(progress.tokens)
assert 0 <= cut <= K

# %% [markdown]
# ## Three puzzles
#
# 1. After a rejection, somebody draws from $p$ instead of $\max(p - q, 0)$: after all, $p$ is the
#    target. For the three-token pair above, how far is the distribution of the next token from the
#    target's (total variation)?
# 2. A verifier accepts a sampled draft token with probability $p(d)$, as if $q(d)$ were one,
#    and then draws from $p$ without $d$. Is that biased? What does it cost?
# 3. At $\alpha = 0.8$ no draft, however long, brings more than $1/(1-\alpha) = 5$ tokens per
#    round. Which $K$ is the first to reach nine tenths of it?
#
# The answers are in the hidden cells below: each prints its solution and checks it. Think first.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 1. The distribution becomes min(p, q) + (1 - alpha) p: what the draft
favours is too likely, and the distance is 1/8.""")
naive = distribution_of(0, depth=1, residual=lambda p, q, drafted: p)
first = [sum(chance for string, chance in naive.items() if string[0] == x) for x in range(3)]
assert first == [min(a, b) + (1 - agree) * a for a, b in zip(p[0], q[0], strict=True)]
assert sum(abs(a - b) for a, b in zip(first, p[0], strict=True)) / 2 == Fraction(1, 8)

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 2. Not biased: the draft token is then a fixed guess d, hit with probability
p(d), and p without d is what is left. It costs acceptance: sum p q = 5/16
instead of sum min(p, q) = 3/4.""")
as_if_one = {
    "accept": lambda p, q: p,
    "residual": lambda p, q, drafted: [0 if x == drafted else p[x] for x in range(3)],
}
assert all(
    distribution == plain_distribution(0, string)
    for string, distribution in distribution_of(0, 2, **as_if_one).items()
)
assert sum(a * b for a, b in zip(p[0], q[0], strict=True)) == Fraction(5, 16) < agree
fewer = sum(chance * len(emitted) for emitted, chance in outcomes(0, 2, **as_if_one))
assert fewer == tokens_per_round(Fraction(5, 16), 2) < mean

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print(
    """Answer 3. K = 10. The share of the limit that K tokens reach is 1 - alpha^(K+1), so
alpha^(K+1) must not exceed 1/10: 0.8^11 = 0.086 is small enough, 0.8^10 = 0.107 is not."""
)
enough = [k for k in range(50) if tokens_per_round(0.8, k) >= 0.9 * 5]
assert enough[0] == 10

# %% [markdown]
# ## Check it on vLLM
#
# The repository keeps what a real vLLM 0.32.0 answered to a hundred prompts, greedy, 64 tokens
# each: without speculation, and with the same bundled draft at $K = 3$. The texts must be equal
# (but for a near tie, which other sums may round the other way), and the identity must hold
# for every request. (`make oracle-record` asks vLLM again: it installs it beside this environment,
# 3.5 GB.)

# %%
plain_answers, answers = (
    json.loads(recording(f"text_{name}.json").read_text())["answer"]["outputs"]
    for name in ("plain", "draft_model")
)
pairs = zip(plain_answers, answers, strict=True)
num_same = sum(one["token_ids"] == other["token_ids"] for one, other in pairs)
num_rounds = 0
for one in answers:
    accepted = one["metrics"]["per_step_accepted"]
    num_rounds += len(accepted)
    cut = 1 + len(accepted) + sum(accepted) - len(one["token_ids"])
    assert 0 <= cut <= 3  # the undrafted token, one per round, the accepted; less the last cut
num_tokens = sum(len(one["token_ids"]) for one in answers)
print(f"{num_same} of {len(answers)} texts equal; {num_tokens:,} tokens in {num_rounds:,} rounds")
assert num_same >= 99
assert num_rounds < num_tokens / 2

# %% [markdown]
# ## Summary
#
# A round drafts $K$ tokens, lets the target choose at every node in one pass, keeps the longest
# agreeing prefix and adds one token of the target's own: never fewer than one. Accept/reject is
# exact; choosing with addressed noise is lossless as well: the draft decides about speed, never
# about text. Tokens per round are $1 + \alpha + \dots + \alpha^K$ if acceptance is alike
# everywhere.
#
# ## Further reading
#
# - Leviathan, Kalman & Matias 2023, *Fast Inference from Transformers via Speculative Decoding*
#   ([arXiv 2211.17192](https://arxiv.org/abs/2211.17192))
# - Chen et al. 2023, *Accelerating Large Language Model Decoding with Speculative Sampling* ([arXiv
#   2302.01318](https://arxiv.org/abs/2302.01318))
# - Daliri, Musco & Suresh 2025, *Coupling without Communication and Drafter-Invariant Speculative
#   Decoding* ([arXiv 2408.07978](https://arxiv.org/abs/2408.07978))
# - Gante 2023, [*Assisted Generation*](https://huggingface.co/blog/assisted-generation): the second
#   rule, in moving pictures

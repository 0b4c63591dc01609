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
# # 08 · Trees and multi-draft
#
# **You will** say when a tree beats a chain, and build the best tree of n nodes. **Before this**:
# 03. **Time**: 30 minutes.
#
# **Question.** The target verifies $n$ tokens in one forward pass. Should they be one guess,
# $n - 1$ tokens deep, or many guesses side by side? And may a drafter that *samples* look at what
# it drew before it decides what to show?
#
# **Formula.** A node of a draft tree is reached if every token on its path is accepted; so a round
# brings, the target's own token included,
#
# $$ E[\text{tokens}] = \sum_{\text{nodes } v} \;\prod_{u \,\in\, \text{path}(v)} a_u , $$
#
# where $a_u$ is the chance that $u$ is *the* accepted one of its siblings (1 for the root). A chain
# with $a_u = \alpha$ gives the familiar $1 + \alpha + \dots + \alpha^K$. Since a node is never
# reached more often than its parent, the best tree of $n$ nodes is the $n$ nodes reached most
# often (Sequoia, [Chen et al. 2024](https://arxiv.org/abs/2402.12374); OPT-Tree,
# [Wang et al. 2025](https://arxiv.org/abs/2406.17276)).

# %%
# %matplotlib inline
import json

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from specjax import LLM, SamplingParams, theory
from specjax.audit.compare import (
    PATHS,
    SIBLINGS,
    Comparison,
    measure,
    methods,
    paths_bound,
    random_families,
)
from specjax.audit.exact import exact_distribution
from specjax.audit.prefixes import num_contexts
from specjax.audit.rules import EXACT
from specjax.bench.rounds import num_rounds, tokens_per_round
from specjax.bench.trees import acceptance_by_rank, every_path
from specjax.bundled import prompts, recording
from specjax.core.topology import ancestors, causal
from specjax.drafters.tree import fixed, from_parents, lay_out
from specjax.engine.options.trees import to_text
from specjax.verify.rejection_tree import rejection_tree
from specjax.viz.draft_tree import draft_tree
from specjax.viz.palette import QUIET
from specjax.viz.sliders import sliders
from specjax.viz.tree_or_chain import tree_or_chain
from specjax.viz.verifications import draw_exact

# %% [markdown]
# ## A tree is an array of parents, and a mask
#
# Node 0 is the last committed token. All nodes go through the target at once: node $i$ sits in
# slot $i$ of the cache's free space, its rotary position is that of its *depth*, and it sees the
# committed text and its own ancestors. That mask takes one line, for parents come before children:

# %%
PARENTS = [0, 0, 0, 1, 1, 2, 3, 3]


def mask_of(parents):
    """Mark [i, j] where node j is node i or one of its ancestors."""
    rows = [jnp.eye(len(parents), dtype=bool)[0]]
    for node in range(1, len(parents)):
        rows.append(rows[parents[node]].at[node].set(True))  # all that the parent sees, and itself
    return jnp.stack(rows)


mask = mask_of(PARENTS)
print(np.asarray(mask).astype(int))
shipped = ancestors(jnp.asarray([PARENTS]))[0]  # squares the one-step relation: log2(N) products
np.testing.assert_array_equal(mask, shipped)
np.testing.assert_array_equal(ancestors(jnp.asarray([[0, 0, 1, 2]])), causal(4))  # a chain: causal

# %% [markdown]
# Is one pass over the tree really the same as reading each path on its own? On the bundled target,
# with random tokens in the nodes:

# %%
llm = LLM("bundled", max_model_len=256)
target, weights = llm.core.engine.target, llm.core.params.target
prompt = jnp.asarray([llm.get_tokenizer().encode("def mean(values):\n    return sum(")], jnp.int32)
L, N = prompt.shape[1], len(PARENTS)
tokens = jnp.asarray(np.random.default_rng(0).integers(0, target.vocab_size, (1, N)), jnp.int32)
depth = mask.sum(axis=1) - 1


@jax.jit
def read(tokens, positions, visible, cache):
    output, cache = target.forward(weights, tokens, positions, visible, cache, 64)
    return target.logits(weights, output.hidden), cache


_, cache = read(prompt, jnp.arange(L)[None], causal(L), target.init_cache(1, 64))
cache = cache._replace(lengths=cache.lengths + L)
together, _ = read(tokens, L + depth[None], mask[None], cache)
scale = float(jnp.abs(together).max())
for node in range(N):
    path = jnp.flatnonzero(mask[node])
    padded = jnp.zeros(N, int).at[: path.size].set(path)  # one shape for all: a single compilation
    alone, _ = read(tokens[:, padded], L + jnp.arange(N)[None], causal(N), cache)
    assert float(jnp.abs(alone[0, path.size - 1] - together[0, node]).max()) < 1e-4 * scale

# %% [markdown]
# ## Several drafts for one place
#
# Siblings are tried one after the other; each refusal leaves
# $p \leftarrow \mathrm{norm}(\max(p - q, 0))$ to the next (SpecInfer, Miao et al. 2024).
# *Distinct* siblings, drawn without replacement, are worth more; and no exact rule can accept more
# often than optimal transport allows (SpecTr, Sun et al. 2023).

# %%
P, Q = np.array([9, 4, 2, 1]) / 16, np.array([3, 5, 6, 2]) / 16
print("siblings   with replacement   distinct   transport, distinct")
for k in (1, 2, 3):
    again, distinct = (theory.multi_draft_acceptance(P, Q, k, how) for how in (True, False))
    bound = theory.optimal_transport_acceptance(P, Q, k, False)
    print(f"{k:8}   {again:16.4f}   {distinct:8.4f}   {bound:19.4f}")
    assert again <= distinct + 1e-12 <= bound + 1e-9
assert np.isclose(theory.multi_draft_acceptance(P, Q, 1), np.minimum(P, Q).sum())

# %% [markdown]
# With the same distributions after every prefix, the chances of the formula are known, and so is
# the length. `exact_distribution` enumerates the shipped rule instead: every draft, all noise.

# %%
SHAPE = (0, 0, 0, 1, 2)  # two children, each with a child of its own
V = len(P)
one = theory.multi_draft_acceptance(P, Q, 1)
two = theory.multi_draft_acceptance(P, Q, 2, False)
formula = theory.tree_tokens(SHAPE, [1, one, two - one, one, one])
distributions = [
    np.broadcast_to(distribution, (1, num_contexts(V, 2), V)).astype(float)
    for distribution in (P, Q)
]
enumerated = exact_distribution(rejection_tree, *distributions, 2, parents=SHAPE, replacement=False)
print(f"tokens per round: formula {formula:.6f}, enumerated {enumerated.expected_length[0]:.6f}")
assert np.isclose(enumerated.expected_length[0], formula, atol=1e-6)
assert enumerated.tv.max() < 1e-6  # and it is exact

# %% [markdown]
# ## Which rule gets most out of siblings?
#
# Rules that are all exact are not all alike. On the same drafts, by enumeration: trying siblings
# one after the other, SpecTr's selection, which knows from the start how many there are, and
# traversal, which starts at the leaves and gives up a whole path only when nothing of it can be
# kept. Dashed: optimal transport, which no exact rule surpasses. (`specjax audit rules --compare`
# has more rules, and the bundled pair.)

# %%
near = {"near": random_families(6)["near"]}
shapes = (SIBLINGS, PATHS)
rows = [measure(one, near) for one in methods() if one.promise == EXACT and one.shape in shapes]
pairs = list(zip(*near["near"], strict=True))
bests = {one.name: {"near": np.mean([paths_bound(p, q, one) for p, q in pairs])} for one in shapes}
ax = Figure(figsize=(8, 3.6), dpi=110, layout="constrained").subplots()
draw_exact(ax, Comparison(tuple(rows), bests), "near")
ax.set_title("Exact rules differ in what they get out of siblings", fontsize=11, loc="left", pad=16)
tokens = {(row.name, row.drafts): row.tokens["near"] for row in rows}
assert all(row.kept for row in rows)
for drafts in ("2 paths of 2", "2 paths of 2, distinct"):
    assert tokens["traversal", drafts] > tokens["recursive rejection", drafts]
ax.get_figure()

# %% [markdown]
# ## Deep or wide? The bundled pair, measured
#
# A wide tree, on some prompts, tells how often the draft model's first, second, ... choice is what
# the target goes on with. `theory.tree_optimal` turns that into the best tree of eight verified
# tokens. Everything is greedy, so each of these programs writes the same text.

# %%
CONTEXT, NODES = 64, 7  # prompt tokens; drafted tokens, one less than are verified
tokenizer = llm.get_tokenizer()
long = [ids for row in prompts() if len(ids := tokenizer.encode(row["turns"][0])) >= CONTEXT]
texts = [{"prompt_token_ids": ids[:CONTEXT]} for ids in long[:24]]
learn, judge = texts[:8], texts[8:]  # a tree is not judged on the texts it was made for
greedy = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)


def complete(shape, some):
    """Complete some prompts with the bundled draft model, drafting in a given shape."""
    drafting = LLM("bundled", speculative_config={"model": "bundled:draft", **shape})
    return drafting.generate(some, greedy, use_tqdm=False)


wide = fixed(every_path((5, 3)))
rates = acceptance_by_rank(wide, complete({"speculative_token_tree": to_text(wide)}, learn))
print("rates by rank, level 1 and later:\n", rates.round(3))
assert (rates[:, 0] == rates.max(axis=1)).all()

best = theory.tree_optimal(rates, NODES + 1)
tree = from_parents(best.parents.tolist())
print("to paste: ", to_text(tree))
shapes = {
    "chain": {"num_speculative_tokens": NODES},
    "best fixed tree": {"speculative_token_tree": to_text(tree)},
    "likeliest nodes": {"tree": {"depth": tree.depth, "top_k": 3, "num_nodes": NODES}},
}
runs = {name: complete(shape, judge) for name, shape in shapes.items()}
measured = {name: tokens_per_round(some) for name, some in runs.items()}
predicted = {"chain": theory.tree_optimal(rates[:, :1], NODES + 1), "best fixed tree": best}
for name, tokens in measured.items():
    said = f", predicted {predicted[name].tokens:.2f}" if name in predicted else ""
    print(f"{name:16} {tokens:.2f} tokens per round at {NODES + 1} verified tokens{said}")
for some in runs.values():  # lossless, all of them
    assert [o.outputs[0].token_ids for o in some] == [o.outputs[0].token_ids for o in runs["chain"]]
assert abs(measured["best fixed tree"] / best.tokens - 1) < 0.15


def gain(name, over):
    """Return a ratio of tokens per round, with its 95% interval over texts, drawn in pairs."""
    ours, theirs = (np.array([num_rounds(one) for one in runs[run]]) for run in (name, over))
    drawn = np.random.default_rng(0).integers(0, len(ours), (4000, len(ours)))
    ratios = theirs[drawn].sum(axis=1) / ours[drawn].sum(axis=1)  # all write the same tokens
    return theirs.sum() / ours.sum(), *np.quantile(ratios, [0.025, 0.975])


for name, over in (("best fixed tree", "chain"), ("likeliest nodes", "chain"),
                   ("likeliest nodes", "best fixed tree")):  # fmt: skip
    ratio, low, high = gain(name, over)
    told = "" if not low < 1 < high else f": {len(judge)} texts do not tell them apart"
    print(f"{name} over {over}: {ratio:.2f} [{low:.2f}, {high:.2f}]{told}")
    assert 0.9 < low < high < 1.3  # whichever is better, it is not by much here

# %% [markdown]
# "Likeliest nodes" is EAGLE-2's dynamic tree (Li et al. 2024): the draft model's own probabilities
# choose the shape anew each round, deep where it is sure, wide where it is not. A fixed tree can
# only know how sure it is on average.

# %%
GOOD, POOR = [0.85, 0.05, 0.02], [0.35, 0.15, 0.1, 0.05]
drafters = {"0.85, 0.05, ...": GOOD, "the bundled draft model": rates, "0.35, 0.15, ...": POOR}


def show(verified=NODES + 1):
    """Draw the best tree of so many tokens, and what trees and chains of all sizes bring."""
    figure = Figure(figsize=(7.6, 7.8), dpi=130, layout="constrained")
    upper, lower = figure.subplots(2, 1)
    grown = theory.tree_optimal(rates, verified)
    paths = from_parents(grown.parents.tolist())
    rank = [path[-1] for path in paths.paths]
    level = [min(len(path), len(rates)) - 1 for path in paths.paths]
    title = f"The best {verified} nodes are those reached most often: {grown.tokens:.2f} tokens"
    nodes, _ = draft_tree(lay_out(paths).parents, [1.0, *rates[level, rank]], ax=upper, title=title)
    assert np.isclose(sum(node.reached for node in nodes), grown.tokens)
    lower.axvline(verified, color=QUIET, linewidth=0.8)
    tree_or_chain(
        drafters, range(1, 25), ax=lower,
        title="The surer a drafter, the longer a chain is its best tree",
    )  # fmt: skip
    return figure


growths, _ = tree_or_chain(drafters, range(1, 25))
good, ours, poor = growths
assert good.chain_up_to > 15  # where a chain wins
assert 7 > ours.chain_up_to >= poor.chain_up_to
assert ours.tree[NODES] == best.tokens
assert poor.tree[-1] / poor.chain[-1] > good.tree[-1] / good.chain[-1]  # who is unsure, gains
sliders(show, verified=(2, 24))  # where ipywidgets is installed

# %% [markdown]
# Above: the best fixed tree. Below: **a chain wins** while its next token, reached with chance
# $\alpha^m$, is likelier than the second choice at the root, $b$: a good drafter should go deep
# first. A poor one saturates as a chain at $1/(1 - \alpha)$ and goes on growing as a tree.
#
# And tokens per round are not speed: each verified token costs (notebook 01), a level of drafting
# costs the same for a tree as for a chain. `specjax bench trees` repeats this comparison for any
# drafter, `specjax bench costs` times the rounds.
#
# ## Three puzzles
#
# 1. At temperature 0 the target is certain. The draft is clueless: uniform over 4 tokens. How often
#    do 2 siblings contain the target's token, drawn with and without replacement?
# 2. You may verify three tokens: the root and two drafts. When are two siblings better than a
#    chain?
# 3. A vendor samples two distinct siblings, *shows only the likelier of the two* (as a dynamic
#    tree prunes), and verifies it by rejection, with $q$ as its distribution. Is that exact? If
#    not, repair it.
#
# The answers are in the hidden cells below: each prints its solution and checks it. Think first.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print(
    """Answer 1. With replacement both miss with probability (3/4)^2, so 1 - 9/16 = 7/16; without,
two of four tokens are shown, so 2/4. Drawing the same token again is what it loses."""
)
sure, clueless = np.array([1.0, 0, 0, 0]), np.full(4, 0.25)
assert np.isclose(theory.multi_draft_acceptance(sure, clueless, 2, True), 7 / 16)
assert np.isclose(theory.multi_draft_acceptance(sure, clueless, 2, False), 2 / 4)

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print(
    """Answer 2. When the second choice b is right more often than the first is twice: b > a^2."""
)
for a, b in ((0.5, 0.2), (0.5, 0.3), (0.3, 0.1)):
    chosen = theory.tree_optimal([a, b], 3).parents.tolist()
    assert (chosen == [0, 0, 0]) == (b > a**2)

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 3. No: what is shown has the distribution of the likelier of two, not q, and
rejection is exact only for the distribution a token was drawn from. Enumerate both
draws:""")
shown = np.zeros(V)
for first in range(V):
    for second in set(range(V)) - {first}:
        chance = Q[first] * Q[second] / (1 - Q[first])
        shown[max(first, second, key=lambda x: Q[x])] += chance
kept = shown * np.minimum(1, P / Q)
residual = np.maximum(P - Q, 0)
comes_out = kept + (1 - kept.sum()) * residual / residual.sum()
print(f"total variation from the target's distribution: {abs(comes_out - P).sum() / 2:.3f}")
assert abs(comes_out - P).sum() / 2 > 0.02
# The repair: decide how many children are shown from q alone, before anything is drawn. specjax
# scores the r-th child by the r-th largest probability, whatever token it gets (drafters/grow.py);
# tests/laws/test_trees.py tests the joint distribution, and that the vendor's way fails the same
# test.

# %% [markdown]
# ## Check it on vLLM
#
# vLLM 0.32 has no draft trees any more (`speculative_token_tree` was removed). What it recorded is
# a chain, the simplest tree: the bundled draft model with $K = 3$. From how far each of its rounds
# got, the formula must give its own "mean acceptance length".

# %%
said = json.loads(recording("text_draft_model.json").read_text())["answer"]["outputs"]
counts = np.sum([one["metrics"]["acceptance_histogram"] for one in said], axis=0)
got_to = counts[::-1].cumsum()[::-1]  # rounds that accepted at least 0, 1, 2, 3
steps = got_to[0]
conditional = got_to[1:] / got_to[:-1]
length = sum(
    one["metrics"]["mean_acceptance_length"] * one["metrics"]["num_spec_steps"] for one in said
)
from_tree = theory.tree_tokens([0, 0, 1, 2], [1, *conditional])
print(f"{steps} rounds of vLLM: accepted, given the one before: {conditional.round(2)}")
print(f"mean acceptance length: vLLM {length / steps:.4f}, formula {from_tree:.4f}")
assert np.isclose(from_tree, length / steps)
assert (np.diff(conditional) > 0).all()  # easy places stay easy: one alpha would be wrong

# %% [markdown]
# Mind the last assertion: where it is reached, the second token is accepted more often than the
# first, for the rounds that get so far are in easy text. That favours deep nodes over what one
# $\alpha$ predicts, and is why rates are measured by level here. With these rates, and second
# choices as we measured them: would the same four tokens have been better spent?

# %%
second = rates[0, 1] / (1 - rates[0, 0])  # how often it is right where the first is not
siblings = np.column_stack([conditional, second * (1 - conditional)])
spent = theory.tree_optimal(siblings, 4)
print(f"chain {from_tree:.4f}; best tree of 4 tokens {spent.tokens:.4f}, parents {spent.parents}")
assert spent.parents.tolist() == [0, 0, 1, 2]  # no: four tokens are too few for a tree

# %% [markdown]
# ## Summary
#
# A round brings the sum of the chances of its nodes, so the best tree is the $n$ likeliest nodes.
# A sure drafter should go deep, an unsure one wide. Siblings need rules of their own, distinct
# draws are worth more, optimal transport bounds them all; and what is shown must not depend on
# what was drawn.
#
# ## Further reading
#
# - Miao et al. 2024, *SpecInfer* ([arXiv 2305.09781](https://arxiv.org/abs/2305.09781))
# - Sun et al. 2023, *SpecTr* ([arXiv 2310.15141](https://arxiv.org/abs/2310.15141))
# - Chen et al. 2024, *Sequoia* ([arXiv 2402.12374](https://arxiv.org/abs/2402.12374))
# - Wang et al. 2025, *OPT-Tree* ([arXiv 2406.17276](https://arxiv.org/abs/2406.17276))
# - Li et al. 2024, *EAGLE-2* ([arXiv 2406.16858](https://arxiv.org/abs/2406.16858))

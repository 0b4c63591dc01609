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
# # 14 · Design your own drafter
#
# **You will** write a drafter in thirty lines, have every law checked on it, prove that its
# draws keep the target's
# distribution, and compare it with n-gram lookup. **Before this**: 02, 03 and 06. **Time**: 30
# minutes.
#
# **Question.** Code repeats itself: after `self.` came `assert` the last time, so it may come
# again. How good is a
# drafter that remembers, for each token, only where it stood *last*? And what must you show
# before anybody
# should run it?
#
# **Formula.** A drafter cannot change the text under `walk`, nor the distribution under rejection
# sampling, as long as it says truly with which probability it drew each token: accept with
# $\min(1, p / q)$, else
# draw from $\max(p - q, 0)$ ([Leviathan et al. 2023](https://arxiv.org/abs/2211.17192), Alg. 1).
# It can only be slow:
# with $L$ tokens per round and a round that costs $x$ plain steps, the speedup is $L / x$. A
# draft that is looked up
# costs almost nothing, so $x$ is what verifying costs.

# %%
# %matplotlib inline
import functools

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from specjax import LLM, SamplingParams
from specjax.bundled import prompts
from specjax.core.types import Drafter
from specjax.drafters.none import chain
from specjax.testing import check_drafter
from specjax.viz.palette import BLUE, GRID, SMALL, VERMILION

# %% [markdown]
# ## Thirty lines
#
# A drafter is three functions. `init` allocates its state, `propose` guesses what follows the
# text, `observe` reads
# the tokens that were committed. They are traced by `jax.jit`, so masks take the place of `if`.
# The state is one
# array: the last place of each token of the vocabulary, per row.


# %%
@functools.cache
def bigram(target, *, num_speculative_tokens):
    """Build the drafter that proposes what followed each token the last time."""
    vocab_size = target.vocab_size

    def init(params, batch_size, capacity):
        return jnp.full((batch_size, vocab_size), -1, jnp.int32)

    def propose(params, places, text, sampling, keys, window):
        rows = jnp.arange(text.tokens.shape[0])
        token, found = text.tokens[rows, text.lengths - 1], jnp.ones(rows.shape, bool)
        proposed, valid = [], []
        for _ in range(num_speculative_tokens):
            place = places[rows, token]
            found &= place >= 0
            token = text.tokens[rows, place + 1]
            proposed.append(token)
            valid.append(found)
        return chain(text, jnp.stack(proposed, axis=1), jnp.stack(valid, axis=1)), places

    def observe(params, places, text, seen, window):
        offset = jnp.arange(seen.tokens.shape[1])[None]
        place = seen.start[:, None] + offset
        token = jnp.take_along_axis(text.tokens, place, axis=1, mode="clip")
        token = jnp.where(offset < seen.count[:, None], token, vocab_size)  # out of range: dropped
        rows = jnp.arange(token.shape[0])[:, None]
        return places.at[rows, token].max(place, mode="drop")

    return Drafter(init, propose, observe, num_speculative_tokens, num_speculative_tokens + 1)


# %% [markdown]
# ## Its laws, in one call
#
# `check_drafter` runs every law of
# [Add a drafter](https://github.com/specjax/specjax/blob/main/docs/how/add-a-drafter.md)
# on a tiny random target: lossless, bitwise, the same drafts in whatever chunks the text arrives
# and whoever else is in
# the batch, no copied cache. The laws are the slow part of this notebook.

# %%
jax.config.update("jax_disable_most_optimizations", True)  # compiles in two thirds of the time
report = check_drafter(bigram, num_speculative_tokens=2)
jax.config.update("jax_disable_most_optimizations", False)
print(f"all laws hold; {report.tokens_per_round:.2f} tokens per round on random text")
assert report.tokens_per_round >= 1

# %% [markdown]
# ## A drafter that lies about its draws is caught
#
# What is drawn at random comes with the distribution it was drawn from. Rejection sampling
# believes it. In NumPy, on three
# tokens: once $q$ is what was drawn from, once the drafter sharpened its draws and reported the
# old $q$. The exact distribution of the emitted token:

# %%
p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])
sharp = q**3 / (q**3).sum()


def emitted(p, drawn, said):
    """Return the exact distribution of one emitted token; drafts are drawn from ``drawn``."""
    accept = np.minimum(1.0, p / said)
    left = np.maximum(p - said, 0.0)
    return drawn * accept + (drawn * (1 - accept)).sum() * left / left.sum()


honest, liar = emitted(p, q, q), emitted(p, sharp, q)
print("target", p, " honest", honest.round(4), " sharpened in silence", liar.round(4))
print(f"total variation {np.abs(honest - p).sum() / 2:.1e} and {np.abs(liar - p).sum() / 2:.3f}")
assert np.allclose(honest, p)
assert np.abs(liar - p).sum() / 2 > 0.05

# %% [markdown]
# Ours draws nothing: each proposal is certain ($q = 1$ for its token), and that is true.
#
# ## How many tokens does it bring?
#
# Twelve shipped prompts, greedy, 48 tokens each; $K = 4$; beside n-gram lookup (notebook 06).
# Whole texts are the units:
# tokens of one text are alike.

# %%
CONFIGS = {
    "bigram": {
        "method": "custom_class",
        "model": f"{__name__}:bigram",
        "num_speculative_tokens": 4,
    },
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2},
}
chosen = [one["turns"][0] for one in prompts()][:12]
ask = SamplingParams(temperature=0.0, max_tokens=48)
texts, lengths = {}, {}
for name, config in CONFIGS.items():
    llm = LLM("bundled", max_num_seqs=6, speculative_config=config)
    found = [one.outputs[0] for one in llm.generate(chosen, ask, use_tqdm=False)]
    texts[name] = [one.token_ids for one in found]
    lengths[name] = np.array([one.spec_decode_metrics.mean_acceptance_length for one in found])
    print(f"{name:7} {lengths[name].mean():.2f} tokens per round, {lengths[name].min():.2f} to "
          f"{lengths[name].max():.2f}")  # fmt: skip
assert texts["bigram"] == texts["ngram"]  # lossless: the draft does not show in the text

# %%
rng = np.random.default_rng(0)
better = lengths["bigram"] - lengths["ngram"]
draws = better[rng.integers(0, len(better), (4000, len(better)))].mean(axis=1)
low, high = np.quantile(draws, [0.025, 0.975])
print(
    f"bigram minus ngram: {better.mean():+.2f} tokens per round, "
    f"95% interval {low:+.2f} to {high:+.2f}"
)
figure = Figure(figsize=(7.2, 3.8), dpi=150, layout="constrained")
ax = figure.add_subplot()
place = np.arange(len(chosen))
order = np.argsort(lengths["ngram"])
ax.plot(place, lengths["ngram"][order], "s", color=VERMILION, label="n-gram lookup")
ax.plot(place, lengths["bigram"][order], "o", color=BLUE, label="bigram (ours)")
ax.vlines(place, lengths["ngram"][order], lengths["bigram"][order], color="#999999", linewidth=0.8)
ax.set_xlabel("prompt (in the order of n-gram's length)", fontsize=SMALL)
ax.set_ylabel("tokens per round", fontsize=SMALL)
says = "how they differ is chance" if low < 0 < high else "n-gram lookup brings more on average"
ax.set_title(f"Prompt by prompt: {says}", loc="left", fontsize=11)
assert high < 0  # what follows two tokens is known better than what follows one
ax.grid(axis="y", color=GRID, linewidth=0.6)
ax.legend(frameon=False, fontsize=SMALL)
ax.get_figure()

# %% [markdown]
# ## Is it faster?
#
# Tokens per round are not time. For that: save the cell as `my_drafters.py` and let the arms
# take turns on a machine that
# does nothing else.
#
# ```sh
# PYTHONPATH=. specjax ab run --out runs/bigram --arm plain=specjax \
#     --arm 'ngram=specjax:{"method": "ngram", "num_speculative_tokens": 4}' \
#     --arm 'bigram=specjax:{"method": "custom_class", "model": "my_drafters:bigram",
#     "num_speculative_tokens": 4}'
# ```
#
# ## Three puzzles
#
# 1. `observe` takes the *largest* place of a token with `.max`, and not the last one written
#    with `.set`. Which law would
#    break otherwise?
# 2. A drafter proposes, at places chosen at random, a uniformly drawn token and sets no
#    probabilities (`probs=None`: each is certain). Is the text under
#    `walk` still the target's? And under rejection sampling?
# 3. Let the bigram propose only tokens that have followed the last one at least twice. Tokens per
#    round can only fall. Why might
#    it be faster all the same?
#
# The answers are in the hidden cells below: each prints its solution and checks it. Think first.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 1. Law 6, observe: a text that arrives in other chunks, or again, must give the same
drafts. `.set` with repeated indices keeps an arbitrary one of them, `.max` the latest place.""")
places, token = jnp.full((4,), -1), jnp.array([2, 2, 2])
assert int(places.at[token].max(jnp.array([5, 9, 7]))[2]) == 9
once = places.at[token].max(jnp.array([5, 9, 7]))
assert (once == once.at[token].max(jnp.array([5, 9, 7]))).all()
print("observing twice changes nothing:", once.tolist())

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 2. Under walk yes: it emits the target's own choices, and keeps a draft only where
it agrees. Under rejection sampling the rule takes q = 1 for a token that was drawn with q = 1/V: it
accepts it with probability p and else draws from p without it. Given the draft: p again.""")
draft = 1
given = np.where(np.arange(3) == draft, p[draft], 0)
without = np.where(np.arange(3) == draft, 0, p)
mixed = given + (1 - p[draft]) * without / without.sum()
print("given any draft:", mixed.round(3))
assert np.allclose(mixed, p)

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 3. A round without any proposal verifies one token, and costs a plain step.
Proposals that are mostly refused cost their verification. A draft pays if its expected tokens
exceed its share of the round's cost.""")
cost, gain = 1.6, {"always": 1.3, "twice": 1.25}  # of a round with K = 4; tokens per round
drafted = {"always": 0.95, "twice": 0.4}  # share of rounds with a proposal
speed = {k: gain[k] / (drafted[k] * cost + 1 - drafted[k]) for k in gain}
print({k: round(v, 2) for k, v in speed.items()})
assert speed["twice"] > speed["always"]

# %% [markdown]
# ## Summary
#
# Three pure functions and two numbers are a drafter; it cannot make the text wrong, only the run
# slow, if it tells
# the truth about its draws. Have the laws checked before you measure, compare prompt by prompt,
# and give an interval.
#
# ## Further reading
#
# - [Add a drafter](https://github.com/specjax/specjax/blob/main/docs/how/add-a-drafter.md):
#   options, weights, hidden states, names for packages
# - Leviathan, Kalman & Matias 2023, *Fast Inference from Transformers via Speculative Decoding*
#   ([arXiv 2211.17192](https://arxiv.org/abs/2211.17192))
# - Saxena 2023, [prompt lookup decoding](https://github.com/apoorvumang/prompt-lookup-decoding)

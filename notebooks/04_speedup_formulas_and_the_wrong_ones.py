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
# # 04 · Speedup formulas, and the wrong ones
#
# **You will** compute a speedup, the best K and the break-even alpha, and recognise wrong
# formulas in print. **Before this**: 02. **Time**: 30 minutes.
#
# **Question.** A guide says: *with $\alpha = 0.8$, $K = 5$ and a draft step of a tenth of a
# target step, about 3.2 tokens are accepted, so the speedup is 2.1.* Is that so? And who could
# tell?
#
# **Formula.** Each drafted token is accepted with chance $\alpha$; the first rejection ends the
# draft; the target always adds one token of its own. With all costs in target steps, $c$ for a
# step of the draft and $v$ for verifying the block (1 left of the knee, see notebook 01), the
# speedup over plain decoding is ([Leviathan, Kalman & Matias
# 2023](https://arxiv.org/abs/2211.17192), Eq. 1 and Thm 3.8)
#
# $$ S = \frac{G}{K c + v}, \qquad
#    G = 1 + \alpha + \dots + \alpha^K = \frac{1 - \alpha^{K+1}}{1 - \alpha}. $$
#
# $G$ counts **tokens per step** (a round of notebook 02), the target's own included; $G - 1$ are
# **accepted**.

# %%
# %matplotlib inline
import json
import textwrap
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from specjax import theory
from specjax.bundled import recording
from specjax.core.metrics import SpecDecodeCounters
from specjax.simulate import chain, correlated_pair
from specjax.theory.published import LEVIATHAN_TABLE_1, LEVIATHAN_TABLE_4
from specjax.viz.claimed_speedups import claimed_speedups
from specjax.viz.palette import SMALL
from specjax.viz.sliders import sliders
from specjax.viz.speedup_surface import speedup_surface

# %% [markdown]
# ## The claim, in fractions
#
# No decimals, no doubts.

# %%
alpha, K, c = Fraction(4, 5), 5, Fraction(1, 10)
accepted = sum(alpha**i for i in range(1, K + 1))
tokens = 1 + accepted
speedup = tokens / (K * c + 1)
limit = alpha / (1 - alpha)
print(f"accepted per step   {float(accepted):.5f}")
print(f"tokens per step     {float(tokens):.5f}")
print(f"speedup             {float(speedup):.5f}")
print(f"a / (1 - a)         {float(limit):.5f}")
assert accepted == Fraction(268_928, 100_000)
assert tokens == Fraction(368_928, 100_000) == (1 - alpha**6) / (1 - alpha)
assert speedup == Fraction(245_952, 100_000)
assert limit == 4  # what the accepted tokens tend to as K grows
assert limit / accepted == 1 / (1 - alpha**K)  # exactly so: it is too large by this factor

assert np.isclose(theory.speedup(0.8, 5, 0.1), float(speedup), rtol=1e-14)

# %% [markdown]
# So neither number is right. What is 3.2, then? `check_claim` tries the formulas that circulate.

# %%
for claimed in (3.2, 2.1, 2.46):
    print(textwrap.fill(theory.check_claim(0.8, 5, 0.1, claimed).says, 92) + "\n")
verdicts = [theory.check_claim(0.8, 5, 0.1, claimed) for claimed in (3.2, 2.1, 2.46)]
assert [verdict.right for verdict in verdicts] == [False, False, True]
assert np.isclose(verdicts[0].value, 0.8**2 / (1 - 0.8))  # 3.2: an endless sum begun too late
assert "linear in K - 1" in verdicts[0].also  # or (K - 1) alpha
assert np.isclose(verdicts[1].value, 3.2 / 1.5)  # 2.1: the same over the right cost
assert round(1 - verdicts[1].value / float(speedup), 2) == 0.13

# %% [markdown]
# The guide writes the sum $\alpha + \dots + \alpha^K$, replaces it by its limit
# $\alpha/(1-\alpha)$, which is 4, prints 3.2, and divides 3.2 by the right cost. The target's own
# token is in none of them. That is too small, the limit is too large, and the two nearly cancel:
# 2.13 is only 13% off. Luck: for other numbers, and above all when you *choose* $K$, it is not.
#
# ## Ask the program
#
# Believe neither: count. `simulate.chain` runs the round that ships, `decode.step`, on toy models
# whose acceptance is $\alpha$ in every state: all pairs of $(\alpha, K)$ and 64 seeds each in one
# compiled call. The length of a step is geometric, cut at $K + 1$, so its variance is known, and
# we can say beforehand how far the mean may be off. With 4.5 standard errors, less than one false
# alarm in ten thousand runs.

# %%
ALPHAS, DEPTHS = np.array([0.5, 0.8, 0.9]), np.array([1, 3, 5, 8])
SEEDS, ROUNDS = 64, 64
counts = chain(correlated_pair(ALPHAS, sharpness=3.0), 1.0, DEPTHS, SEEDS, ROUNDS)
measured = np.asarray(counts.tokens_per_step, float)[:, 0].mean(axis=-1)  # [alpha, K]

right = theory.tokens_per_step(ALPHAS[:, None], DEPTHS[None])
error = np.sqrt(theory.step_length_var(ALPHAS[:, None], DEPTHS[None]) / (SEEDS * ROUNDS))
wrong = {
    "without the target's token": right - 1,
    "a / (1 - a)": (ALPHAS / (1 - ALPHAS))[:, None] + 0 * DEPTHS[None],
    "1 + K a": 1 + ALPHAS[:, None] * DEPTHS[None],
}
print(f"{SEEDS * ROUNDS:,} rounds each   alpha = 0.8, K = 5: formula {right[1, 2]:.3f}, "
      f"counted {measured[1, 2]:.3f}")  # fmt: skip
assert (abs(measured - right) <= 4.5 * error + 1e-6).all()
for name, formula in wrong.items():
    off = abs(formula - measured)[1, 2] / error[1, 2]
    print(f"{name:<27} off by {off:5.0f} standard errors")
    assert off > 8

# %% [markdown]
# And what the paper printed can be recomputed: Table 1 to the last digit. Table 4 set the formula
# against real speedups of a T5 model; from its rounded inputs, its "expected" column comes out
# to within 0.07.

# %%
for row in LEVIATHAN_TABLE_1:  # c = 0
    assert round(theory.speedup(row.alpha, row.K, 0), 2) == row.speedup
    assert round(theory.ops_factor(row.alpha, row.K, 0), 2) == row.operations
expected = np.array([theory.speedup(row.alpha, row.K, row.c) for row in LEVIATHAN_TABLE_4])
printed, real = np.array([(row.expected, row.measured) for row in LEVIATHAN_TABLE_4]).T
ratio = real / expected
print(f"Table 4: measured over expected, from {ratio.min():.2f} to {ratio.max():.2f}")
assert abs(expected - printed).max() < 0.07
assert (round(ratio.min(), 2), round(ratio.max(), 2)) == (0.68, 1.29)

# %% [markdown]
# Read that range before you trust any formula: $\alpha$ is not the same at every position, and
# $c$ is not what the draft costs when nothing else runs. A right formula of two numbers is still
# a model.
#
# ## What the wrong ones lead to
#
# A number may be off by a little and still be useful. But these formulas are used to *choose*
# $K$, and to decide whether to speculate at all.

# %%
found, axes = claimed_speedups(
    0.8, 5, 0.1, title="The right formula recommends K = 6; the wrong ones 7, 1 and 16"
)
recommends = {one.name: one.best_k for one in found}
print(recommends)
assert recommends == {"right": 6, "no bonus": 7, "limit": 1, "linear": 16}

least = theory.breakeven_alpha(5, 0.1)  # G = 1.5
alphas = np.linspace(0, 0.999, 100_000)
least_wrong = alphas[theory.accepted_per_step(alphas, 5) >= 1.5][0]
print(f"K = 5 pays from alpha = {least:.3f} on; without the bonus token: from {least_wrong:.3f}")
assert np.isclose(theory.speedup(least, 5, 0.1), 1)
assert (round(least, 3), round(least_wrong, 3)) == (0.334, 0.624)
axes[0].get_figure()

# %% [markdown]
# - **The limit recommends $K = 1$, always**: its numerator does not know $K$, so a longer draft
#   only costs.
# - **The linear one recommends as many as you can**: a rejection ends nothing.
# - **Without the target's own token** drafts that pay are sent away: here ($K = 5$, $c = 0.1$) all
#   $\alpha$ from 0.33 to 0.62.
#
# ## The map
#
# Among $K \ge 1$ the best is where one more drafted token stops paying for itself: the smallest $K$
# with $\alpha^{K+1}(v + cK) \le c\,G(K)$; draft at all only if its $S$ exceeds 1, which is
# $G > Kc + v$. Over the reals and with $v = 1$ it is a Lambert $W$ function. A little
# theorem (Cor. 3.9) tells where it is zero: **where verifying $K + 1$ tokens costs no more than one
# ($v = 1$), speculation pays at all if and only if $\alpha > c$**. (If so, one token pays:
# $1 + \alpha > 1 + c$. If not, none do: $G \le 1 + K\alpha \le 1 + Kc$.) Under load $v$ is larger:
# with $v = 1.31$, for example, no $K$ pays at $\alpha = 0.35$, $c = 0.122$.

# %%
surface, _ = speedup_surface(0.1)
i = 160
assert surface.alphas[i] == 0.8
assert surface.best[i] == 6
assert np.isclose(surface.speedup[5, i], 2.46964)
assert np.isclose(surface.breakeven[0], 0.1)  # K = 1: alpha > c
assert round(max(theory.speedup(0.35, k, 0.122, v=1.31) for k in range(1, 20)), 2) == 0.95
assert ((surface.best > 0) == (surface.alphas > 0.1)).all()
exact = [sum(alpha**j for j in range(k + 1)) / (k * c + 1) for k in range(65)]
assert max(range(65), key=exact.__getitem__) == 6  # brute force, in fractions
stops = [alpha ** (k + 1) * (1 + k * c) <= c * exact[k] * (k * c + 1) for k in range(65)]
assert stops.index(True) == 6
assert round(theory.optimal_k_real(0.8, 0.1), 3) == 5.756


def show(alpha=0.8, K=5, c=0.1, v=1.0):
    """Draw the map at these costs, and on it this alpha and K."""
    surface, axes = speedup_surface(
        c, v=v, title="Right of the black line speculation pays, on the orange one it pays most"
    )
    gain, best = theory.speedup(alpha, K, c, v), theory.optimal_k(alpha, c, v, surface.ks[-1])
    most = theory.speedup(alpha, best, c, v) if best else 1.0
    ring = {"markersize": 11, "markerfacecolor": "none", "markeredgewidth": 2.5}
    axes.plot(alpha, K, "o", color="white", **ring)
    says = f"alpha = {alpha:g}, K = {K}: {gain:.2f}x\nbest K = {best}: {most:.2f}x"
    corner = {"transform": axes.transAxes, "va": "top", "fontsize": SMALL}
    axes.text(0.02, 0.96, says, bbox={"facecolor": "white", "edgecolor": "none"}, **corner)
    return axes.get_figure()


sliders(show, alpha=(0.3, 0.99, 0.01), K=(1, 12), c=(0.0, 1.0, 0.01), v=(0.5, 4.0, 0.05))

# %% [markdown]
# "$K = 3$ to $5$ is a good balance", says the same guide. Over the whole square of $(\alpha, c)$:

# %%
grid = (np.arange(400) + 0.5) / 400
alphas, costs = grid[None], grid[:, None]
best = theory.optimal_k(alphas, costs, 1.0, 200)
most = theory.speedup(alphas, best, costs)
balance = theory.speedup(alphas, np.arange(3, 6)[:, None, None], costs).max(axis=0)
shares = {
    "some K beats plain decoding": (best > 0).mean(),
    "K = 3, 4 or 5 beats it": (balance > 1).mean(),
    "and is within 5% of the best K": (balance >= 0.95 * most).mean(),
    "and is the best K": ((best >= 3) & (best <= 5)).mean(),
}
for said, share in shares.items():
    print(f"{said:<31} {share:5.1%}")
assert [round(100 * share) for share in shares.values()] == [50, 36, 26, 11]
assert ((best > 0) == (alphas > costs))[alphas != costs].all()

# %% [markdown]
# A third of the square, generously. Drafts that cost next to nothing, such as n-grams, want a
# larger $K$ and expensive ones a smaller. The number to know is your own $c$.
#
# ## Where to put the work
#
# JAX differentiates the same formula. An elasticity says how many percent the speedup gains for
# one percent of improvement: in acceptance ($\partial \ln S / \partial \ln \alpha$) or in the
# draft's cost ($-\partial \ln S / \partial \ln c$).

# %%
log_speedup = lambda log_alpha, K, log_c: jnp.log(  # noqa: E731
    theory.speedup(jnp.exp(log_alpha), K, jnp.exp(log_c))
)
slopes = jax.jit(jax.grad(log_speedup, argnums=(0, 2)))
print("alpha     c    K*   in alpha    in c")
for a, cost in ((0.6, 0.2), (0.6, 0.02), (0.9, 0.2), (0.9, 0.02)):
    depth = int(theory.optimal_k(a, cost))
    up, down = (float(x) for x in slopes(jnp.log(a), float(depth), jnp.log(cost)))
    powers = a ** np.arange(depth + 1)
    exact = (np.arange(depth + 1) * powers).sum() / powers.sum(), -depth * cost / (depth * cost + 1)
    print(f"{a:5} {cost:5} {depth:5} {up:10.3f} {-down:7.3f}")
    np.testing.assert_allclose((up, down), exact, rtol=1e-4)
    assert up > -down

# %% [markdown]
# A percent of $\alpha$ is worth more than a percent of $c$ in every row. But it is not as easy to
# have: at $\alpha = 0.9$ there is little left to gain. Puzzle 2 is about that.
#
# ## One number that is not alpha
#
# Engines print an *acceptance rate*, accepted over drafted tokens. It counts tokens after the
# first rejection, which were never judged, as if they had failed. At $\alpha = 0.8$, $K = 5$ it is
# $(G - 1)/K = 0.538$. Whoever puts *that* into the formula as $\alpha$ gets 2.11 tokens per step
# instead of 3.69. Multiply it with the drafted tokens instead: $1 + K r$ is exact.

# %%
rate = accepted / K
print(f"rate {float(rate):.3f}: 1 + K r = {float(1 + K * rate):.3f} tokens per step, "
      f"G(r) = {float(sum(rate**i for i in range(K + 1))):.2f}")  # fmt: skip
assert rate == Fraction(268_928, 500_000)
assert 1 + K * rate == tokens
assert np.isclose(theory.draft_acceptance_ratio(0.8, 5), float(rate))
assert round(float(sum(rate**i for i in range(K + 1))), 2) == 2.11
assert np.isclose(theory.alpha_from_ratio(float(rate), K), 0.8)  # the way back

# %% [markdown]
# ## Three puzzles
#
# 1. Another guide: *a draft step takes less than a fifth of a target step; three of them and the
#    verification take about 1.5; three tokens come out: +100%.* What are $c$ and $\alpha$ then?
# 2. You may halve the cost of your draft, or halve its rejections ($1 - \alpha$). Now
#    $c = 0.2$. Which is better at $\alpha = 0.6$? And at $\alpha = 0.9$? ($K$ is chosen anew.)
# 3. A vendor promises a speedup of 5 and mentions $\alpha = 0.8$. Possible?
#
# The answers are in the hidden cells below: each prints its solution and checks it. Think first.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 1. 1 + 3c = 1.5 means c = 1/6, less than the fifth it mentions: at c = 1/5 it is
1.6. And G = 3 tokens per step, the target's own included, means alpha = 0.81. Then 3 /
1.5 is +100%.""")
needed = theory.alpha_from_length(3, 3)
assert round(needed, 4) == 0.8105
assert np.isclose(theory.speedup(needed, 3, 1 / 6), 2)
assert np.isclose(theory.speedup(needed, 3, 1 / 5), 3 / 1.6)


# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 2. It turns: a poor draft should become better (alpha 0.6 to 0.8 gains
more than c 0.2 to 0.1: 1.87 against 1.67), a good one cheaper (3.43 against 2.87 at
alpha 0.9 and 0.95).""")


def best_speedup(a, cost):
    return theory.speedup(a, theory.optimal_k(a, cost, 1.0, 200), cost)


assert best_speedup(0.8, 0.2) > best_speedup(0.6, 0.1)  # 1.87 against 1.67
assert best_speedup(0.95, 0.2) < best_speedup(0.9, 0.1)  # 2.87 against 3.43
assert np.isclose(best_speedup(0.9, 0.1), 3.4309, atol=1e-4)

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 3. Only as a limit: 1 / (1 - alpha) = 5 tokens per step for endless drafts that
cost nothing. Even a draft that costs a thousandth stays below, at a K of 23.""")
assert np.isclose(theory.oracle_speedup(0.8), 5)
assert theory.optimal_k(0.8, 0.001) == 23
assert round(best_speedup(0.8, 0.001), 2) == 4.86
assert round(best_speedup(0.8, 0.05), 2) == 3.09  # a draft that is real

# %% [markdown]
# ## Check it on vLLM
#
# The repository keeps what a real vLLM 0.32.0 answered to a hundred prompts with the bundled
# draft model at $K = 3$: drafted and accepted tokens of every step. Three readings of the same
# counters, and only one of them gives the number of tokens that came out (but for the last step of
# each request, which is cut at its limit).
# (`make oracle-record` asks vLLM again: it installs it beside this environment, 3.5 GB.)

# %%
answer = json.loads(recording("text_draft_model.json").read_text())["answer"]
outputs, K = answer["outputs"], 3
seen = SpecDecodeCounters.zeros(K)
for one in outputs:
    seen = seen.add(one["metrics"]["per_step_drafted"], one["metrics"]["per_step_accepted"])
emitted = sum(len(one["token_ids"]) - 1 for one in outputs)  # the first comes with the prompt
steps, rate = seen.num_drafts, seen.acceptance_rate
print(f"{steps:,} steps of {K} drafted tokens, acceptance rate {rate:.1%}; {emitted:,} came out")
readings = {
    "1 + K r": 1 + K * rate,
    "K r, no bonus": K * rate,
    "G(r), the rate as alpha": theory.tokens_per_step(rate, K),
}
for said, per_step in readings.items():
    print(f"{said:<24} {per_step:5.3f} per step: {steps * per_step:6,.0f} tokens")
assert seen.num_accepted_tokens == answer["counters"]["vllm:spec_decode_num_accepted_tokens"]
overshoot = steps * readings["1 + K r"] - emitted  # the last step of a request is cut
assert 0 <= overshoot <= K * len(outputs)
assert np.isclose(readings["1 + K r"], seen.mean_acceptance_length)
marginal = seen.acceptance_rate_per_pos
assert np.isclose(theory.tokens_from_positions(marginal=marginal), seen.mean_acceptance_length)
assert steps * readings["K r, no bonus"] < emitted - K * len(outputs)
assert steps * readings["G(r), the rate as alpha"] < emitted - K * len(outputs)

# %% [markdown]
# ## Summary
#
# $S = G / (Kc + v)$, with the target's own token in $G$ and every cost in plain steps. Formulas
# without it, with the limit for the sum, or linear in $K$ may come close by luck and still choose
# the wrong $K$. The acceptance rate is not $\alpha$; $1 + K r$ is exact. Measure $c$ and $v$
# before you choose $K$.
#
# ## Further reading
#
# - Leviathan, Kalman & Matias 2023, *Fast Inference from Transformers via Speculative Decoding*
#   ([arXiv 2211.17192](https://arxiv.org/abs/2211.17192))
# - Chen et al. 2024, *Sequoia* ([arXiv 2402.12374](https://arxiv.org/abs/2402.12374))

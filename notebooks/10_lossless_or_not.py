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
# # 10 · Lossless or not: the audit of a server, and an A/B against vLLM
#
# **You will** say how many draws prove what about a server, and test one. **Before this**: 03 and
# 05. **Time**: 30 minutes.
#
# **Question.** A server speculates. Does it still write what the model would have written alone?
# You cannot read its kernels; you may only ask it for texts. How many, and what do they prove?
#
# **Formula.** At temperature 0: compare texts. Above it, two runs differ even if nothing is
# wrong, so distributions have to be compared: they should be equal by Theorem 1 of [Chen et al.
# 2023](https://arxiv.org/abs/2302.01318). Take the first few tokens of a completion as one
# *cell*, with probability $m$, the mean of two servers'; they differ by $d$ in it, and by
# $\mathrm{TV} = \frac12 \sum |d|$ in all. Draw $n$ texts from each.
#
# - **TV measured is never 0.** Under one distribution each cell's difference is nearly normal, so
#   chance alone shows $E[\mathrm{TV}] = \frac12\sum\sqrt{\tfrac{2}{\pi} m (1-m)\tfrac{2}{n}}$.
# - **Pearson's chi-square** knows that. If the distributions differ it is noncentral, with
#   $\lambda = \frac n2 \sum d^2/m \ge 2 n\,\mathrm{TV}^2$ (Cauchy-Schwarz: $(\sum |d|)^2 \le
#   \sum d^2/m \cdot \sum m$). So the number of draws follows from the TV you want to see, and how
#   surely: it grows as $1/\mathrm{TV}^2$.
# - **Several prompts are several chances of a false alarm.** Holm: the smallest of $k$ p-values is
#   multiplied by $k$, the next by $k - 1$, and so on.

# %%
# %matplotlib inline
import json
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from scipy.stats import binom

from specjax.ab.compare import by_load, by_prompt
from specjax.ab.findings import find
from specjax.ab.measures import tpot
from specjax.ab.records import read_log
from specjax.audit import cells, zoo
from specjax.audit.cases import random_cases
from specjax.audit.exact import exact_distribution
from specjax.audit.prefixes import texts
from specjax.audit.server import judge
from specjax.bundled import recording
from specjax.theory import goodness
from specjax.viz.findings import Found, audit_findings
from specjax.viz.gains import Gain, gains
from specjax.viz.palette import SMALL

# %% [markdown]
# ## Two servers of one distribution
#
# Our first "server" is a distribution over the texts of three tokens, of 4 words. We draw from it
# in JAX, a thousand audits at a time: each audit draws $n$ texts twice, from the *same*
# distribution.

# %%
V, K, ALPHA, AUDITS = 4, 2, 0.01, 1000
p_tree, q_tree = random_cases(1, V, K, seed=8)
honest = texts(p_tree, K + 1)[0]
print(f"{(honest > 0).sum()} texts are possible; the likeliest has probability {honest.max():.3f}")


def draw(key, distribution, audits, n):
    """Count n texts of a distribution, in each of some audits: [audits, V ** (K + 1)]."""
    drawn = jax.random.categorical(key, jnp.log(jnp.asarray(distribution)), shape=(audits, n))
    return jax.vmap(lambda one: jnp.bincount(one, length=len(distribution)))(drawn)


draw = jax.jit(draw, static_argnums=(2, 3))


def tables(seed, ours, theirs, n, audits=AUDITS):
    """Draw two samples in each audit, and merge rare cells: a list of [cells, 2]."""
    keys = jax.random.split(jax.random.key(seed))
    pairs = zip(*(np.asarray(draw(*one, audits, n)) for one in zip(keys, (ours, theirs))))  # noqa: B905
    words = list(np.ndindex(*[V] * (K + 1)))
    counted = ([Counter(dict(zip(words, map(int, c)))) for c in pair] for pair in pairs)  # noqa: B905
    return [cells.merge_samples(*pair, most=24) for pair in counted]


N = 2000
same = tables(0, honest, honest, N, audits=200)
measured = np.array([goodness.total_variation(table) for table in same])
expected = np.array([goodness.expected_variation(table) for table in same])
print(
    f"one distribution, {N} draws each: TV {measured.mean():.4f} on average, "
    f"formula {expected.mean():.4f}"
)
assert abs(measured.mean() / expected.mean() - 1) < 0.05
assert measured.min() > 0.005  # never 0: "TV = 0.05" alone says nothing

# %% [markdown]
# So a TV of five percent is what honesty looks like at 2,000 draws of these texts. The test takes
# that into account: it rejects one distribution as often as it is allowed to, and not more.

# %%
false_alarms = sum(goodness.homogeneity_p_value(table) < 0.05 for table in same)
print(f"rejected at the 5% level: {false_alarms} of {len(same)}")
assert binom.cdf(false_alarms, len(same), 0.05) < 0.9999

# %% [markdown]
# ## How many draws?
#
# To see a TV of 0.05 in nine audits of ten, at a level of 1%, with 24 cells:

# %%
WANTED, POWER, CELLS = 0.05, 0.9, 24
n = goodness.samples_to_detect_tv(CELLS, WANTED, POWER, ALPHA)
for_half = goodness.samples_to_detect_tv(CELLS, WANTED / 2, POWER, ALPHA)
print(f"{n} draws from each server; for half the TV {for_half}")
assert np.isclose(for_half / n, 4, rtol=1e-3)

flat = np.where(
    np.arange(V ** (K + 1)) < CELLS, 1 / CELLS, 0.0
)  # the hardest distribution of 24 cells
skewed = flat + np.where(flat > 0, np.resize([1, -1], len(flat)), 0) * 2 * WANTED / CELLS
assert np.isclose(abs(skewed - flat).sum() / 2, WANTED)
found = [goodness.homogeneity_p_value(t) < ALPHA for t in tables(1, flat, skewed, n, audits=200)]
print(f"found in {np.mean(found):.1%} of 200 audits, promised {POWER:.0%}")
assert binom.cdf(sum(found), len(found), POWER) > 1e-3
assert binom.sf(sum(found), len(found), POWER) > 1e-3

# %% [markdown]
# ## Four prompts, one verdict

# %%
K_PROMPTS = 4
p_values = np.random.default_rng(0).uniform(
    size=(20_000, K_PROMPTS)
)  # of servers of one distribution
naive = (p_values < 0.05).any(axis=1).mean()
with_holm = np.mean([min(goodness.holm(row)) < 0.05 for row in p_values.tolist()])
print(f"false alarms: {naive:.1%} if any p < 0.05 counts, {with_holm:.1%} with Holm")
assert np.isclose(naive, 1 - 0.95**K_PROMPTS, atol=0.01)
assert with_holm < 0.055

# %% [markdown]
# ## Broken servers
#
# The zoo has verifiers that were shipped like this. `exact_distribution` tells what each of them
# really does to our distribution; then an audit samples it, as it would sample a server.

# %%
BROKEN = (
    zoo.draft_ignores_temperature, zoo.argmax_draft_with_softmax_q, zoo.position_shifted_q,
    zoo.recovered_from_p, zoo.bonus_from_the_wrong_row, zoo.first_token_unverified,
    zoo.accepts_at_equality, zoo.noise_reused_between_rounds,
)  # fmt: skip
INVISIBLE = {"accepts_at_equality", "noise_reused_between_rounds"}
rows = []
for keeper in BROKEN:
    name, specimen = keeper.__name__, keeper()
    drawn = None if specimen.drawn is None else specimen.drawn(q_tree)
    distribution = exact_distribution(specimen.rule, p_tree, q_tree, K, drawn=drawn)
    (table,) = tables(2, distribution.joint[0] / distribution.joint[0].sum(), honest, n, audits=1)
    differs = goodness.homogeneity_p_value(table) < ALPHA
    tv = goodness.total_variation(table)
    rows.append(Found(name, tv, goodness.expected_variation(table), differs))
    print(
        f"{name:30} exact TV {distribution.tv[0]:.4f}, measured {tv:.4f}, "
        f"{'found' if differs else '-'}"
    )
    assert differs == (name not in INVISIBLE)
    assert (distribution.tv[0] < 1e-6) == (name in INVISIBLE)

# %% [markdown]
# Two of them pass, and no practicable number of draws will change that. `accepts_at_equality` is
# wrong once in $2^{23}$ tokens. `noise_reused_between_rounds` is exact in every single round, and
# wrong across rounds. Enumeration of the code finds both (notebook 03, `specjax audit rules`); an
# audit from outside never proves that a server is right, it bounds how wrong it can be.
#
# ## Check it on vLLM
#
# `specjax audit server --base-url A --reference-url B` does all this to a running server: draws,
# the merged test per prompt, Holm, and the greedy texts. The repository keeps what vLLM 0.32.0 on a
# CPU answered, as installed and with four defects repaired, each once compared with a server that
# does not speculate, and once with the logprobs it gives its own texts. `judge` needs no server.

# %%
AGAINST = {"speculation": "a plain server", "logprobs": "its own logprobs"}
for state in ("stock", "repaired"):
    for against, words in AGAINST.items():
        kept = json.loads(recording(f"audit_{state}_{against}.json").read_text())
        report = judge(kept["answer"]["collected"])
        print(f"{state} vLLM, against {words}: {'passed' if report.passed else 'FLAGGED'}")
        for one in report.findings:  # a prompt each
            print(f"  {one.draws} draws, {one.cells} cells: TV {one.tv:.3f}, by chance "
                  f"{one.expected_tv:.3f}, adjusted p {one.adjusted_p:.1e}")  # fmt: skip
            name = f"{state} vLLM, against {words}"
            rows.append(Found(name, one.tv, one.expected_tv, one.differs))
        assert report.passed == (state == "repaired")
        assert all(one.passed for one in report.greedy)  # greedy texts show nothing

# %%
ratios, axes = audit_findings(
    rows, title="What is broken exceeds chance; two bugs and one prompt hide"
)
for row, ratio in zip(rows, ratios, strict=True):
    assert (ratio > 2) == row.differs  # honest dots lie near the ends of their bars
axes.get_figure()

# %% [markdown]
# The stock build divides the logits of draft positions by uninitialised memory instead of the
# temperature. **Its greedy texts are perfect**: a test at temperature 0 says nothing about one
# above it. And one of its prompts passes, for memory may hold the right number by accident: ask
# several.
#
# ## Lossless, but is it faster? An A/B
#
# **Question.** Twelve arms completed the same 24 prompts twice, at one and at four requests at
# a time: vLLM on a CPU, specjax in one process, specjax behind HTTP; each of them plainly and with
# three drafters (`specjax ab run`; `docs/ab.jsonl` is its log). Which gains are real?
#
# **Formula.** A gain is a ratio of sums over the *same* prompts,
# $\hat r = \sum_i a_i / \sum_i b_i$, with the base's seconds per token $a_i$ and the arm's $b_i$.
# Some prompts are slow for everybody. That cancels if prompts are drawn with replacement and both
# arms' requests of a prompt are kept together: a *paired* bootstrap, clustered by prompt, since
# two requests of one prompt are not two independent observations.

# %%
log = read_log(recording("ab.jsonl"))
found = find(log)
print(log.manifest["host"])
own, first = found.bases.own, found.bases.first
assert own["specjax ngram"] == "specjax"  # plain decoding of the same engine
within = [
    one
    for one in found.comparisons
    if one.base.arm == own[one.arm.arm] and one.arm.arm not in found.bases.labels
]
figure = Figure(figsize=(7.8, 4.6), dpi=150, layout="constrained")
for ax, load in zip(figure.subplots(1, 2, sharex=True, sharey=True), (1, 4), strict=True):
    here = [one for one in within if one.base.concurrency == load]
    arms = [Gain("", one.arm.arm, one.tpot_gain, one.tps_gain) for one in here]
    gains(arms, title=f"{load} at a time", ax=ax)
    ax.set_xlabel("gain over plain decoding (ratio, 95%)", fontsize=SMALL)
figure.suptitle("Within an engine some gains are real, some are not (2 CPU cores)",
                fontsize=11, x=0.01, ha="left")  # fmt: skip
assert len(within) == 2 * len(arms)
ax.get_figure()

# %% [markdown]
# What a drafter gains depends on what plain decoding costs: over vLLM's, every arm of specjax
# would look like a good drafter.

# %%
for one in found.comparisons:
    if one.base.arm == first and one.arm.arm in found.bases.labels:
        gain = one.tpot_gain
        print(f"{one.base.concurrency} at a time, {one.arm.arm}, plain, over {first}: "
              f"{gain.estimate:.2f}x [{gain.low:.2f}, {gain.high:.2f}]")  # fmt: skip
        assert gain.low > 1

# %% [markdown]
# The texts first: an arm that writes something else may be fast for that reason. All arms are
# greedy and share weights; where two texts part, `ab` asked the target for its logits there.

# %%
for one in found.comparisons:
    assert one.equality.compared == one.num_pairs == 24
    assert one.equality.equal + sum(t.arm == one.arm.arm for t in log.divergences) >= 24
assert all(one.passed for one in log.divergences)
print(
    f"{sum(one.equality.equal for one in found.comparisons)} of "
    f"{24 * len(found.comparisons)} texts are equal, {len(log.divergences)} explained"
)

# %% [markdown]
# ## Why paired
#
# Two engines with the same drafter find some of the same prompts slow. How much alike they are is
# printed first; as far as they are, drawing both sides of a prompt together narrows the ratio.

# %%
units = by_load(log.units)["bundled", 1]
sides = [by_prompt(units[arm]) for arm in ("vLLM eagle3", "specjax eagle3")]
table = np.array(
    [[np.mean([tpot(one) for one in side[name]]) for name in sides[0]] for side in sides]
)
drawn = np.random.default_rng(0).integers(0, 24, (2, 4000, 24))
together = np.log(table[0][drawn[0]].sum(1) / table[1][drawn[0]].sum(1)).std()
apart = np.log(table[0][drawn[0]].sum(1) / table[1][drawn[1]].sum(1)).std()
print(f"the arms' times per token correlate by {np.corrcoef(table)[0, 1]:.2f} over prompts")
print(f"standard deviation of the log ratio: {together:.3f} paired, {apart:.3f} unpaired")
assert together < apart

# %% [markdown]
# ## Three puzzles
#
# 1. A blog reports: "2,000 samples with and without speculation, 24 distinct openings, about
#    equally frequent; TV = 0.06. Speculation changes the output by 6%." What do you answer?
# 2. How many draws would an audit need to see `accepts_at_equality`, a TV of about $2^{-23}$?
#    At a thousand texts per second, how many years?
# 3. A server passed the audit above ($n$ draws, one prompt). Its vendor writes "proved lossless".
#    What has been shown instead, and at which confidence?
#
# The answers are in the hidden cells below: each prints its solution and checks it. Think first.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 1. That two samples of one distribution differ by as much.""")
even = np.full((24, 2), 2000 / 24)
assert 0.06 < goodness.expected_variation(even) < 0.061

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 2. The 1/TV^2 of the formula: some 10^15 draws, tens of thousands of years.""")
draws = goodness.samples_to_detect_tv(CELLS, 2.0**-23, POWER, ALPHA)
assert 1e15 < draws < 2e15
assert 30_000 < draws / 1000 / (365 * 24 * 3600) < 60_000

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 3. Had its TV on these cells been 0.05 or more, it would have been caught with at
least 90%: so, at that confidence, TV < 0.05 after this prompt. Larger TVs are caught
more surely:""")
found = [goodness.samples_to_detect_tv(CELLS, tv, POWER, ALPHA) for tv in (0.05, 0.1, 0.2)]
assert found[0] > 3.9 * found[1] > 15 * found[2]

# %% [markdown]
# ## Summary
#
# Two samples of one distribution never look equal; the test knows by how much they may differ.
# Draws grow as $1/\mathrm{TV}^2$, several prompts need Holm, and greedy texts say nothing about
# temperature. An audit bounds an error, only enumeration of the code excludes one. Speed is a
# ratio over the same prompts, with an interval, after the texts are known to be equal.
#
# ## Further reading
#
# - Leviathan, Kalman & Matias 2023, *Fast Inference from Transformers via Speculative Decoding*
#   ([arXiv 2211.17192](https://arxiv.org/abs/2211.17192))
# - Chen et al. 2023, *Accelerating Large Language Model Decoding with Speculative Sampling* ([arXiv
#   2302.01318](https://arxiv.org/abs/2302.01318))
# - Gao et al. 2024, *Model Equality Testing: Which Model Is This API Serving?* ([arXiv
#   2410.20247](https://arxiv.org/abs/2410.20247)): a kernel test of whole texts

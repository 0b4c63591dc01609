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
# # 13 · Read your own server
#
# **You will** read vLLM's log of speculative decoding by hand and with `specjax explain`, and say
# what it proves and what not. **Before this**: 04 and 05. **Time**: 20 minutes.
#
# **Question.** A server prints "Mean acceptance length: 2.16" every ten seconds. Is speculation
# faster there? Should $K$ be larger? Which numbers are missing to answer?
#
# **Formula.** vLLM's *mean acceptance length* is $L = 1 + \text{accepted} / \text{drafts}$, the
# target's own token included; its *draft acceptance rate* is $r = \text{accepted} /
# \text{drafted}$. With $K$ tokens in every draft $L = 1 + K r$, and if each token is accepted
# with the same chance, $L = (1 - \alpha^{K+1}) / (1 - \alpha)$ ([Leviathan et al.
# 2023](https://arxiv.org/abs/2211.17192), Eq. 1). A round that costs $x$ plain steps makes the
# server $L / x$ times as fast. *The log has no $x$*: that needs a second log, without
# speculation.

# %%
# %matplotlib inline
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from specjax import theory
from specjax.readers.anything import read_log_file
from specjax.traces.advice import advise_server
from specjax.traces.causes import find_causes
from specjax.traces.gain import find_gain
from specjax.viz.palette import BLUE, GRID, SMALL, VERMILION

SHIPPED = Path(str(files("specjax.bundled") / "vllm_server.log"))
LOG = SHIPPED  # or your own: Path("/var/log/vllm.log")
OURS = LOG == SHIPPED  # of your own log no particular number is asserted

# %% [markdown]
# ## The log
#
# A real vLLM with the bundled target and a draft model, $K = 3$, as it was printed. Put a path to
# your own log of vLLM or vllm-ascend in `LOG` and run all cells again. (`specjax explain --log`
# reads SGLang's too; it has no rates per position.)

# %%
text = LOG.read_text()
lines = [line for line in text.splitlines() if "SpecDecoding metrics" in line]
print(lines[0].split("] ")[-1])
print(f"... and {len(lines) - 1} more like it")

# %% [markdown]
# ## By hand
#
# Each line is a window of some ten seconds. Means of the lines would weigh a quiet window like a
# busy one, so we add the *counts* and divide once.


# %%
def numbers(name):
    """Return the number after a name, of every line."""
    return np.array([float(re.search(rf"{name}: ([\d.]+)", line)[1]) for line in lines])


accepted, drafted = numbers("Accepted").sum(), numbers("Drafted").sum()
K = len(re.search(r"rate: ([\d., ]+), Avg", lines[0])[1].split(","))
length, rate = 1 + K * accepted / drafted, accepted / drafted
alpha = float(theory.alpha_from_length(length, K))
print(f"K = {K}: {accepted:,.0f} of {drafted:,.0f} drafted tokens accepted, {rate:.1%}")
print(f"{length:.2f} tokens per draft; one alpha would be {alpha:.2f}")
print(f"mean of the lines' lengths {numbers('Mean acceptance length').mean():.2f}: not the same")
by_line = 1 + K * numbers("Accepted") / numbers("Drafted")
same = np.allclose(numbers("Mean acceptance length"), by_line, atol=0.006)  # two digits are printed
assert same or not OURS
print(
    "as if every draft had K tokens" if same else "some drafts were shorter than K: see the tool's"
)
assert np.isclose(theory.tokens_per_step(alpha, K), length)

# %% [markdown]
# ## With the tool
#
# `specjax explain --log FILE` prints what follows as tables. The same in Python: what was read,
# what is known of the speedup, what causes it, and the advice. Where something is not known it
# says why.

# %%
seen = read_log_file(str(LOG))
assert seen.mean_acceptance_length is not None
assert seen.acceptance_per_position is not None
print(
    f"{seen.engine}: {seen.num_drafts:,.0f} drafts, {seen.mean_acceptance_length:.2f} tokens each"
)
assert np.isclose(seen.acceptance_rate, rate, atol=0.001)
assert np.isclose(seen.mean_acceptance_length, length, atol=0.005) or not same
length = seen.mean_acceptance_length
alpha = float(theory.alpha_from_length(length, K))

gain = find_gain(seen, None)
for cause in find_causes(seen, gain, None, None):
    value = "unknown" if cause.value is None else f"{float(cause.value.estimate):.3g} {cause.unit}"
    print(f"- {cause.name}: {value}. {cause.says}")
advice = advise_server(seen, gain, None)
print(*advice.says, sep="\n")
assert advice.schedule is None  # nothing in this log says what a round costs

# %% [markdown]
# ## Where drafts end
#
# The log's per-position rates are *marginal*: position 3 counts only if 1 and 2 were accepted.
# What a longer draft would bring depends on the *conditional* rates, each divided by the one
# before. Level conditional rates are one alpha, and the formula may be extended to larger $K$;
# falling ones are a draft that loses its way, rising ones a mixture of easy and hard text: in both
# it may not. Compare any $K$ up to the one in use by $(1 + \text{its first } K \text{ marginal
# rates, added}) / (Kc + v)$, and measure a larger one.

# %%
marginal = np.array(seen.acceptance_per_position)
conditional = marginal / np.concatenate([[1.0], marginal[:-1]])
print("marginal    " + " ".join(f"{one:.3f}" for one in marginal))
print("conditional " + " ".join(f"{one:.3f}" for one in conditional))
place = np.arange(1, K + 1)
figure = Figure(figsize=(7.2, 3.8), dpi=150, layout="constrained")
ax = figure.add_subplot()
ax.bar(place, marginal, 0.5, color=BLUE, label="accepted at i / drafts (what vLLM prints)")
ax.plot(place, conditional, "s--", color=VERMILION, label="accepted at i / accepted at i - 1")
ax.plot(place, alpha**place, "ko", markersize=4, label=f"one alpha of {alpha:.2f}: alpha^i")
ax.set_xticks(place)
ax.set_ylim(0, 1)
ax.set_xlabel("draft position", fontsize=SMALL)
ax.set_ylabel("share (ratio)", fontsize=SMALL)
flat = conditional.max() - conditional.min() < 0.1
title = "The printed rates fall by two fifths per position; the chance hardly changes"
if not OURS:
    title = f"The chance {'hardly changes' if flat else 'is not one'} from position to position"
ax.set_title(title, loc="left", fontsize=11)
ax.grid(axis="y", color=GRID, linewidth=0.6)
ax.set_axisbelow(True)
ax.legend(frameon=False, fontsize=SMALL)
assert np.isclose(1 + marginal.sum(), seen.mean_acceptance_length, atol=0.01)
assert (np.diff(marginal) <= 0).all()
assert flat or not OURS
ax.get_figure()

# %% [markdown]
# ## What a round may cost
#
# The log cannot say whether speculation pays, but it says how much a round *may* cost: less than
# $L$ plain steps. And if each draft step costs $c$ plain steps and verifying as much as one
# token, which $K$ is best?

# %%
print(f"   c   best K   speedup there   speedup at K = {K}")
for c in (0.02, 0.1, 0.3, 0.5):
    best = int(theory.optimal_k(alpha, c))
    here, there = theory.speedup(alpha, K, c), theory.speedup(alpha, best, c)
    print(f"{c:4} {best:8} {there:15.2f} {here:18.2f}")
    assert there >= here
assert not OURS or theory.speedup(alpha, K, 0.5) < 1 < theory.speedup(alpha, K, 0.1)

# %% [markdown]
# ## Three puzzles
#
# 1. A colleague reports "acceptance 38%, so alpha = 0.38". What is wrong, and by how much does
#    the speedup at $c = 0.1$ change?
# 2. The first line says 2.34 tokens, the third 2.05. Drafts taken as independent, how many
#    standard errors apart are they? Why is that not yet proof of a change?
# 3. Somebody puts together the draft model's $L = 2.16$ and the log's "Avg generation throughput"
#    and concludes that without drafts the server would write $1 / 2.16$ as many tokens. What was
#    forgotten?
#
# The answers are in the hidden cells below: each prints its solution and checks it. Think first.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 1. 38% is accepted / drafted, which counts the tokens behind a rejection as
refused. alpha is the chance of a token whose predecessors were accepted.""")
wrong, right = theory.speedup(rate, K, 0.1), theory.speedup(alpha, K, 0.1)
print(f"alpha is {alpha:.2f}: a speedup of {right:.2f}, not {wrong:.2f}")
assert right > 1.2 * wrong or not OURS

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 2. Each draft's length has a known variance. But drafts of one request are alike,
and a window of ten seconds holds few requests: the true standard error is larger
(notebook 05).""")
drafts = numbers("Drafted")[[0, -1 if len(lines) < 3 else 2]] / K
lengths = numbers("Mean acceptance length")[[0, -1 if len(lines) < 3 else 2]]
error = np.sqrt((theory.step_length_var(alpha, K) / drafts).sum())
print(f"{(lengths[0] - lengths[1]) / error:.1f} standard errors, if drafts were independent")
assert 2 < (lengths[0] - lengths[1]) / error < 4 or not OURS

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 3. The cost of a round. A round that costs x plain steps brings 2.16 tokens, so
plain decoding writes x / 2.16 as many: more than half if drafting costs a fifth of a
step each.""")
x = 1 + K * 0.2
print(f"with c = 0.2, x = {x:.1f}: {x / length:.0%} as many, not {1 / length:.0%}")
assert x / length > 0.7 or not OURS

# %% [markdown]
# ## Summary
#
# Add counts, not rates. Marginal rates fall by themselves; look at conditional ones. A log of
# speculation says how much a round may cost, never what it does cost: run the same load once
# without (`specjax explain --log spec.log --baseline plain.log`), or A/B (`specjax ab run`).
#
# ## Further reading
#
# - Leviathan, Kalman & Matias 2023, *Fast Inference from Transformers via Speculative Decoding*
#   ([arXiv 2211.17192](https://arxiv.org/abs/2211.17192))
# - vLLM, [metrics](https://docs.vllm.ai/en/latest/design/metrics.html)
# - vLLM, [acceptance metrics of each
#   request](https://docs.vllm.ai/en/stable/features/speculative_decoding/acceptance_metrics/)

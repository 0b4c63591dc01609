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
# # 01 · Why decoding is memory-bound
#
# **You will** read a roofline, say when more tokens per pass are free, and measure it on your
# machine. **Before this**: Python; what a matrix product is. **Time**: 25 minutes.
#
# **Question.** An accelerator that can do a thousand million million operations per second
# writes the text of a 32B model at some seventy tokens per second. What does it do all the time,
# and why can it check five tokens in the time of one?
#
# **Formula.** A forward pass over $B$ rows of $n$ tokens each has to *read* every weight once,
# whatever $B$ and $n$ are, and the keys and values of each row's context. And it has to
# *multiply* every weight with every token. Reading and multiplying overlap, so the slower one
# counts ([Williams, Waterman & Patterson 2009](https://doi.org/10.1145/1498765.1498785), the
# *roofline*; what verifying pays in arithmetic: [Leviathan, Kalman & Matias
# 2023](https://arxiv.org/abs/2211.17192), sec. 3.4):
#
# $$ t(B, n) = \max\left(\frac{N b + B\,\mathrm{ctx}\cdot\mathrm{kv}}{\mathrm{BW}},\;
#    \frac{(2 N + \mathrm{ctx}\cdot a)\,B n}{F}\right) $$
#
# with $N$ parameters of $b$ bytes, $\mathrm{kv}$ bytes of cache and $a$ operations of attention per
# token of context, bandwidth $\mathrm{BW}$ in bytes/s and compute $F$ in FLOP/s. For short contexts
# attention's operations are a footnote; at 8,192 tokens they are a quarter more
# (Austin et al. 2025, [How to scale your model](https://jax-ml.github.io/scaling-book/)).
# The two are equal at the **knee**,
# for short contexts at
#
# $$ B\,n = \frac{b F}{2\,\mathrm{BW}} \text{ tokens.} $$
#
# Left of the knee more tokens are free. That is the room in which speculative decoding lives.

# %%
# %matplotlib inline
import json
import math
import time
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from specjax import LLM, theory
from specjax.bundled import recording
from specjax.core.metrics import SpecDecodeCounters
from specjax.core.topology import causal
from specjax.viz.block_cost import block_cost
from specjax.viz.palette import BLACK, BLUE, GRID, PALE, SMALL, VERMILION
from specjax.viz.sliders import sliders

# %% [markdown]
# ## One token, with pencil and paper
#
# Qwen3-32B on one H200. The peak numbers are those of the data sheet: assumptions, real
# programs reach less of both. Everything in this cell follows from four integers.

# %%
N, BYTES = 32_800_000_000, 2  # parameters; bf16
BW, F = 4_800_000_000_000, 989_000_000_000_000  # bytes/s, FLOP/s

reading = Fraction(N * BYTES, BW)  # s
multiplying = Fraction(2 * N, F)  # s: a multiplication and an addition per weight
knee = reading / multiplying  # tokens

print(f"read every weight    {float(1e3 * reading):8.3f} ms")
print(f"multiply one token   {float(1e3 * multiplying):8.3f} ms")
print(f"at most              {float(1 / reading):8.1f} tokens/s")
print(f"compute in use       {float(multiplying / reading):8.2%}")
print(f"knee                 {float(knee):8.1f} tokens per pass")
assert reading == Fraction(41, 3000)  # 13.667 ms
assert round(1e3 * float(multiplying), 3) == 0.066
assert knee == Fraction(BYTES * F, 2 * BW) == Fraction(989 * 5, 24)  # 206.04
assert round(1 / reading) == 73
assert multiplying / reading == 1 / knee < Fraction(1, 200)

H200, MODEL = theory.H200, theory.QWEN3_32B
assert (MODEL.num_params, MODEL.bytes_per_param, H200.bandwidth, H200.flops) == (N, BYTES, BW, F)
for n in (1, 5, 206, 207, 1000):
    exact = max(reading, n * multiplying)
    assert np.isclose(theory.decode_time_roofline(1, n, 0, MODEL, H200), float(exact), rtol=1e-14)

# %% [markdown]
# The chip multiplies for half a percent of the time and waits for weights otherwise. Each weight
# takes two bytes to fetch and is good for two operations per token, so a pass over $n$ tokens
# does $n$ operations per byte; the hardware could do 206. A faster chip with the same memory
# would not write any faster.
#
# ## Ask the compiler
#
# That each pass costs $2 N n$ operations but reads the weights only once is easily said. JAX's
# compiler counts both for the program it made; so we ask it about the 13M-parameter model that
# ships with specjax (in float32, so $b = 4$). It counts only what it compiles itself, so we ask for
# the plain form of every product, which `vmap` gives; on a CPU specjax runs kernels of its own, and
# they read the weights as the checkpoint stores them, in bfloat16: half the bytes.

# %%
llm = LLM("bundled", max_model_len=64)
target = llm.core.engine.target
weights = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), llm.core.params.target)
num_params = sum(leaf.size for leaf in jax.tree.leaves(weights))


def pass_over(weights, tokens, cache):
    """Read n tokens [1, n] of one row after an empty context; return their logits."""
    n = tokens.shape[1]
    output, _ = target.forward(weights, tokens, jnp.arange(n)[None], causal(n), cache, 64)
    return target.logits(weights, output.hidden)


print("  n   operations / 2 N n   bytes / 4 N   operations per byte")
intensity = {}
for n in (1, 4, 16):
    row = (jnp.zeros((1, n), jnp.int32), target.init_cache(1, 64))
    row = jax.tree.map(lambda leaf: leaf[None], row)
    plain = jax.jit(jax.vmap(pass_over, in_axes=(None, 0, 0)))
    counted = plain.lower(weights, *row).compile().cost_analysis()
    operations, moved = counted["flops"], counted["bytes accessed"]
    intensity[n] = operations / moved
    ratios = operations / (2 * num_params * n), moved / (4 * num_params)
    print(f"{n:3} {ratios[0]:20.3f} {ratios[1]:13.3f} {intensity[n]:21.2f}")
    assert 1.0 <= ratios[0] < 1.06  # attention and norms are the rest
    assert 1.0 <= ratios[1] < 1.4  # activations and the cache are the rest
assert 0.45 < intensity[1] < 0.5  # two operations per four bytes
assert intensity[16] > 10 * intensity[1]

# %% [markdown]
# Sixteen tokens: sixteen times the operations, a third more bytes.
#
# ## Ask your own machine
#
# One 4096 x 4096 matrix in float32 is 67 MB: more than most processors cache. We multiply
# it with $n$ vectors and keep the best of several runs (others may be using this machine, and
# the slowest run says more about them). No number here can be known beforehand, so nothing is
# asserted of them.

# %%
SIZE, COUNTS = 4096, (1, 4, 16, 64, 256)
matrix = jax.random.normal(jax.random.key(0), (SIZE, SIZE), jnp.float32)
vectors = {n: jnp.ones((n, SIZE), jnp.float32) for n in COUNTS}
multiply = jax.jit(jnp.matmul)
best = dict.fromkeys(COUNTS, np.inf)
for _ in range(9):  # the first one compiles
    for n in COUNTS:
        start = time.perf_counter()
        multiply(vectors[n], matrix).block_until_ready()
        best[n] = min(best[n], time.perf_counter() - start)

print("  n        ms   t(n) / t(1)    GB/s   GFLOP/s")
for n, seconds in best.items():
    rates = 4e-9 * SIZE**2 / seconds, 2e-9 * SIZE**2 * n / seconds
    print(f"{n:3} {1e3 * seconds:9.2f} {seconds / best[1]:13.2f} {rates[0]:7.1f} {rates[1]:9.1f}")

# %% [markdown]
# Read the last two columns against each other: at $n = 1$ the machine is busy with bandwidth, at
# $n = 256$ with arithmetic, and between them is its knee. Your laptop has a roofline, too. Does
# the formula draw it? Take the time of reading from $n = 1$ and the time per product from
# $n = 256$; between them nothing is fitted.

# %%
counts = np.array(COUNTS)
measured = 1e3 * np.array([best[n] for n in COUNTS])  # ms
arithmetic = measured[-1] * counts / counts[-1]
figure = Figure(figsize=(7.2, 3.8), dpi=150, layout="constrained")
ax = figure.add_subplot()
overlapped, in_turn = np.maximum(measured[0], arithmetic), measured[0] + arithmetic
ax.fill_between(counts, overlapped, in_turn, color=PALE, alpha=0.5)
ax.plot(counts, overlapped, color=BLUE, label="roofline: reading and products overlap")
ax.plot(counts, in_turn, color=VERMILION, linestyle="--", label="one after the other")
ax.plot(counts, measured, "o", color=BLACK, markersize=7, label="measured here")
ax.set_xscale("log", base=2)
ax.set_yscale("log")
ax.set_xticks(counts, [str(n) for n in COUNTS])
ax.set_xlabel("n, vectors per product", fontsize=SMALL)
ax.set_ylabel("time (ms)", fontsize=SMALL)
ax.set_title("The flat part of a real roofline is not flat", fontsize=11, loc="left")
ax.legend(frameon=False, fontsize=SMALL)
ax.grid(color=GRID, linewidth=0.6)
misfit = measured / overlapped
print(
    "measured over roofline: "
    + ", ".join(f"n = {n}: {one:.2f}" for n, one in zip(COUNTS, misfit, strict=True))
)
assert misfit[0] == 1  # by construction, as is the last one where compute binds
ax.get_figure()

# %% [markdown]
# Where a dot lies above the blue line, the *flat part is not flat*: in one run on two cores four
# vectors took 1.97 times the time of one, where the roofline says 1. Three reasons, none of them in
# the formula. (i) On a CPU the same cores fetch and multiply, so the two overlap only in part: the
# shaded band is between full overlap and none. (ii) One vector and several run different programs:
# a matrix-vector product streams the matrix, a product of matrices first copies blocks of it into
# the order that its inner loop wants. (iii) $n = 4$ leaves most of a vector unit's lanes idle, so
# its rate is below that of $n = 256$. On a quiet machine the *shape* survives: below four times at
# $n = 4$, then proportional to $n$; if $t(4)/t(1)$ above exceeds 4, the machine was busy, or its
# small products are slow: run the cell again. Speculation must be planned with a measured $t(n)$,
# never with the peak numbers alone (`specjax bench costs` measures it).
#
# ## What verifying costs
#
# A plain step reads one token per row. Verifying $K$ drafted tokens makes it $n = K + 1$. The
# figure shows the price, $t(B, n) / t(B, 1)$. On the flat part it is 1: *verification is free*.
# The dots are the knees.

# %%
lines, axes = block_cost()
for line in lines:
    cost = line.cost
    assert cost[0] == 1
    assert (np.diff(cost) >= 0).all()  # a longer block never costs less
    assert (cost <= line.tokens * (1 + 1e-12)).all()  # nor more than n plain passes
    np.testing.assert_allclose(cost[line.tokens <= line.knee], 1)
knees = {(line.hardware, line.batch): line.knee for line in lines}
assert np.isclose(knees["NVIDIA H200", 1], float(knee))
assert np.isclose(knees["NVIDIA H200", 64], float(knee) / 64)  # 3.2: K = 2 is free, K = 3 is not
assert knees["Ascend 910B", 1] == 235
assert knees["NVIDIA H200", 256] < 1  # already past it with one token per row
axes[0].get_figure()

# %% [markdown]
# The room is shared by the batch. Alone, a row may verify 206 tokens for the price of one; with 64
# rows three; with 256 none. **Batching and speculation compete for the same idle arithmetic.**
# Notebook 09 follows that thread. (Real passes also have a fixed cost, to launch kernels and to
# sample. A block pays it once: the flat part is flatter than drawn, the knee rounder.)
#
# One thing gives room back. Weights are read once for all rows, but every row has its *own*
# context to read, so a long context makes plain passes slower and verification no dearer. Past
# a certain length no batch reaches the compute roof, however large:

# %%
kv = theory.kv_bytes_per_token(num_layers=64, num_kv_heads=8, head_dim=128)  # bytes
ATTENTION = 4 * 64 * 64 * 128  # operations per token and token of context: 64 layers of 64 heads
assert MODEL.context_flops == ATTENTION
print(f"cache            {kv:,.0f} bytes per token of context")
print(f"as much as the weights: {N * BYTES / kv:,.0f} tokens, all rows together")
assert kv == 2 * 64 * 8 * 128 * 2 == 2**18
assert round(N * BYTES / kv) == 250_244

print("context   batch from which a plain pass is compute-bound")
for ctx in (0, 512, 1024, 2048):
    row = Fraction(2 * N + ctx * ATTENTION, F)  # s of one more row's operations
    room = row - Fraction(ctx * 2**18, BW)  # less those of reading its cache: negative is never
    exact = float(reading / room) if room > 0 else np.inf
    batch = theory.critical_batch(1, ctx, MODEL, H200)
    print(f"{ctx:7} {batch:10.1f}")
    assert np.isclose(batch, exact)
endless = Fraction(
    2 * N * BW, F * 2**18 - ATTENTION * BW
)  # where a row's cache takes as long as its arithmetic
print(f"from a context of {math.ceil(endless):,} tokens on: never")
assert math.ceil(endless) == 1264  # 1,215 without attention's operations
assert np.isfinite(theory.critical_batch(1, 1263, MODEL, H200))
assert np.isinf(theory.critical_batch(1, 1264, MODEL, H200))

# %% [markdown]
# With `ipywidgets` installed you can drag the batch and the context; without, here is one
# picture: 64 rows, whose knee eight thousand tokens of context move from 3.2 to 7.9 tokens. The
# weights and these caches are 203 GB and need two H200; two read and compute twice as fast, so
# the ratio is the same. The legend counts the devices.


# %%
def show(batch=64, ctx=8192):
    """Draw one batch beside a lone row."""
    return block_cost(batches=sorted({1, batch}), ctx=ctx)[1][0].get_figure()


moved = {one.batch: one.knee for one in block_cost(hardware=(H200,), batches=(1, 64), ctx=8192)[0]}
assert round(moved[64], 1) == 7.9
assert moved[64] / knees["NVIDIA H200", 64] > 2.4 > 1 > moved[1] / knees["NVIDIA H200", 1]
assert theory.devices_needed(64, 8192, MODEL, H200) == 2
sliders(show, batch=(1, 256), ctx=(0, 16384, 512))

# %% [markdown]
# ## Three puzzles
#
# 1. Weights are quantised to four bits, products stay in bf16. Plain decoding becomes four times
#    as fast. What happens to the room for speculation?
# 2. H200, 64 rows, short contexts, free drafts accepted with $\alpha = 0.8$. With $n = K + 1$
#    tokens per row, which $K$ is best: the last free one, or a larger one that costs?
# 3. At 2,048 tokens of context a plain pass never becomes compute-bound. Do passes that verify
#    $K = 3$ tokens?
#
# The answers are in the hidden cells below: each prints its solution and checks it. Think first.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 1. The knee is b F / (2 BW): it shrinks to a quarter as well. What made plain
decoding faster took it from speculation.""")
quantised = MODEL._replace(bytes_per_param=0.5)
plain = [theory.decode_time_roofline(1, 1, 0, one, H200) for one in (MODEL, quantised)]
assert np.isclose(plain[0] / plain[1], 4)
room = [theory.critical_batch(1, 0, one, H200) for one in (MODEL, quantised)]
assert np.isclose(room[0] / room[1], 4)
assert round(room[1]) == 52

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 2. K = 2 is free, and best: from the knee on, the cost grows like K + 1 but the
tokens like 1 - alpha^(K+1). It is no longer so at a knee of 3.9, where K = 3 costs
little.""")
gains = theory.speedup_vs_batch(64, 0.8, np.arange(9), 0, MODEL, H200)
assert gains.argmax() == 2
assert np.isclose(gains[2], 1 + 0.8 + 0.64)
assert np.isclose(gains[3], (1 + 0.8 + 0.64 + 0.512) * float(knee) / 64 / 4)  # 2.38
assert theory.speedup_vs_batch(53, 0.8, np.arange(9), 0, MODEL, H200).argmax() == 3

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 3. Yes: four tokens per row compute four times as much on the same context. The
limit of the context moves up, to more than four times 1,264 tokens since attention
computes n times as much too, and so 2,048 is below it.""")
few = theory.critical_batch(4, 2048, MODEL, H200)
print(f"compute-bound from {few:.1f} rows on")
assert np.isfinite(few)
limit = Fraction(4 * 2 * N * BW, F * 2**18 - 4 * ATTENTION * BW)
assert limit > 4 * 1264
assert np.isinf(theory.critical_batch(4, math.ceil(limit), MODEL, H200))
assert np.isfinite(theory.critical_batch(4, math.floor(limit), MODEL, H200))

# %% [markdown]
# ## Check it on vLLM
#
# The repository keeps what a real vLLM 0.32.0 answered to a hundred prompts, greedy, 64 tokens
# each, without speculation and with the bundled draft model at $K = 3$. Had each request run
# alone, how often would the target's weights have been read, and how many tokens multiplied? The
# first token of each request comes with its prompt; it is left out of both.
# (`make oracle-record` asks vLLM again: it installs it beside this environment, 3.5 GB.)

# %%
plain, spec = (
    json.loads(recording(f"text_{name}.json").read_text())["answer"]
    for name in ("plain", "draft_model")
)
texts = [[one["token_ids"] for one in answer["outputs"]] for answer in (plain, spec)]
num_same = sum(a == b for a, b in zip(*texts, strict=True))
assert num_same >= 99  # of 100; a near tie may round the other way

K = 3
num_tokens = sum(len(text) - 1 for text in texts[0])
metrics = [one["metrics"] for one in spec["outputs"]]
counters = SpecDecodeCounters.zeros(K)
for one in metrics:
    counters = counters.add(one["per_step_drafted"], one["per_step_accepted"])
num_rounds = counters.num_drafts
num_computed = counters.num_drafts + counters.num_draft_tokens
print(f"{num_same} of {len(metrics)} texts are the same, {num_tokens:,} tokens")
print(f"weights read      {num_tokens:6,} -> {num_rounds:6,}   / {num_tokens / num_rounds:.2f}")
print(f"tokens multiplied {num_tokens:6,} -> {num_computed:6,}   x {num_computed / num_tokens:.2f}")
assert num_rounds == spec["counters"]["vllm:spec_decode_num_drafts"]
assert num_computed == (K + 1) * num_rounds  # a draft model always drafts K
emitted = num_rounds + counters.num_accepted_tokens
assert 0 <= emitted - num_tokens <= K * len(metrics)  # the last round of a request is cut
assert 1 < num_tokens / num_rounds <= counters.mean_acceptance_length
assert num_computed > num_tokens

# %% [markdown]
# That is the whole trade: fewer readings of the weights, paid with more arithmetic. It is a
# bargain left of the knee and a loss far right of it.
#
# ## Summary
#
# A pass reads every weight once, whatever it verifies, and multiplies in proportion to its
# tokens. Left of the knee, $B n = bF / (2\,\mathrm{BW})$, more tokens per row are free; that room
# is shared by the batch and widened by long contexts. Speculation buys fewer readings with more
# arithmetic. Plan it with a measured $t(n)$: the flat part is never quite flat.
#
# ## Further reading
#
# - Williams, Waterman & Patterson 2009, [*Roofline*](https://doi.org/10.1145/1498765.1498785)
# - Austin et al. 2025, [*How to Scale Your Model*](https://jax-ml.github.io/scaling-book/),
#   chapters 1 and 7
# - Leviathan, Kalman & Matias 2023, *Fast Inference from Transformers via Speculative Decoding*
#   ([arXiv 2211.17192](https://arxiv.org/abs/2211.17192))

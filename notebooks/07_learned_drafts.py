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
# # 07 · Learned drafts: draft model, Medusa, MLP, EAGLE, EAGLE-3, MTP, DFlash
#
# **You will** say what each kind of head is told, what it costs, and compare the shipped ones
# with intervals. **Before this**: 02 and 03. **Time**: 40 minutes.
#
# **Question.** The target has read the whole text; its last hidden state $h_n$ knows more than the
# one token it emits. Six kinds of heads draft from it, each far smaller than a draft model that
# has to read the text by itself. Which of them still knows what it is saying at position 3?
#
# | method | is given | and at the next position |
# |---|---|---|
# | draft model | the text | its own token, read by all its layers |
# | Medusa | $h_n$ | $h_n$ again: another head, and nobody told it the token before |
# | MLP speculator | $h_n$ | its state and the token it said |
# | EAGLE | pairs $(h_i, x_{i+1})$ of the whole text | its own feature and the token it said |
# | EAGLE-3 | the same, with three layers in place of $h$ | likewise |
# | MTP | the same; a whole layer, trained with the target | likewise: the block is used again |
# | DFlash | four layers at every place of the text | a mask: all places are filled in one pass |
#
# **Formula.** A token drawn from $q$ is accepted by a target with the distribution $p$ with
# probability $\alpha = \sum_v \min(p(v), q(v)) = 1 - TV(p, q)$
# ([Leviathan et al. 2023](https://arxiv.org/abs/2211.17192); notebook 03). At position 2 the
# target's distribution depends on the token $x$ accepted at position 1. A head that was told $x$
# may follow; one that was not has one $q$ for all of them, and the best it can do is
#
# $$\alpha_2 = \max_q \; \mathbb{E}_x \sum_v \min(p(v \mid x), q(v)).$$

# %%
# %matplotlib inline
import argparse
import functools
import inspect
import ipaddress
import json
import tarfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from specjax import LLM, SamplingParams, bundled, theory
from specjax.bench.prompts import distinct_bigrams
from specjax.bundled import recording
from specjax.models.build import build_feature_head, build_target
from specjax.train.features import SourceConfig, extract
from specjax.train.head_options import HeadTrainConfig, head_config
from specjax.train.heads import first_weights, loss_of
from specjax.train.losses import overlap
from specjax.train.unrolled import build_unrolled
from specjax.viz.palette import BLACK, DASHES, GRID, LINES, MARKS, QUIET, SMALL
from specjax.weights.head_configs import read_head_config
from specjax.weights.heads import assemble, read_head, rows_of
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params

# %% [markdown]
# ## What a head that was not told cannot know
#
# The smallest language in which it matters: three words, each followed by its own second half.
# Whoever hears the first half is certain of the second. We let gradient ascent find the best
# single $q$. It should put everything on the half of the likeliest word, and be right as often as
# that word is said.

# %%
words = jnp.array([0.5, 0.3, 0.2])  # p(x); the second half of word x is token x
told = jnp.eye(3)  # p(v | x)


def accepted(scores):
    """Return the expected acceptance at position 2 of one distribution for all words."""
    return (words * jnp.minimum(told, jax.nn.softmax(scores)[None]).sum(axis=1)).sum()


ascend = jax.jit(lambda scores: scores + 20 * jax.grad(accepted)(scores))
scores = jnp.zeros(3)
for _ in range(300):
    scores = ascend(scores)
print(f"best single one {np.round(jax.nn.softmax(scores), 2)}: accepted {accepted(scores):.3f}")
print(f"told the first half: accepted {(words * jnp.minimum(told, told).sum(axis=1)).sum():.3f}")
assert np.isclose(accepted(scores), words.max(), atol=0.01)
assert np.isclose(accepted(jnp.zeros(3)), 1 / 3)  # knowing nothing

# %% [markdown]
# ## Seven drafts for the same place
#
# One head of each kind ships with specjax, trained for the bundled target. Five of them a real
# vLLM 0.32.0 has drafted with: a hundred prompts, greedy, 64 tokens, $K = 3$, and it noted every
# draft. For the MLP speculator and the MTP layer vLLM has no class for this target, so these two
# run here, on the same prompts. A small model soon repeats itself, and a loop flatters every
# drafter: only texts in which at least half of the neighbouring pairs are distinct are kept.

# %%
K = 3
asked = json.loads(recording("prompts.json").read_text())
tables, drafts, texts = {}, {}, {}
for name in ("draft_model", "medusa", "eagle", "eagle3", "dflash"):
    answer = json.loads(recording(f"text_{name}.json").read_text())["answer"]
    texts = texts or {i: one["token_ids"] for i, one in enumerate(answer["outputs"])}
    metrics = [one["metrics"] for one in answer["outputs"]]
    tables[name] = [(one["per_step_drafted"], one["per_step_accepted"]) for one in metrics]
    drafts[name] = [dict(one) for one in answer["rounds"]]  # {tokens committed: draft}
kept = [i for i, text in texts.items() if distinct_bigrams(text) >= 0.5]
tables, drafts = (
    {name: [rows[i] for i in kept] for name, rows in one.items()} for one in (tables, drafts)
)
greedy = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
for name in ("mlp_speculator", "mtp"):
    config = {"method": name, "model": f"bundled:{name}", "num_speculative_tokens": K}
    llm = LLM("bundled", speculative_config=config, max_num_seqs=len(kept), max_model_len=512)
    found = llm.generate([asked[i] for i in kept], greedy, use_tqdm=False)
    metrics = [one.outputs[0].spec_decode_metrics for one in found]
    tables[name] = [(one.per_step_drafted, one.per_step_accepted) for one in metrics]
    drafts[name] = [dict(one.outputs[0].drafts) for one in found]
    same = [list(one.outputs[0].token_ids) == texts[i] for one, i in zip(found, kept, strict=True)]
    assert sum(same) >= len(kept) - 1  # whoever drafts, the text is the target's; a near tie apart
COLOURS, MARKERS = (*LINES, BLACK), (*MARKS, "X")
ORDER = ("medusa", "mlp_speculator", "draft_model", "dflash", "eagle", "eagle3", "mtp")
print(f"{len(kept)} of {len(texts)} texts are kept")

# %% [markdown]
# One place of one text, where all seven happened to draft: what each proposed, and how much of it
# the target said too.

# %%
tokenizer = llm.get_tokenizer()
prompt_lengths = [len(one.prompt_token_ids) for one in found]


def right(at, draft, row):
    """Count the drafted tokens that are the text's, up to the first that is not."""
    said = texts[kept[row]][at - prompt_lengths[row] :][: len(draft)]
    return int(np.cumprod([a == b for a, b in zip(draft, said, strict=False)]).sum())


def spread(place):
    """Return how much the seven differ at a place: the sum of distances to their median."""
    row, at = place
    counts = [right(at, drafts[name][row][at], row) for name in ORDER]
    return np.abs(np.array(counts) - np.median(counts)).sum()


common = [
    (row, at)
    for row in range(len(kept))
    for at in set.intersection(*(set(drafts[name][row]) for name in ORDER))
    if at + K <= prompt_lengths[row] + 64
]
row, at = max(sorted(common), key=spread)
before = texts[kept[row]][: at - prompt_lengths[row]]
print("...", repr(tokenizer.decode(before[-12:])), "| then the target says:",
      repr(tokenizer.decode(texts[kept[row]][at - prompt_lengths[row] :][:4])))  # fmt: skip
for name in ORDER:
    draft = drafts[name][row][at]
    good = right(at, draft, row)
    pieces = [repr(tokenizer.decode([token])) for token in draft]
    print(f"{name:15} {good} of {K} right: {' '.join(pieces[:good])} | {' '.join(pieces[good:])}")

# %% [markdown]
# And on average? At position $i$ only drafts that were right up to there are asked. The intervals
# take whole texts as units (notebook 05): drafts of one text are alike.


# %%
def by_position(rows):
    """Return the conditional acceptance at each position, clustered by text: K intervals."""
    steps = [(d, a, i) for i, both in enumerate(rows) for d, a in zip(*both, strict=True)]
    _, kept_tokens, text = np.array([one for one in steps if one[0] == K]).T
    found = []
    for place in range(1, K + 1):
        judged = kept_tokens >= place - 1
        said = (kept_tokens >= place)[judged].astype(float)
        found.append(theory.acceptance_ci_clustered(np.ones(judged.sum()), said, text[judged]))
    return found, 1 + kept_tokens.mean()


figure = Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained")
ax = figure.add_subplot()
positions, lengths = {}, {}
for number, name in enumerate(ORDER):
    found_at, lengths[name] = by_position(tables[name])
    positions[name] = [float(one.estimate) for one in found_at]
    x = number + np.array([-0.22, 0, 0.22])
    errors = [[e.estimate - e.low for e in found_at], [e.high - e.estimate for e in found_at]]
    ax.errorbar(x, positions[name], yerr=errors, color=COLOURS[number], marker=MARKERS[number],
                markersize=5, capsize=2.5, linewidth=1.1)  # fmt: skip
    print(f"{name:15} {lengths[name]:.2f} tokens per round; position 1, 2, 3:",
          ", ".join(f"{e.estimate:.2f} [{e.low:.2f}, {e.high:.2f}]" for e in found_at))  # fmt: skip
ax.set_xticks(range(len(ORDER)), [name.replace("_", "\n") for name in ORDER])
ax.set(ylim=(0, 1.02), xlim=(-0.5, len(ORDER) - 0.5))
ax.set_xlabel("drafter; its positions 1, 2, 3 from left to right", fontsize=SMALL)
ax.set_ylabel("accepted, if all before was (95%)", fontsize=SMALL)
ax.set_title("Who was not told its own words forgets from place to place", fontsize=11, loc="left")
ax.tick_params(labelsize=SMALL)
ax.grid(axis="y", color=GRID, linewidth=0.6)
ax.spines[["top", "right"]].set_visible(False)
lost = {name: one[0] - one[-1] for name, one in positions.items()}
at_once = ("medusa", "dflash")  # they draft all places in one go
assert all(positions[name][1] < positions[name][0] - 0.1 for name in at_once)
assert all(lost[name] < 0.1 for name in ORDER if name not in at_once)
assert lengths["medusa"] < lengths["draft_model"] < lengths["mtp"]
ax.get_figure()

# %% [markdown]
# Medusa and DFlash draft all places at once, and neither is told what it said before: from the
# first to the second both lose more than a tenth (Medusa reaches the third too seldom to say
# more). All five that read their own words keep their level. The heads were trained alike, 6,000
# steps on the same 2.5 million tokens (`specjax/bundled/README.md`), so that this compares what
# methods learn from the same text; only the draft model had a training of its own.
#
# ## Where each head looks
#
# EAGLE, EAGLE-3 and MTP attend to pairs of the whole text; Medusa and the MLP speculator get one
# hidden state, which has read it all. How much of the text do the first three look at? We let
# each see only its last $w$ pairs, on windows of a module that no head was trained on, which
# the target goes on with by itself. And EAGLE-3 reads three layers of the target: each in turn is
# replaced by its mean.

# %%
BATCH, CONTEXT, LAYERS = 8, 96, (2, 4, 5, 8)
folder = bundled.resolve("bundled")
facts, _ = read_config(folder, dtype="float32")
params, target = load_params(folder, facts), build_target(facts, LAYERS)
source = SourceConfig(batch=BATCH, context=CONTEXT, own=32, temperature=0.5, layers=LAYERS)
show = jax.jit(functools.partial(extract, target, config=source))


def batches_of(modules, number):
    """Return batches of the target's states: windows of modules, continued by the target."""
    ids = np.array(tokenizer.encode("".join(inspect.getsource(one) for one in modules)))
    windows = ids[: len(ids) // (CONTEXT + 1) * (CONTEXT + 1)].reshape(-1, CONTEXT + 1)
    order = np.random.default_rng(0).permutation(len(windows))[: number * BATCH]
    keys = jax.random.split(jax.random.key(0), number)
    each = windows[order].reshape(number, BATCH, -1)
    return [show(params, jnp.asarray(one, jnp.int32), key) for one, key in zip(each, keys)]  # noqa: B905


held_out = jax.tree.map(lambda *x: jnp.concatenate(x), *batches_of([ipaddress], 4))
known = target.logits(params, held_out.hidden_states[:, 1:].astype(jnp.float32))
FROM = 48  # judged places have at least so many before them


def shipped(name):
    """Return a shipped head's functions and weights."""
    config = read_head_config(bundled.resolve(f"bundled:{name}"), name, facts)
    own, kept = read_head(bundled.resolve(f"bundled:{name}"), name, config, params)
    vocab_rows = None if kept is None else rows_of(kept, facts.vocab_size)
    return config, own, assemble(config, own, params, vocab_rows)


def acceptance_seeing(head, index):
    """Return a compiled function of weights, layers and how many pairs the head may see."""

    @jax.jit
    def run(weights, held_out, known, taps, back):
        hidden = held_out.hidden_states.astype(jnp.float32)
        features = head.fuse(weights, hidden, taps[:, :, jnp.asarray(index, jnp.int32)])[:, :-1]
        rows, pairs, _ = features.shape
        apart = jnp.arange(pairs)[:, None] - jnp.arange(pairs)[None]
        visible = ((apart >= 0) & (apart < back))[None]
        places = jnp.broadcast_to(jnp.arange(pairs)[None], (rows, pairs))
        after, _ = head.forward(weights, held_out.token_ids[:, 1:-1], features, places, visible,
                                head.init_cache(rows, pairs), pairs)  # fmt: skip
        return overlap(head.logits(weights, after), known)[:, FROM:].mean(axis=1)  # per window

    return run


def interval(per_window):
    """Return mean and 95% bootstrap interval, windows drawn with replacement."""
    values = np.asarray(per_window)
    drawn = np.random.default_rng(0).integers(0, len(values), (2000, len(values)))
    return values.mean(), *np.quantile(values[drawn].mean(axis=1), [0.025, 0.975])


WIDTHS = (1, 2, 4, 8, 16, 32, 48)
taps = held_out.taps.astype(jnp.float32)
seeing, without = {}, {}
for name in ("eagle", "eagle3", "mtp"):
    config, _, weights = shipped(name)
    run = acceptance_seeing(build_feature_head(config), [LAYERS.index(x) for x in config.taps])
    seeing[name] = np.array(
        [interval(run(weights, held_out, known, taps, back)) for back in WIDTHS]
    )
    print(f"{name:7}", ", ".join(f"{w}: {one[0]:.2f}" for w, one in zip(WIDTHS, seeing[name])))  # noqa: B905
    if name == "eagle3":
        for i, layer in enumerate(LAYERS[:3]):
            blurred = taps.at[:, :, i].set(taps[:, :, i].mean(axis=(0, 1)))
            without[layer] = interval(run(weights, held_out, known, blurred, 10**6))
        whole = interval(run(weights, held_out, known, taps, 10**6))
print("eagle3 with a layer replaced by its mean:",
      ", ".join(f"{layer}: {one[0]:.2f}" for layer, one in without.items()))  # fmt: skip

# %%
figure = Figure(figsize=(7.2, 3.8), dpi=150, layout="constrained")
left, side = figure.subplots(1, 2, width_ratios=(2, 1), sharey=True)
for number, (name, rates) in enumerate(seeing.items()):
    mean, low, high = rates.T
    style = {"color": LINES[number], "marker": MARKS[number], "linestyle": DASHES[number]}
    left.errorbar(WIDTHS, mean, yerr=[mean - low, high - mean], label=name, capsize=2.5, **style)
left.set_xscale("log", base=2)
left.set_xticks(WIDTHS, [str(one) for one in WIDTHS])
left.set_xlabel("pairs that the head may see", fontsize=SMALL)
left.set_ylabel("acceptance of the first token (95%)", fontsize=SMALL)
left.set_title("Each doubling of what a head sees helps it", fontsize=11, loc="left")
left.legend(frameon=False, fontsize=SMALL)
bars = {"all": whole, **{f"no {layer}": one for layer, one in without.items()}}
mean, low, high = np.array(list(bars.values())).T
side.errorbar(range(4), mean, yerr=[mean - low, high - mean], fmt="s", color=LINES[1], capsize=2.5)
side.set_xticks(range(4), list(bars))
side.set_xlim(-0.5, 3.5)
side.set_xlabel("layers that EAGLE-3 reads", fontsize=SMALL)
side.set_title("It needs the highest", fontsize=11, loc="left")
for ax in (left, side):
    ax.tick_params(labelsize=SMALL)
    ax.set_ylim(0, 1)
    ax.grid(axis="y", color=GRID, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
for rates in seeing.values():
    assert (np.diff(rates[:, 0]) > 0).all()
    assert rates[-1, 1] > rates[2, 2]  # 48 pairs against 4: beyond both intervals
assert min(without, key=lambda layer: without[layer][0]) == 5
left.get_figure()

# %% [markdown]
# Although $h_n$ alone has the whole text in it, a head that may see nothing else loses more than
# half of its acceptance: copying a name from thirty tokens ago is done by attention, the head's
# own too. (They were trained with the whole text in view; one trained on a short view would
# suffer less.) Of its three layers EAGLE-3 needs the highest; the lower two add little here.
#
# ## Training in a minute, and what more data does
#
# An EAGLE head from the target's states, with the code of `specjax train`: the loss is the
# divergence from the target's distribution at each position, drafted $K$ ahead along the whole text
# at once. Three runs of equally many steps; only the number of windows differs, so the runs with
# few see the same ones again and again. Judged on windows of a module that none has seen.

# %%
STEPS, AMOUNTS, WINDOWS = 32, (1, 4, 16), 4  # a step learns from 4 windows of 96 tokens
SHIPPED = 600 * 16 * 256  # distinct tokens that the shipped heads learned from
learn = [
    jax.tree.map(lambda leaf, first=first: leaf[first : first + WINDOWS], batch)
    for batch in batches_of([argparse, tarfile], max(AMOUNTS) * WINDOWS // BATCH)
    for first in range(0, BATCH, WINDOWS)
]
options = HeadTrainConfig(
    kind="eagle", out="", source=source, steps=STEPS, unroll=K, intermediate_size=768
)
head = head_config(options, facts)
unrolled = build_unrolled(head, K, LAYERS)


def losses(own, params, batch, said):
    """Return the training loss of a batch, after which the target said so."""
    drafted = unrolled(assemble(head, own, params, None), batch)
    return sum(loss_of({"kl": 1.0}, one, said, batch) for one in drafted) / K


@jax.jit
def judge(own, params, held_out, known):
    """Measure 1 - TV at each position on the held-out windows: [K, windows]."""
    drafted = unrolled(assemble(head, own, params, None), held_out)
    return jnp.stack([overlap(one.logits, known[:, one.at]).mean(axis=1) for one in drafted])


optimizer = optax.adam(2e-3)


@jax.jit
def update(own, state, params, batch, said):
    """Take one step."""
    gradient = jax.grad(losses)(own, params, batch, said)
    change, state = optimizer.update(gradient, state)
    return optax.apply_updates(own, change), state


say = jax.jit(lambda params, hidden: target.logits(params, hidden[:, 1:].astype(jnp.float32)))
said = [say(params, batch.hidden_states) for batch in learn]
curves = {}
for amount in AMOUNTS:
    own = first_weights(head, facts, params, None, seed=0)
    state = optimizer.init(own)
    for step in range(STEPS):
        own, state = update(own, state, params, learn[step % amount], said[step % amount])
    curves[amount] = [interval(one) for one in judge(own, params, held_out, known)]
    print(f"{amount * WINDOWS * CONTEXT:6,} tokens:",
          ", ".join(f"{m:.2f} [{a:.2f}, {b:.2f}]" for m, a, b in curves[amount]))  # fmt: skip
long_trained = [interval(one) for one in judge(shipped("eagle")[1], params, held_out, known)]
print(f"shipped, {SHIPPED:,} tokens:",
      ", ".join(f"{m:.2f} [{a:.2f}, {b:.2f}]" for m, a, b in long_trained))  # fmt: skip

figure = Figure(figsize=(7.2, 3.8), dpi=150, layout="constrained")
ax = figure.add_subplot()
amounts = [amount * WINDOWS * CONTEXT for amount in AMOUNTS]
for place in (0, K - 1):
    mean, low, high = np.array([curves[amount][place] for amount in AMOUNTS]).T
    style = {"color": LINES[place], "marker": MARKS[place], "linestyle": DASHES[place]}
    label = f"position {place + 1}"
    ax.errorbar(amounts, mean, yerr=[mean - low, high - mean], label=label, capsize=2.5, **style)
    mean, low, high = long_trained[place]
    style["linestyle"] = "none"
    ax.errorbar([SHIPPED], mean, yerr=[[mean - low], [high - mean]], capsize=2.5, **style)
ax.set_xscale("log")
ax.set_ylim(0, 1)
ax.annotate("shipped head,\nmore steps too", (SHIPPED, 0.4), fontsize=SMALL, ha="right",
            color=QUIET)  # fmt: skip
ax.set_xlabel("distinct training tokens", fontsize=SMALL)
ax.set_ylabel("acceptance on unseen text (95%)", fontsize=SMALL)
ax.set_title("With the same steps, more text makes a better head", fontsize=11, loc="left")
ax.legend(frameon=False, fontsize=SMALL, loc="upper left")
ax.tick_params(labelsize=SMALL)
ax.grid(color=GRID, linewidth=0.6)
ax.spines[["top", "right"]].set_visible(False)
assert curves[16][0][0] > curves[1][0][0]
assert long_trained[0][1] > curves[16][0][2]  # beyond both intervals
ax.get_figure()

# %% [markdown]
# The bundled README tells the same: an EAGLE head that had seen 0.8 million tokens agreed with the
# target at 0.68 of the first places, the one that ships now, after 2.5 million, at 0.84.
#
# ## What a draft costs
#
# A forward pass of one token reads its weights once (notebook 01), so weights are time. Counted
# from the checkpoints, for $K$ tokens: the draft model reads all it has $K$ times; EAGLE, EAGLE-3,
# MTP and the MLP speculator a block and an LM head, $K$ times; Medusa and DFlash need the LM head
# **once**, since all their places are multiplied with it together. Of an embedding one row is read.


# %%
def count(leaves):
    """Count weights, without embeddings."""
    return sum(leaf.size for name, leaf in leaves.items() if "emb" not in name)


lm_head = params["embed_tokens"]["weight"].size
draft_folder = bundled.resolve("bundled:draft")
draft_weights = load_params(draft_folder, read_config(draft_folder, dtype="float32")[0])
own_weights = {name: shipped(name)[1] for name in ORDER if name != "draft_model"}
draft_size = sum(leaf.size for leaf in jax.tree.leaves(draft_weights))
target_size = sum(leaf.size for leaf in jax.tree.leaves(params))
size = facts.hidden_size
reads = {
    "draft_model": K * draft_size,  # its embedding is its LM head
    "medusa": K * size**2 + lm_head,
    "mlp_speculator": K * (size**2 + lm_head),
    "eagle": K * (count(own_weights["eagle"]) + lm_head),
    "eagle3": K * count(own_weights["eagle3"]),  # its LM head is its own, of 1,536 tokens
    "mtp": K * (count(own_weights["mtp"]) + lm_head),
    "dflash": count(own_weights["dflash"]) + lm_head,
}
figure = Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained")
ax = figure.add_subplot()
shares = {name: reads[name] / target_size for name in ORDER}
cost = np.linspace(0, 0.85, 50)
for gain in (1, 1.5, 2, 2.5):
    ax.plot(cost, gain * (1 + cost), color=GRID, linewidth=1)
    end = min(0.85, 4.1 / gain - 1)
    ax.annotate(f"{gain:g}x", (end, gain * (1 + end)), fontsize=SMALL, color=QUIET, va="center")
for number, name in enumerate(ORDER):
    ax.plot(shares[name], lengths[name], color=COLOURS[number], marker=MARKERS[number])
    ax.annotate(name, (shares[name], lengths[name]), xytext=(6, 4), textcoords="offset points",
                fontsize=SMALL)  # fmt: skip
    best_gain = lengths[name] / (1 + shares[name])
    print(f"{name:15} reads {shares[name]:4.0%} of the target, {lengths[name]:.2f} tokens per "
          f"round: at best {best_gain:.2f}x")  # fmt: skip
ax.set(xlim=(0, 0.92), ylim=(1, 4.2))
ax.set_xlabel(f"weights read to draft {K} tokens / target's weights", fontsize=SMALL)
ax.set_ylabel("tokens per round", fontsize=SMALL)
ax.set_title("What a head brings counts for more than what it reads", fontsize=11, loc="left")
ax.tick_params(labelsize=SMALL)
ax.spines[["top", "right"]].set_visible(False)
best = {name: lengths[name] / (1 + shares[name]) for name in ORDER}
assert max(best, key=best.get) == "mtp"
assert shares["medusa"] == min(shares.values())
assert best["medusa"] < best["eagle"]
ax.get_figure()

# %% [markdown]
# Grey lines: the speedup $L / (1 + x)$ if reading weights were all that takes time. The cheapest
# head is not the best one. (Notebook 01: on real machines a head's many small kernels cost more
# than their bytes; `specjax bench costs` measures it.)
#
# ## Check it on vLLM
#
# Done above: five of the seven rows are vLLM's own drafts. What is left is to ask whether the same
# head drafts the same here. Medusa, on the first kept prompts, draft by draft:

# %%
config = {"method": "medusa", "model": "bundled:medusa", "num_speculative_tokens": K}
llm = LLM("bundled", speculative_config=config, max_num_seqs=4, max_model_len=512)
ours = llm.generate([asked[i] for i in kept[:4]], greedy, use_tqdm=False)
pairs = [
    (list(draft), drafts["medusa"][row][at])
    for row, one in enumerate(ours)
    for at, draft in one.outputs[0].drafts
    if at in drafts["medusa"][row]
]
same = np.mean([mine == theirs for mine, theirs in pairs])
print(f"{len(pairs)} drafts at the same places, {same:.1%} equal to vLLM's")
assert len(pairs) > 50
assert same > 0.98  # a near tie may be rounded the other way

# %% [markdown]
# ## Three puzzles
#
# 1. Medusa with $K$ heads and top-1 drafts: which one change lets it offer both of two equally
#    likely continuations without being told which one was taken? (Notebook 08.)
# 2. An EAGLE head reads the pair $(h_i, x_{i+1})$ at position $i$. Somebody feeds $(h_i, x_i)$ by
#    mistake. What happens to the text, and what to the acceptance?
# 3. A head has one MTP layer, trained for one token ahead, and you ask for $K = 3$. What does it
#    read at its second step in place of the target's hidden state? And what must its training do
#    so that position 3 is as good as position 1?
#
# The answers are in the hidden cells below: each prints its solution and checks it. Think first.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 1. A tree: it drafts the two best tokens of head 2. With q on both halves of the
two likeliest words, the right one is among them as often as one of these words is said.""")
assert np.isclose(np.sort(np.asarray(words))[-2:].sum(), 0.8)

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 2. Nothing happens to the text: the target says every token itself. The head is
told nothing new by x_i and falls back. Only a look at the acceptance finds the mistake.""")
shifted = held_out._replace(token_ids=jnp.roll(held_out.token_ids, 1, axis=1))
drafted = jax.jit(unrolled)(shipped("eagle")[2], shifted)[0]
wrong = overlap(drafted.logits, known[:, drafted.at]).mean()
print(f"first position: {long_trained[0][0]:.2f}, with the shift forgotten {wrong:.2f}")
assert wrong < 0.7 * long_trained[0][0]

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 3. Its own output of the step before: an imitation of a hidden state. Training
must let it read these imitations (`--unroll`, EAGLE-3's training-time test), else it meets
them for the first time when it drafts. An eagle3 that was trained one step ahead only had
0.80, 0.11, 0.00, 0.00 of its drafts accepted; the bundled one, unrolled by 4, has:""")
print("eagle3, given the ones before:", np.round(positions["eagle3"], 2))
assert min(positions["eagle3"]) > 0.5

# %% [markdown]
# ## Summary
#
# A head drafts from what the target knows already; what decides about places 2 and 3 is whether it
# is told what it said at place 1, and whether training let it read its own imitations. It looks far
# back by its own attention, and at the target's upper layers. More text makes it better where more
# steps do not. Its cost is the weights it reads, of which an LM head is often the largest part.
#
# ## Further reading
#
# - Cai et al. 2024, *Medusa* ([arXiv 2401.10774](https://arxiv.org/abs/2401.10774))
# - Wertheimer et al. 2024, *Accelerating Production LLMs with Combined Token/Embedding Speculators*
#   ([arXiv 2404.19124](https://arxiv.org/abs/2404.19124))
# - Li et al. 2024, *EAGLE* ([arXiv 2401.15077](https://arxiv.org/abs/2401.15077))
# - Li et al. 2025, *EAGLE-3* ([arXiv 2503.01840](https://arxiv.org/abs/2503.01840))
# - Xiaomi 2025, *MiMo* ([arXiv 2505.07608](https://arxiv.org/abs/2505.07608))
# - *DFlash* 2026 ([arXiv 2602.06036](https://arxiv.org/abs/2602.06036))
# - PyTorch 2024, [*A Hitchhiker's Guide to Speculative
#   Decoding*](https://pytorch.org/blog/hitchhikers-guide-speculative-decoding/): MLP speculators in
#   production

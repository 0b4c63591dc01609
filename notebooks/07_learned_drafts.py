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
# # 07 · Learned drafts: draft model, Medusa, MLP, EAGLE, EAGLE-3, MTP
#
# **You will** say what each kind of head is told, what it costs, and compare the shipped ones
# with intervals. **Before this**: 02 and 03. **Time**: 30 minutes.
#
# **Question.** The target has read the whole text; its last hidden state $h_n$ knows more than the
# one token it emits. Five kinds of heads draft from it, each far smaller than a draft model that
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
#
# **Formula.** A token drawn from $q$ is accepted by a target with the distribution $p$ with
# probability $\alpha = \sum_v \min(p(v), q(v)) = 1 - TV(p, q)$ (notebook 03). At position 2 the
# target's distribution depends on the token $x$ accepted at position 1. A head that was told $x$
# may follow; one that was not has one $q$ for all of them, and the best it can do is
#
# $$\alpha_2 = \max_q \; \mathbb{E}_x \sum_v \min(p(v \mid x), q(v)).$$
#
# 中文摘要在文末。(A summary in Chinese is at the end.)

# %%
# %matplotlib inline
import argparse
import functools
import json
import tempfile
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from specjax import LLM, SamplingParams, bundled
from specjax.engine.text.tokenizer import load_tokenizer
from specjax.models.build import build_target
from specjax.train.features import SourceConfig, extract
from specjax.train.head_options import HeadTrainConfig, head_config
from specjax.train.heads import first_weights, loss_of
from specjax.train.losses import overlap
from specjax.train.unrolled import build_unrolled
from specjax.viz.acceptance_by_position import Drafts, acceptance_by_position
from specjax.weights.heads import assemble
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params
from specjax.weights.save_heads import save_head

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
# ## A target's hidden states
#
# Heads learn from what the target shows while it reads, and while it *speaks*: it is the target's
# own words they will draft. We give the bundled target (13 million parameters, Python code) windows
# of two modules of the standard library, let it continue each, and keep the hidden states. One
# batch is held out.

# %%
K, STEPS, BATCH, CONTEXT, NUM_BATCHES = 3, 30, 6, 64, 10
folder = bundled.resolve("bundled")
facts, _ = read_config(folder, dtype="float32")
params, target = load_params(folder, facts), build_target(facts)
source = SourceConfig(batch=BATCH, context=CONTEXT, own=32, temperature=0.0)

code = "".join(Path(str(one.__file__)).read_text() for one in (argparse, textwrap, json.decoder))
tokens = load_tokenizer(folder).encode(code)
windows = np.array(tokens[: len(tokens) // (CONTEXT + 1) * (CONTEXT + 1)]).reshape(-1, CONTEXT + 1)
order = np.random.default_rng(0).permutation(len(windows))[: NUM_BATCHES * BATCH]
show = jax.jit(functools.partial(extract, target, config=source))
batches = [
    show(params, jnp.asarray(rows, jnp.int32), jax.random.key(0))
    for rows in windows[order].reshape(NUM_BATCHES, BATCH, -1)
]
*learn, held_out = batches
print(f"{len(learn)} batches of hidden states {held_out.hidden_states.shape}, one held out")

# %% [markdown]
# ## Training two of them
#
# Medusa and EAGLE, from the same states, with the code of `specjax train`: the loss is the
# divergence from the target's distribution at each position, drafted $K$ ahead along the whole text
# at once. Both start from what they share with the target: its LM head and embeddings.


# %%
def build(kind):
    """Return a head's config, first weights, and a function to its drafts along a batch."""
    config = HeadTrainConfig(
        kind=kind, out="", source=source, steps=STEPS, unroll=K, intermediate_size=384, num_layers=1
    )
    head = head_config(config, facts)
    unrolled = build_unrolled(head, K, ())

    def draft(own, batch):
        known = target.logits(params, batch.hidden_states[:, 1:].astype(jnp.float32))
        return unrolled(assemble(head, own, params, None), batch), known

    return head, first_weights(head, facts, params, None, seed=0), draft


@functools.partial(jax.jit, static_argnums=0)
def alphas(draft, own, batch):
    """Measure 1 - TV at each position, all tokens before it being the target's own."""
    drafted, known = draft(own, batch)
    return jnp.stack([overlap(x.logits, known[:, x.at]).mean() for x in drafted])


def train(kind):
    """Train a head for a few seconds; return its config, weights, and alphas before and after."""
    head, own, draft = build(kind)

    def objective(own, batch):
        drafted, known = draft(own, batch)
        losses = [loss_of({"kl": 1.0}, x, known, batch) for x in drafted]
        return sum(losses) / K

    optimizer = optax.adam(2e-3)

    @jax.jit
    def update(own, state, batch):
        loss, gradient = jax.value_and_grad(objective)(own, batch)
        change, state = optimizer.update(gradient, state)
        return optax.apply_updates(own, change), state, loss

    before, state = alphas(draft, own, held_out), optimizer.init(own)
    for step in range(STEPS):
        own, state, loss = update(own, state, learn[step % len(learn)])
    after = alphas(draft, own, held_out)
    print(f"{kind:7} before {np.round(before, 2)}  after {np.round(after, 2)}  loss {loss:.2f}")
    return head, own, np.asarray(before), np.asarray(after)


medusa, eagle = train("medusa"), train("eagle")
assert medusa[3][0] > medusa[2][0]
assert eagle[3][0] > eagle[2][0]

# %% [markdown]
# Thirty steps make a poor head; `specjax train` takes thousands. What does not depend on training:
# the example above, and the order in the recordings below.
#
# ## It drafts
#
# We write the EAGLE head in the format that vLLM loads, and let it draft. The text is the target's
# own, whoever drafts (notebook 02); what the head decides is how many rounds it takes.

# %%
texts = [one["turns"][0] for one in bundled.prompts()[:6]]
with tempfile.TemporaryDirectory() as scratch:
    save_head(Path(scratch), "eagle", eagle[0], eagle[1])
    config = {"method": "eagle", "model": scratch, "num_speculative_tokens": K}
    llm = LLM(speculative_config=config, max_num_seqs=len(texts), max_model_len=256)
    outputs = llm.generate(texts, SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True))
counted = llm.counters
rounds = [one.outputs[0].spec_decode_metrics.per_step_accepted for one in outputs]
drafts = Drafts(np.concatenate(rounds), np.repeat(np.arange(len(rounds)), list(map(len, rounds))))
data, axes = acceptance_by_position(
    counted.num_accepted_tokens_per_pos,
    counted.num_drafts,
    drafts=drafts,
    title=f"EAGLE after {STEPS} steps of training, {counted.num_drafts} drafts",
)
print(f"{data.tokens_per_step:.2f} tokens per round")
assert np.allclose(data.marginal.estimate, counted.acceptance_rate_per_pos)
assert np.isclose(data.tokens_per_step, 1 + counted.num_accepted_tokens / counted.num_drafts)
assert counted.num_accepted_tokens > 0
axes.get_figure()

# %% [markdown]
# ## What a draft costs
#
# A forward pass of one token reads its weights once (notebook 01), so weights are time. Counted
# from the shapes, for K tokens: the draft model reads all it has K times; a head its block and
# the target's LM head.


# %%
def count(tree):
    """Count the weights of a tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


draft_facts, _ = read_config(bundled.resolve("bundled:draft"), dtype="float32")
draft_layers = load_params(bundled.resolve("bundled:draft"), draft_facts)
lm_head = params["embed_tokens"]["weight"].size
reads = {
    "target": count(params),
    "draft model": K * count(draft_layers),
    "medusa": count(medusa[1]) + (K - 1) * lm_head,
    "eagle": K * (count(eagle[1]) + lm_head),
}
for name, number in reads.items():
    share = number / reads["target"]
    print(f"{name:12} {number / 1e6:5.1f} million weights, {share:.0%} of the target")
size = facts.hidden_size
assert count(medusa[1]) == K * size * size + lm_head  # a residual layer per head; one LM head
own_block = count(eagle[1]) - 2 * size * size  # but for fc, which joins token and feature
assert own_block == size * (2 * 6 * 64 + 2 * 2 * 64 + 3 * 384 + 1)  # q and o, k and v, MLP, a norm
assert reads["eagle"] < reads["target"] / 2

# %% [markdown]
# ## Three puzzles
#
# 1. Medusa with $K$ heads and top-1 drafts: which one change lets it offer both of two equally
#    likely continuations without being told which one was taken? (Notebook 08.)
# 2. An EAGLE head reads the pair $(h_i, x_{i+1})$ at position $i$. Somebody feeds $(h_i, x_i)$ by
#    mistake. What happens to the text, and what to the acceptance?
# 3. A head has one MTP layer, trained for one token ahead, and you ask for $K = 3$. What does it
#    read at its second step in place of the target's hidden state?
#
# The answers are in the hidden cells below: each prints its solution and checks it. Think first.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 1. A tree: it drafts the two best tokens of head 2. With q on both halves of the
two likeliest words, the right one is among them as often as one of these words is said.""")
assert np.isclose(np.sort(np.asarray(words))[-2:].sum(), 0.8)

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 2. Nothing happens to the text: the target says every token itself. The head is
told nothing new by x_i, falls back. Only a look at the acceptance finds the mistake.""")
shifted = held_out._replace(token_ids=jnp.roll(held_out.token_ids, 1, axis=1))
right, wrong = (alphas(build("eagle")[2], eagle[1], one)[0] for one in (held_out, shifted))
print(f"first position: {right:.2f}, with the shift forgotten {wrong:.2f}")
assert wrong < right

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["hide-input"]
print("""Answer 3. Its own output of the step before: an imitation of a hidden state it was never
trained on. The recording of DeepSeek's layer below shows what that costs: little, in so
plain a language.""")

# %% [markdown]
# ## Check it on vLLM
#
# The repository keeps what a real vLLM 0.32.0 drafted with heads of every kind, made without
# training for a small artificial language ("cycle": a token's successor depends on the one before
# it). Conditional rates: of the drafts that were right so far, how many are right at position $i$?

# %%
recordings = next(
    root / "tests/oracle/recordings"
    for root in (Path.cwd(), *Path.cwd().parents)
    if (root / "tests/oracle/recordings").is_dir()
)
conditional = {}
for name in ("draft_model", "medusa", "medusa_original", "eagle", "eagle3", "deepseek"):
    answer = json.loads((recordings / f"cycle_{name}.json").read_text())["answer"]
    steps = [one["metrics"] for one in answer["outputs"]]
    drafted, accepted_by = (
        np.concatenate([one[f"per_step_{what}"] for one in steps])
        for what in ("drafted", "accepted")
    )
    whole = drafted == drafted.max()  # the last drafts of a text may be cut
    reached = (accepted_by[whole, None] >= np.arange(1, drafted.max() + 1)).sum(axis=0)
    conditional[name] = reached / np.append(whole.sum(), reached[:-1])
    print(f"{name:16} {whole.sum()} drafts: conditional {conditional[name].round(2)}")
lost = {name: rates[0] - rates[-1] for name, rates in conditional.items()}
assert all((loss > 0.1) == name.startswith("medusa") for name, loss in lost.items())

# %% [markdown]
# From the first to the last position Medusa's heads lose more than a tenth, each step of the way.
# Those that read their own words lose less, or nothing; DeepSeek's one layer, used three times,
# comes closest.
#
# ## Further reading
#
# - Cai et al. 2024, *Medusa* ([arXiv 2401.10774](https://arxiv.org/abs/2401.10774))
# - Wertheimer et al. 2024, *Accelerating Production LLMs with Combined Token/Embedding Speculators*
#   ([arXiv 2404.19124](https://arxiv.org/abs/2404.19124))
# - Li et al. 2024, *EAGLE* ([arXiv 2401.15077](https://arxiv.org/abs/2401.15077))
# - Li et al. 2025, *EAGLE-3* ([arXiv 2503.01840](https://arxiv.org/abs/2503.01840))
# - Xiaomi 2025, *MiMo* ([arXiv 2505.07608](https://arxiv.org/abs/2505.07608))
#
# ## 中文摘要
#
# - **问题**: 目标模型的隐藏状态 $h_n$ 所含的信息多于它输出的那一个 token. 用它起草的几种头
#   (Medusa, MLP speculator, EAGLE, EAGLE-3, MTP) 到第 3 个位置时还知道自己在说什么吗?
# - **公式**: 第 $i$ 位的接受概率 $\alpha_i = 1 - TV(p, q)$. 并行的头 (Medusa) 不知道前一个 token,
#   只能用同一个 $q$ 应付所有情况: $\alpha_2 = \max_q E_x \sum_v \min(p(v|x), q(v))$;
#   三个词的例子中最多 0.5, 而知道前一 token 的头可达 1.
# - **训练**: 在目标模型自己说的话上训练 Medusa 与 EAGLE 各 30 步;
#   EAGLE 写成 vLLM 可加载的格式并实际起草. 文本与起草者无关, 不同的只有轮数.
# - **代价**: 一次起草读取的权重数: 草稿模型读 $K$ 遍自身; 头读一个块和目标的 LM head.
# - **易错点**: EAGLE 读的是 $(h_i, x_{i+1})$; 忘记移位时文本不变, 只有接受率下降.
# - **vLLM 实录**: 从首位到末位, Medusa 的条件接受率下降超过 0.1, 读自己草稿的方法下降较少;
#   DeepSeek 的单层 MTP 重复使用三次, 略有下降.

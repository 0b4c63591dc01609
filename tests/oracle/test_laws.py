"""Temperature > 0: the same law as vLLM's, by chi-square; and stock vLLM is caught.

Speculation in vLLM draws other numbers than plain decoding, so tokens cannot be compared.
"""

import functools
from collections import Counter

import jax
import jax.numpy as jnp
import pytest

from specjax import LLM, SamplingParams
from specjax.audit.cells import p_value
from specjax.core.sampling import row_key
from specjax.engine import driver, rows
from specjax.theory.goodness import ALPHA, samples_to_detect_tv

K, NUM_TOKENS, CAPACITY = 2, 3, 64
NUM_CELLS = 24  # about as many pairs of tokens are common enough to stand alone
NUM_DRAWS = samples_to_detect_tv(NUM_CELLS, tv=0.05, power=0.9)
BATCH = 512
NGRAM = {
    "method": "ngram",
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
    "num_speculative_tokens": K,
}
DRAFT = {
    "method": "draft_model",
    "model": "bundled:draft",
    "draft_sample_method": "probabilistic",
    "num_speculative_tokens": K,
}
CASES = {
    "ngram": (NGRAM, {"temperature": 0.6}),
    "draft_model": (DRAFT, {"temperature": 0.6}),
    "draft_model, top_k": (DRAFT, {"temperature": 0.8, "top_k": 3}),
}
# Whatever comes first has been seen before, so that n-grams match.
PROMPT = "if a == 1:\n    b = 2\nif b == 2:\n    a = 3\nif b == 3:\n    a = 1\nif a == "


def joints(texts) -> list[Counter]:
    """Count the first two tokens of each text, and the second and third.

    The first token is plain; the others come from the first draft position, the second, and
    the recovered and bonus tokens after them.
    """
    texts = list(texts)
    return [Counter((text[i], text[i + 1]) for text in texts) for i in (0, 1)]


@functools.cache
def ours(case: str) -> tuple[list[int], list[Counter], float]:
    """Draw with specjax: the prompt, the joint counts, and how often a second token was drafted.

    The prompt is read once, all but its last token, and copied to the rows of every batch;
    ``LLM`` would read it thousands of times.
    """
    config, wanted = CASES[case]
    llm = LLM("bundled", speculative_config=config, max_model_len=128)
    prompt, params = llm.get_tokenizer().encode(PROMPT), SamplingParams(**wanted)
    limit = len(prompt) + NUM_TOKENS
    request = rows.Request(tuple(prompt), params, 0, limit, ())
    shape = rows.layout([request], llm.core.engine.target.vocab_size, K)
    engine, texts, drafted = llm.core.engine._replace(window=CAPACITY), [], 0
    one = driver.init_state(engine, llm.core.params, *rows.row(request, shape, CAPACITY))
    one, _, _ = driver.XLA.prefill(engine, llm.core.params, one, 0, len(prompt) - 1)
    for batch in range(-(-NUM_DRAWS // BATCH)):
        keys = jax.random.split(row_key(batch), BATCH)
        state = jax.tree.map(lambda leaf: jnp.repeat(leaf, BATCH, axis=0), one)._replace(keys=keys)
        state, _, _ = driver.XLA.prefill(engine, llm.core.params, state, len(prompt) - 1, 1)
        state, infos, _ = driver.XLA.generate(engine, llm.core.params, state, 8, 1, 8)
        texts += state.text.tokens[:, len(prompt) : limit].tolist()
        drafted += int((infos.num_drafted[0] > 0).sum())
    return prompt, joints(texts[:NUM_DRAWS]), drafted / len(texts)


def theirs(vllm, case: str, repairs: bool) -> list[Counter]:
    """Draw with vLLM, repaired or stock."""
    config, wanted = CASES[case]
    job = {
        "kind": "offline",
        "model": "bundled",
        "prompts": [ours(case)[0]] * NUM_DRAWS,
        "sampling_params": {**wanted, "max_tokens": NUM_TOKENS, "ignore_eos": True},
        "speculative_config": config,
        "engine": {"max_model_len": 128, "max_num_seqs": 256, "seed": 1},
        "repairs": repairs,
    }

    def keep(answer: dict) -> dict:
        counts = joints(output["token_ids"] for output in answer["outputs"])
        return {"joints": [[[*k, n] for k, n in sorted(count.items())] for count in counts]}

    name = "_".join(["law", *case.split(", "), *([] if repairs else ["stock"])])
    counts = vllm(name, job, keep)["joints"]
    return [Counter({(a, b): number for a, b, number in count}) for count in counts]


@pytest.mark.parametrize("case", CASES)
def test_the_law_is_that_of_repaired_vllm(case, vllm, compared):
    _, mine, drafted = ours(case)
    assert drafted > 0.7
    pairs = zip(mine, theirs(vllm, case, repairs=True), strict=True)
    first, second = (p_value(one, other) for one, other in pairs)
    assert min(first, second) > ALPHA, f"p = {first}, {second}"
    compared(
        f"law of tokens 1-2 and 2-3, T > 0, {case}",
        "repaired vLLM, chi-square",
        f"2 x {NUM_DRAWS} draws (90% power at TV 0.05)",
        f"same law, p = {first:.2f} and {second:.2f}",
    )


@pytest.mark.parametrize("case", ["ngram", "draft_model"])
def test_the_same_test_rejects_stock_vllm(case, vllm, compared):
    found = p_value(ours(case)[1][0], theirs(vllm, case, repairs=False)[0])
    assert found < 1e-6, f"p = {found}"
    compared(
        f"the same test, {case}",
        "stock vLLM (without expand_kernel)",
        f"2 x {NUM_DRAWS} draws",
        f"rejected, p < {max(found, 1e-300):.0e}",
    )

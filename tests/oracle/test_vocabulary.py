"""A draft model with a vocabulary of its own: its drafts, and the text, are vLLM's."""

from specjax import LLM, SamplingParams
from specjax.bundled import prompts, resolve
from specjax.engine.text.tokenizer import load_tokenizer

K, NUM_PROMPTS, PROMPT_LENGTH, NUM_TOKENS = 4, 8, 28, 48
CONFIG = {
    "method": "draft_model",
    "model": "foreign",
    "num_speculative_tokens": K,
    "use_heterogeneous_vocab": True,
}


def job() -> dict:
    """Ask for greedy completions of the beginnings of real prompts."""
    encode = load_tokenizer(resolve("bundled")).encode
    texts = [one["turns"][0] for one in prompts()[:NUM_PROMPTS]]
    return {
        "kind": "offline",
        "model": "bundled",
        "prompts": [encode(text)[:PROMPT_LENGTH] for text in texts],
        "sampling_params": {"temperature": 0.0, "max_tokens": NUM_TOKENS, "ignore_eos": True},
        "speculative_config": CONFIG,
        "engine": {"max_model_len": 128, "max_num_seqs": 8},
    }


def test_shared_tokens_are_drafted_as_vllm_drafts_them(vllm, checkpoints, compared):
    theirs = vllm("heterogeneous", job())
    llm = LLM("bundled", speculative_config={**CONFIG, "model": str(checkpoints["foreign"])})
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    asked = [{"prompt_token_ids": prompt} for prompt in job()["prompts"]]
    answers = llm.generate(asked, params, use_tqdm=False)
    number = accepted = 0
    for mine, other, rounds in zip(answers, theirs["outputs"], theirs["rounds"], strict=True):
        output = mine.outputs[0]
        assert list(output.token_ids) == other["token_ids"]
        assert [[at, list(draft)] for at, draft in output.drafts] == rounds
        number += len(rounds)
        accepted += output.spec_decode_metrics.num_accepted_draft_tokens
    assert accepted > number  # more than one per draft
    compared(
        "text and drafts, draft_model, use_heterogeneous_vocab",
        "vLLM's",
        f"{number} drafts, {accepted} tokens accepted",
        "equal",
    )

"""Heads that no other engine runs for these targets: they draft what their NumPy twins draft."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import LLM, SamplingParams
from specjax.bundled import BUNDLED, prompts
from specjax.core.topology import causal
from specjax.models.build import build_target
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params
from tests.checkpoints.cycle import build
from tests.checkpoints.language import VOCAB
from tests.checkpoints.speculator import STAGES, write_lstm, write_speculator
from tests.models import twins

NUM_TOKENS, WIDE = 24, 128
TWINS = {"mtp": twins.Mtp, "mlp_speculator": twins.Speculator, "arctic": twins.Lstm}
SHIPPED = [f"bundled:{method}" for method in TWINS if f"bundled:{method}" in BUNDLED]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Name pairs of target and head: fixtures, random weights, and what ships."""
    folder = tmp_path_factory.mktemp("twins")
    cycle = build(folder)
    loose = write_speculator(folder / "loose", tied=False, scale_input=False)
    tied = write_speculator(folder / "tied", tied=True, scale_input=True)
    return {
        "mimo": (cycle["mimo"], cycle["mimo"], "mtp"),
        "stages": (cycle["target"], loose, "mlp_speculator"),
        "tied stages": (cycle["target"], tied, "mlp_speculator"),
        "lstm": (cycle["target"], write_lstm(folder / "lstm"), "arctic"),
        **{name: (BUNDLED["bundled"], BUNDLED[name], name[8:]) for name in SHIPPED},
    }


def some_prompts(llm: LLM, name: str) -> list[list[int]]:
    """Return token ids: of shipped prompts where the head ships, random ones elsewhere."""
    if name in SHIPPED:
        encode = llm.core.tokenizer.encode
        return [encode(one["turns"][0])[-64:] for one in prompts()[:4]]
    return np.random.default_rng(8).integers(0, VOCAB, (4, 12)).tolist()


def reader(target: Path, method: str):
    """Return a function from a text to what the target shows a head of it, [T, D]."""
    config, _ = read_config(target, dtype="float32")
    model, params = build_target(config, (config.num_layers,)), load_params(target, config)

    @jax.jit
    def read(params, tokens):
        shape = causal(WIDE), model.init_cache(1, WIDE), WIDE
        return model.forward(params, tokens, jnp.arange(WIDE)[None], *shape)[0]

    def features(tokens: list[int]) -> np.ndarray:
        padded = jnp.zeros((1, WIDE), jnp.int32).at[0, : len(tokens)].set(jnp.asarray(tokens))
        output = read(params, padded)
        shown = output.taps[0, :, 0] if method == "mtp" else output.hidden[0]
        return np.asarray(shown, np.float64)

    return features


@pytest.mark.parametrize("name", ["mimo", "stages", "tied stages", "lstm", *SHIPPED])
def test_a_head_drafts_what_its_numpy_twin_drafts(pairs, name):
    target, head, method = pairs[name]
    config = {"method": method, "model": str(head), "num_speculative_tokens": STAGES}
    llm = LLM(target, speculative_config=config, max_model_len=WIDE)
    twin, read = TWINS[method](head, target), reader(target, method)
    given = [{"prompt_token_ids": prompt} for prompt in some_prompts(llm, name)]
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    number = 0
    for prompt, said in zip(given, llm.generate(given, params, use_tqdm=False), strict=True):
        text = [*prompt["prompt_token_ids"], *said.outputs[0].token_ids]
        features = read(text)
        for committed, draft in said.outputs[0].drafts:
            assert list(draft) == twin.draft(features, text[:committed], len(draft))
            number += len(draft)
    assert number >= 60

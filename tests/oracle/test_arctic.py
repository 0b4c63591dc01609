"""Arctic's LSTM speculator, by its own code: read from the installed file, and run unchanged."""

import ast
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.torch import load_file

from specjax.models.build import build_stages
from specjax.oracle.environment import OracleMissing, interpreter
from specjax.weights.head_configs import read_head_config
from specjax.weights.heads import load_head
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params
from tests.checkpoints.cycle import build
from tests.checkpoints.language import HIDDEN, VOCAB
from tests.checkpoints.speculator import INNER, STAGES, write_lstm

FILE = "lib/python3.*/site-packages/arctic_inference/vllm/spec_dec/arctic_speculator.py"
ROWS = 200


def arctic():
    """Return Arctic's norm and its ``generate_states``."""
    torch = pytest.importorskip("torch")
    try:
        (path,) = interpreter().parents[1].glob(FILE)
    except OracleMissing as missing:
        pytest.skip(str(missing))
    found = {
        node.name: node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    norm, speculator = found["MLPSpeculatorLayerNorm"], found["ArcticLSTMSpeculator"]
    states = [one for one in speculator.body if getattr(one, "name", "") == "generate_states"]
    names = {"torch": torch, "nn": torch.nn, "SQRT2": 2**0.5}
    exec(compile(ast.Module([norm, *states], []), str(path), "exec"), names)
    return torch, names["MLPSpeculatorLayerNorm"], names["generate_states"]


@pytest.mark.oracle
def test_an_lstm_speculator_computes_what_arctics_own_code_does(tmp_path, compared):
    torch, layer_norm, generate_states = arctic()
    weights = load_file(write_lstm(tmp_path / "lstm") / "model.safetensors")
    facts, _ = read_config(build(tmp_path / "cycle")["target"])
    target = load_params(tmp_path / "cycle" / "target", facts)
    config = read_head_config(tmp_path / "lstm", "mlp_speculator", facts)
    stages = build_stages(config)
    params = load_head(tmp_path / "lstm", "mlp_speculator", config, target)

    def norm(name):
        module = layer_norm(INNER)
        module.load_state_dict({one: weights[f"{name}.0.{one}"] for one in ("weight", "bias")})
        return module

    def projection(stage):
        gates = ("forget", "input", "output", "cell")
        stacked = torch.cat([weights[f"{gate}_proj.{stage}.weight"] for gate in gates])
        return lambda x: x @ stacked.T

    keep = 0.5 ** (0.5 / STAGES)
    theirs = SimpleNamespace(
        method="sum_lstm", tie_weights=True, tie_lstm_embs=True, scale_input=True,
        proj_dim=[INNER], activation=torch.nn.GELU(), state_weight=keep,
        emb_weight=((1 - keep**2) * (INNER / 2)) ** 0.5,
        ln0=layer_norm(HIDDEN, elementwise_scale_and_shift=False),
        forget_emb=[lambda tokens: weights["forget_emb.0.weight"][tokens]],
        projs=[projection(0), projection(1)],
        cell_ln=[norm("cell_ln")], state_ln=[norm("state_ln")],
    )  # fmt: skip
    rng, worst = np.random.default_rng(0), 0.0
    hidden = rng.standard_normal((ROWS, HIDDEN)).astype(np.float32)
    state, cell = torch.from_numpy(hidden)[:, None], torch.zeros(ROWS, 1, INNER)
    ours = stages.start(params, jnp.asarray(hidden))
    for stage in range(STAGES):
        tokens = rng.integers(0, VOCAB, ROWS)
        with torch.no_grad():
            state, cell = generate_states(
                theirs, torch.from_numpy(tokens)[:, None], state, stage, cell
            )
            logits = state[:, 0] @ weights["head.0.weight"].T
        ours, said = stages.step(params, ours, jnp.asarray(tokens, jnp.int32), stage)
        worst = max(worst, float(np.abs(np.asarray(said) - logits.numpy()).max()))
        assert (np.asarray(said).argmax(-1) == logits.numpy().argmax(-1)).all()
    assert worst < 1e-4
    compared(
        "an LSTM speculator's logits", "Arctic's own code", f"{ROWS} x {STAGES} tokens",
        f"the same tokens; largest difference {worst:.1e}",
    )  # fmt: skip

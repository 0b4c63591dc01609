"""The parity certificate: a comparison of jitted programs with lowered ones.

It includes measurements on an Ascend device if there is one; elsewhere it states "not executed on
hardware".
"""

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from npu_bridge.lowering_targets import RULES, LoweringTarget, Sizes, lowering_target, on_device
from npu_bridge.plans import PLANS
from npu_bridge.runtime import NpuUnavailable, open_device, version
from npu_bridge.schemas import snapshot
from specjax.bundled import prompts, resolve
from specjax.core.types import PyTree
from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams
from specjax.models.config import ModelConfig
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params

TOLERANCE = 1e-5  # float32, of the largest number
FILTER_ORDER = (
    "bias and allowed ids", "bad words", "min_tokens", "penalties", "min_p", "top_k", "top_p",
)  # fmt: skip
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
WORDS = "schema-, Meta- and reference-checked against torch_npu {}; not executed on hardware"
KV_LENGTHS = (1, 511, 512, 513, 2049)  # at which kernels switch their implementation


def certify(
    model: str | Path = "bundled", *, num_prompts: int = 4, max_tokens: int = 32
) -> dict[str, Any]:
    """Return the certificate of a checkpoint: its programs in JAX and lowered, compared.

    Args:
        model: a path, or the name of a bundled checkpoint.
        num_prompts: how many bundled prompts are completed, greedily and sampled.
        max_tokens: of each completion.
    """
    folder = resolve(model)
    config, _ = read_config(folder, dtype="float32")
    weights = load_params(folder, config)
    half, _ = read_config(folder, dtype="bfloat16")
    sizes = Sizes(batch_size=2)
    rows = [
        compare(what, rule, plan, config, weights, sizes)
        for what, rule in (("forward", "walk"), *(("judge", rule) for rule in RULES))
        for plan in PLANS
    ]
    errors, ops = half_precision(half, config, weights, sizes)
    texts = [compare_texts(model, heat, num_prompts, max_tokens) for heat in (0.0, 0.8)]
    whole = all(row["passes"] for row in [*rows, *texts])
    return {
        "model": str(model),
        "says": WORDS.format(snapshot()["torch_npu"]),
        "passes": whole and all(not op["decomposed"] for op in ops.values()),
        "versions": versions(),
        "compared": rows,
        "texts": texts,
        "bfloat16_rms_error": errors,
        "filter_order": list(FILTER_ORDER),
        "fusible_ops": ops,
        "hardware": on_hardware(half, config, weights),
    }


def versions() -> dict[str, str | None]:
    """Return the versions of the packages, Python and the platform."""
    packages = ("specjax", "jax", "jaxlib", "torch", "torch-npu", "numpy")
    found = {name: version(name) for name in packages}
    return found | {"python": platform.python_version(), "platform": platform.platform()}


def compare(
    what: str, rule: str, plan: str, config: ModelConfig, weights: PyTree, sizes: Sizes
) -> dict[str, Any]:
    """Return a comparison in float32, passed if integers are equal, others within TOLERANCE."""
    one = lowering_target(what, config, sizes, rule, weights)
    wanted = jax.jit(one.function)(*one.args)
    program = one.lower(plan=plan)
    got = program(*on_device(one.args, plan))
    equal, worst = True, 0.0
    for ours, theirs in zip(jax.tree.leaves(wanted), jax.tree.leaves(got), strict=True):
        ours, theirs = np.asarray(ours), theirs.numpy()
        if ours.dtype.kind == "f" and ours.size:
            worst = max(worst, float(abs(ours - theirs).max() / max(1, abs(ours).max())))
        else:
            equal &= bool((ours == theirs).all())
    name = what if what == "forward" else f"{what}, {rule}"
    return {
        "what": name, "plan": plan, "largest_difference": worst, "integers_equal": equal,
        "passes": equal and worst <= TOLERANCE, "fused": program.report.fused,
        "decomposed": program.report.decomposed,
    }  # fmt: skip


def half_precision(
    half: ModelConfig, config: ModelConfig, weights: PyTree, sizes: Sizes
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return errors of the bfloat16 forward pass against float32, and the ops that were fused."""
    one, truth = narrow(half, config, weights, sizes)
    errors, ops = {"jax": rms_error(jax.jit(one.function)(*one.args)[0], truth)}, {}
    for plan in PLANS:
        program = one.lower(plan=plan)
        errors[plan] = rms_error(program(*on_device(one.args, plan))[0], truth)
        if plan.startswith("npu"):
            report = program.report
            kernels = sorted({op.kernel for op in report.fusible_ops if op.kernel})
            left = {"fused": report.fused, "decomposed": report.decomposed}
            ops[plan] = left | {"kernels": kernels}
    return errors, ops


def narrow(
    half: ModelConfig, config: ModelConfig, weights: PyTree, sizes: Sizes
) -> tuple[LoweringTarget, np.ndarray]:
    """Return the forward pass in bfloat16, and the logits of the same weights in float32."""
    few = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), weights)
    one = lowering_target("forward", half, sizes, weights=few)
    wide = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == jnp.bfloat16 else leaf, one.args
    )
    return one, np.asarray(jax.jit(lowering_target("forward", config, sizes).function)(*wide)[0])


def rms_error(logits: torch.Tensor | jax.Array, truth: np.ndarray) -> float:
    """Return the root mean square of the difference, relative to that of ``truth``."""
    found = logits.cpu().numpy() if torch.is_tensor(logits) else np.asarray(logits)
    return float(np.sqrt(((found - truth) ** 2).mean() / (truth**2).mean()))


def compare_texts(
    model: str | Path, temperature: float, num_prompts: int, max_tokens: int
) -> dict[str, Any]:
    """Return how many completions with n-gram drafts are equal in JAX and lowered."""
    texts = [one["turns"][0] for one in prompts()[:num_prompts]]
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=0)

    def write(device: str) -> list[Sequence[int]]:
        llm = LLM(model, device=device, speculative_config=NGRAM, dtype="float32")
        outputs = llm.generate(texts, params, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs]

    pairs = list(zip(write("cpu"), write("torch-cpu"), strict=True))
    same = sum(ours == theirs for ours, theirs in pairs)
    return {
        "what": f"texts, n-gram drafts, temperature {temperature}", "prompts": len(pairs),
        "tokens": sum(len(ours) for ours, _ in pairs), "equal": same, "passes": same == len(pairs),
    }  # fmt: skip


def on_hardware(half: ModelConfig, config: ModelConfig, weights: PyTree) -> dict[str, Any]:
    """Return errors of the fused forward pass on the Ascend device, or why it was not run."""
    try:
        device = open_device("npu")
    except NpuUnavailable as unavailable:
        return {"run": False, "why": str(unavailable)}
    errors = {}
    for length in KV_LENGTHS:  # of keys: the nodes' own are the last of them
        nodes = min(4, length)
        capacity = -(-length // 128) * 128
        sizes = Sizes(1, nodes, capacity, capacity, length - nodes + 1)
        one, truth = narrow(half, config, weights, sizes)
        for plan in ("npu", "npu-paged"):
            program = one.lower(device, plan)
            made = program(*on_device(one.args, plan, device))[0]
            errors[f"{plan}, {length} keys"] = rms_error(made, truth)
    return {"run": True, "device": device, "bfloat16_rms_error": errors}


def page(certificate: dict[str, Any]) -> str:
    """Return a certificate as a page of Markdown."""
    c = certificate
    found = ", ".join(f"{name} {value or 'not installed'}" for name, value in c["versions"].items())
    lines = [
        f"# Parity certificate: {c['model']}", "",
        f"**{'Passes' if c['passes'] else 'FAILS'}.** {c['says']}.", "", found + ".", "",
        f"Float32, integers equal and numbers within {TOLERANCE} of the largest:", "",
        "| what | plan | largest difference | integers | |", "| --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for row in c["compared"]:
        integers = "equal" if row["integers_equal"] else "DIFFER"
        verdict = "passes" if row["passes"] else "FAILS"
        lines.append(
            f"| {row['what']} | {row['plan']} | {row['largest_difference']:.1e} | {integers} "
            f"| {verdict} |"
        )
    lines += ["", "| texts | prompts | tokens | equal |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {row['what']} | {row['prompts']} | {row['tokens']} | {row['equal']} |"
        for row in c["texts"]
    ]
    errors = ", ".join(f"{name} {value:.4f}" for name, value in c["bfloat16_rms_error"].items())
    lines += ["", f"bfloat16, RMS error of the logits against float32 truth: {errors}.", ""]
    lines += [f"Order of the filters: {', '.join(c['filter_order'])}.", ""]
    for plan, ops in c["fusible_ops"].items():
        left = f"; decomposed: {ops['decomposed']}" if ops["decomposed"] else "; none decomposed"
        lines.append(f"- plan {plan}: {', '.join(ops['kernels'])}{left}")
    hardware = c["hardware"]
    if hardware["run"]:
        errors = hardware["bfloat16_rms_error"].items()
        listed = ", ".join(f"{name} {value:.4f}" for name, value in errors)
        lines += ["", f"On hardware, RMS error in bfloat16: {listed}."]
    else:
        lines += ["", f"On hardware: not run: {hardware['why']}"]
    return "\n".join(lines) + "\n"

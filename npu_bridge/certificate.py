"""The parity certificate: what was compared between the jitted and the lowered program, and how.

It says what was not run, too. On a machine with an Ascend device the same command fills that
part in; elsewhere it says "not executed on hardware", and never more.
"""

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from npu_bridge.parts import RULES, Part, Sizes, on_device, part
from npu_bridge.plans import PLANS
from npu_bridge.runtime import NpuUnavailable, open_device, version
from npu_bridge.schemas import snapshot
from specjax.bundled import prompts, resolve
from specjax.engine.llm import LLM
from specjax.engine.params import SamplingParams
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params

TOLERANCE = 1e-5  # float32, of the largest number
FILTER_ORDER = (
    "bias and allowed ids", "bad words", "min_tokens", "penalties", "min_p", "top_k", "top_p",
)  # fmt: skip
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
WORDS = "schema-, Meta- and reference-checked against torch_npu {}; not executed on hardware"
KV_LENGTHS = (1, 511, 512, 513, 2049)  # where kernels change their path


def certify(
    model: str | Path = "bundled", *, num_prompts: int = 4, max_tokens: int = 32
) -> dict[str, Any]:
    """Compare a checkpoint's programs in JAX and lowered; return the certificate.

    Args:
        num_prompts: of the shipped ones, whose greedy and sampled texts are compared.
        max_tokens: of each text.
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
    errors, seams = half_precision(half, config, weights, sizes)
    texts = [compare_texts(model, heat, num_prompts, max_tokens) for heat in (0.0, 0.8)]
    whole = all(row["passes"] for row in [*rows, *texts])
    return {
        "model": str(model),
        "says": WORDS.format(snapshot()["torch_npu"]),
        "passes": whole and all(not seam["decomposed"] for seam in seams.values()),
        "versions": versions(),
        "compared": rows,
        "texts": texts,
        "bfloat16_rms_error": errors,
        "filter_order": list(FILTER_ORDER),
        "seams": seams,
        "hardware": on_hardware(half, config, weights),
    }


def versions() -> dict[str, str | None]:
    """Return what the certificate was made with."""
    packages = ("specjax", "jax", "jaxlib", "torch", "torch-npu", "numpy")
    found = {name: version(name) for name in packages}
    return found | {"python": platform.python_version(), "platform": platform.platform()}


def compare(what, rule, plan, config, weights, sizes) -> dict[str, Any]:
    """Compare a part's results in float32: integers equal, numbers within TOLERANCE."""
    one = part(what, config, sizes, rule, weights)
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


def half_precision(half, config, weights, sizes) -> tuple[dict[str, float], dict[str, Any]]:
    """Measure the forward pass in bfloat16 against float32 truth, and which seams were fused."""
    one, truth = narrow(half, config, weights, sizes)
    errors, seams = {"jax": rms_error(jax.jit(one.function)(*one.args)[0], truth)}, {}
    for plan in PLANS:
        program = one.lower(plan=plan)
        errors[plan] = rms_error(program(*on_device(one.args, plan))[0], truth)
        if plan.startswith("npu"):
            report = program.report
            kernels = sorted({seam.kernel for seam in report.seams if seam.kernel})
            left = {"fused": report.fused, "decomposed": report.decomposed}
            seams[plan] = left | {"kernels": kernels}
    return errors, seams


def narrow(half, config, weights, sizes) -> tuple[Part, np.ndarray]:
    """Return the forward pass in bfloat16, and its logits in float32, of the same numbers."""
    few = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), weights)
    one = part("forward", half, sizes, weights=few)
    wide = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == jnp.bfloat16 else leaf, one.args
    )
    return one, np.asarray(jax.jit(part("forward", config, sizes).function)(*wide)[0])


def rms_error(logits, truth: np.ndarray) -> float:
    """Return the root mean square of a difference, relative to the truth's."""
    found = logits.cpu().numpy() if torch.is_tensor(logits) else np.asarray(logits)
    return float(np.sqrt(((found - truth) ** 2).mean() / (truth**2).mean()))


def compare_texts(model, temperature: float, num_prompts: int, max_tokens: int) -> dict[str, Any]:
    """Complete the shipped prompts in JAX and lowered, with n-gram drafts; count equal texts."""
    asked = [one["turns"][0] for one in prompts()[:num_prompts]]
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=0)

    def write(device: str) -> list[Sequence[int]]:
        llm = LLM(model, device=device, speculative_config=NGRAM, dtype="float32")
        outputs = llm.generate(asked, params, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs]

    pairs = list(zip(write("cpu"), write("torch-cpu"), strict=True))
    same = sum(ours == theirs for ours, theirs in pairs)
    return {
        "what": f"texts, n-gram drafts, temperature {temperature}", "prompts": len(pairs),
        "tokens": sum(len(ours) for ours, _ in pairs), "equal": same, "passes": same == len(pairs),
    }  # fmt: skip


def on_hardware(half, config, weights) -> dict[str, Any]:
    """Measure the fused forward pass on the Ascend device, or say why that was not run."""
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
    """Write a certificate as a page in Markdown."""
    c = certificate
    found = ", ".join(f"{name} {value or 'not installed'}" for name, value in c["versions"].items())
    lines = [
        f"# Parity certificate: {c['model']}", "",
        f"**{'Passes' if c['passes'] else 'FAILS'}.** {c['says']}.", "", found + ".", "",
        f"Float32, integers equal and numbers within {TOLERANCE} of the largest:", "",
        "| what | plan | largest difference | integers | |", "| --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for row in c["compared"]:
        said = "equal" if row["integers_equal"] else "DIFFER"
        verdict = "passes" if row["passes"] else "FAILS"
        lines.append(
            f"| {row['what']} | {row['plan']} | {row['largest_difference']:.1e} | {said} "
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
    for plan, seams in c["seams"].items():
        left = (
            f"; decomposed: {seams['decomposed']}" if seams["decomposed"] else "; none decomposed"
        )
        lines.append(f"- plan {plan}: {', '.join(seams['kernels'])}{left}")
    hardware = c["hardware"]
    if hardware["run"]:
        errors = hardware["bfloat16_rms_error"].items()
        said = ", ".join(f"{name} {value:.4f}" for name, value in errors)
        lines += ["", f"On hardware, RMS error in bfloat16: {said}."]
    else:
        lines += ["", f"On hardware: not run: {hardware['why']}"]
    return "\n".join(lines) + "\n"

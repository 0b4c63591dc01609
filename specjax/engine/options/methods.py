"""The methods of speculation, and how a draft folder shows which one it is for."""

from pathlib import Path
from typing import Any

from specjax.bundled import BUNDLED
from specjax.engine.options import custom, extraction
from specjax.engine.options.mappings import read_mapping, suggest
from specjax.host.files import read_json_object
from specjax.models.config import HEAD_METHODS
from specjax.weights.speculators import is_speculators, read_facts, read_proposal

MODEL_FREE = ("ngram", "suffix", extraction.METHOD)
METHODS = (*MODEL_FREE, "draft_model", *HEAD_METHODS, custom.METHOD)
SPECULATORS = ("MLPSpeculator", "LSTMSpeculator", "MLPVariantSpeculator")  # the last two: Arctic's
LATER_METHODS = ("ngram_gpu",)  # known by name, refused in this version


def draft_facts(model: str) -> dict[str, Any]:
    """Return a draft folder's config.json in vLLM's layout; empty if there is no such file."""
    folder = Path(BUNDLED.get(model, model))
    return dict(read_facts(folder)) if (folder / "config.json").is_file() else {}


def direct(model: str | Path, given: Any) -> tuple[str | Path, Any]:
    """Return target and speculative_config; of a speculators folder as ``model``, its own.

    Such a folder names its target and its proposal method, and is the draft; what is given
    overrides all but the method (vLLM's rule).

    Raises:
        ValueError: the speculators config lacks them, or the target is not on this machine.
    """
    path = Path(BUNDLED.get(str(model), model)).expanduser() / "config.json"
    raw = read_json_object(path) if path.is_file() else {}
    if not is_speculators(raw):
        return model, given
    proposal = read_proposal(raw)
    target = proposal.verifier
    if target is None or not (target in BUNDLED or Path(target).expanduser().is_dir()):
        named = "no target" if target is None else f"the target {target!r}, which is no folder here"
        raise ValueError(
            f"{path} names {named} (speculators_config.verifier.name_or_path): pass the target "
            "as model, and this folder as speculative_config's model."
        )
    own = {
        "num_speculative_tokens": proposal.num_speculative_tokens,
        **({} if given is None else read_mapping("speculative_config", given)),
        "method": proposal.method,
        "model": str(model),
    }
    return target, own


def drafts_in_parallel(model: str | None) -> bool:
    """Return whether a draft folder is P-EAGLE's in the speculators format, which implies it."""
    path = Path(BUNDLED.get(str(model), str(model))) / "config.json"
    raw = read_json_object(path) if model is not None and path.is_file() else {}
    return is_speculators(raw) and read_proposal(raw).parallel_drafting


def infer_method(model: str) -> str:
    """Return the method of a draft folder: by its config.json, else by its name (vLLM's rule).

    A `model` that is no folder, or whose config.json names no head, is a draft model.
    """
    config = draft_facts(model)
    kind = str(config.get("model_type") or "")
    architectures = " ".join(str(name) for name in config.get("architectures") or ())
    if kind == "medusa" or "Medusa" in architectures:
        return "medusa"
    if kind == "mlp_speculator" or any(word in architectures for word in SPECULATORS):
        return "mlp_speculator"
    if "DSpark" in architectures:
        return "dspark"
    if "DFlash" in architectures:
        return "dflash"
    if kind == "eagle3" or any(word in architectures for word in ("Eagle3", "PEagle", "Peagle")):
        return "eagle3"
    if kind == "eagle" or "Eagle" in architectures:
        return "eagle"
    if kind.endswith("mtp") or "MTP" in architectures or config.get("num_nextn_predict_layers"):
        return "mtp"
    name = Path(model).name.lower()
    for method in ("dflash", "dspark"):
        if method in name:
            return method
    if "eagle3" in name:
        return "eagle3"
    return "eagle" if "eagle-" in name else "draft_model"


def read_n_predict(model: str, method: str | None) -> int | None:
    """Return how many tokens a head was trained to predict; None if its config.json lacks it.

    It is `n_predict`, the number of MTP layers, or DSpark's `block_size`.
    """
    kind = method or infer_method(model)
    key = {"mtp": "num_nextn_predict_layers", "dspark": "block_size"}.get(
        "mtp" if kind.endswith("mtp") else kind, "n_predict"
    )
    value = draft_facts(model).get(key) if kind.endswith(HEAD_METHODS) else None
    return value if isinstance(value, int) and value > 0 else None


def resolve_method(method: str | None, model: str | None) -> str:
    """Return the method of a config: the given one under its current name, else by its model.

    Raises:
        ValueError: there is neither, or the method is unknown or not supported.
    """
    if method is None and model is None:
        raise ValueError(
            "num_speculative_tokens was provided but without speculative model: "
            f"set method to one of {METHODS}, or model to a draft model."
        )
    if method is None:
        method = "ngram" if model in ("ngram", "[ngram]") else infer_method(str(model))
    method = "ngram" if method == "[ngram]" else method
    method = "mtp" if method.endswith("_mtp") else method
    method = "mlp_speculator" if method == "arctic" else method  # its name in Arctic Inference
    if method in LATER_METHODS:
        raise ValueError(
            f"speculative method {method!r} is not in this version of specjax: "
            f"use one of {METHODS}."
        )
    if method not in METHODS:
        nearest = suggest(method, METHODS)
        raise ValueError(f"Unsupported speculative method: {method!r}.{nearest}")
    return method

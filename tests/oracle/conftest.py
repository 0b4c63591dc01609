"""``vllm(name, job)``: the answer of a live vLLM (marked ``oracle``), or the recorded one."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from specjax.bundled import BUNDLED
from specjax.oracle.ask import ask
from specjax.oracle.environment import OracleMissing
from specjax.weights.convert_head import convert_head
from tests.checkpoints import architectures
from tests.checkpoints.cycle import build
from tests.checkpoints.foreign import foreign_draft
from tests.checkpoints.heads import DFLASH_MASK
from tests.oracle import recordings, table

LIVE = pytest.param("live", marks=pytest.mark.oracle)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    """Name every checkpoint that vLLM is asked about: shipped, cycle, architectures, foreign."""
    cycle = build(tmp_path_factory.mktemp("cycle"))
    for kind in ("eagle3", "peagle", "dflash", "dspark"):
        method = "eagle3" if kind == "peagle" else kind
        folder = cycle[kind].parent / f"{kind}_speculators"
        cycle[folder.name] = convert_head(cycle[kind], folder, "speculators", method, None, 3)
    published = cycle["peagle_speculators"]
    back = published.parent / "peagle_converted"
    cycle["peagle_converted"] = convert_head(published, back, "vllm", "eagle3")
    cycle["dflash_mask"] = with_mask_embedding(cycle, back.parent / "dflash_mask")
    foreign = {"foreign": foreign_draft(tmp_path_factory.mktemp("foreign"))}
    tiny = architectures.build(tmp_path_factory.mktemp("architectures"))
    named = {f"cycle/{name}": folder for name, folder in cycle.items()}
    return BUNDLED | foreign | named | {f"tiny/{name}": folder for name, folder in tiny.items()}


def with_mask_embedding(cycle: dict[str, Path], folder: Path) -> Path:
    """Copy the DFlash head, with an embedding of its mask that is not quite the vocabulary's."""
    torch = pytest.importorskip("torch", reason="pip install 'specjax[bridge]'")
    shutil.copytree(cycle["dflash"], folder)
    embeddings = load_file(folder / "model.safetensors")["embed_tokens.weight"]
    noise = np.random.default_rng(0).normal(size=embeddings.shape[1]).astype(np.float32)
    own = torch.from_numpy(embeddings[DFLASH_MASK] + 0.6 * embeddings.std() * noise)
    torch.save({"embedding": own, "mask_token_id": DFLASH_MASK}, folder / "mask_embedding.pt")
    return folder


@pytest.fixture(scope="session")
def answered() -> dict[str, tuple[dict, dict]]:
    """Keep live answers with their jobs, so that tests of one file share them."""
    return {}


@pytest.fixture(params=["recorded", LIVE])
def vllm(request, checkpoints, answered):
    """Return a function from (name, job) to vLLM's answer; its ``live`` says which.

    Jobs name checkpoints as ``checkpoints`` does. ``keep`` reduces an answer to what the test
    needs and a recording can hold. A live answer is recorded with --record.
    """

    def replay(name: str, job: dict, keep: Callable[[dict], dict] | None = None) -> dict:
        answer = recordings.replay(name, job, weights(job, checkpoints))
        request.node.user_properties.append(("repairs", answer["repairs"]))
        return answer

    def live(name: str, job: dict, keep: Callable[[dict], dict] | None = None) -> dict:
        if name not in answered:
            try:
                answer = ask(place(job, checkpoints))
            except OracleMissing as missing:
                pytest.skip(str(missing))
            common = {key: answer[key] for key in ("versions", "repairs", "seconds")}
            answered[name] = job, answer if keep is None else common | keep(answer)
            if request.config.option.record:
                recordings.record(name, job, weights(job, checkpoints), answered[name][1])
        asked, answer = answered[name]
        assert recordings.summary(asked) == recordings.summary(job), f"{name} names two jobs"
        request.node.user_properties.append(("repairs", answer["repairs"]))
        return answer

    replay.live, live.live = False, True
    return live if request.param == "live" else replay


def place(job: dict, checkpoints: dict[str, Path]) -> dict:
    """Replace names of checkpoints by their folders."""

    def folder(value):
        return str(checkpoints[value]) if value in checkpoints else value

    placed, config = json.loads(json.dumps(job, default=str)), job.get("speculative_config")
    if "model" in job:
        placed["model"] = folder(job["model"])
    if config and "model" in config:
        placed["speculative_config"] = {**config, "model": folder(config["model"])}
    return placed


def weights(job: dict, checkpoints: dict[str, Path]) -> dict[str, str]:
    """Return the sha256 of config and weights of every checkpoint a job names."""
    names = {job.get("model"), (job.get("speculative_config") or {}).get("model")}
    return {
        f"{name}/{file}": recordings.digest(checkpoints[name] / file)
        for name in sorted(names & checkpoints.keys())
        for file in ("config.json", "model.safetensors")
    }


@pytest.fixture
def compared(record_property):
    """Return a function that adds a row to a table of comparisons, by the section's name."""

    def add(what: str, peer: str, count: str, result: str, section: str = table.SECTION) -> None:
        record_property("compared", (section, what, peer, count, result))

    return add

"""``python -m tests.server.peer SDIST``: count which of vLLM's own server tests pass, by file.

SDIST is vLLM's source distribution (a .tar.gz, or its folder); nothing of it is kept here. Its
tests run as they are, with vLLM's Python (``specjax oracle install``), against our server or, with
``--server vllm``, against vLLM's: only ``tests/utils.py``, which starts the server, is ours
(``fixture.py``), and every model's name leads to the bundled target, in float32.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import safetensors.flax as flax
from tokenizers import Tokenizer

import specjax.bundled
from specjax.host.environments import cache_folder
from specjax.host.markdown import table
from specjax.oracle.ask import PLUGIN
from specjax.oracle.environment import VARIABLE, interpreter

ROOT = "tests/entrypoints"
FILES = (  # under ROOT: those that start a server for text, without LoRA or a GPU
    "openai/completion/test_completion.py",
    "openai/completion/test_prompt_validation.py",
    "openai/chat_completion/test_chat.py",
    "openai/chat_completion/test_chat_completion.py",
    "openai/chat_completion/test_chat_logit_bias_validation.py",
    "openai/chat_completion/test_chat_echo.py",
    "openai/chat_completion/test_logprob_token_ids.py",
    "openai/chat_completion/test_enable_force_include_usage.py",
    "openai/chat_completion/test_root_path.py",
    "openai/chat_completion/test_completion_with_function_calling.py",
    "openai/test_return_token_ids.py",
    "openai/test_return_tokens_as_ids.py",
    "openai/test_chunked_prompt.py",
    "openai/models/test_models.py",
    "openai/responses/test_basic.py",
    "openai/responses/test_function_call.py",
    "serve/tokenize/test_tokenization.py",
    "serve/instrumentator/test_basic.py",
    "serve/instrumentator/test_metrics.py",
    "serve/instrumentator/test_uds.py",
    "serve/middleware/test_optional_middleware.py",
    "anthropic/test_messages.py",
)
MODELS = (  # names that these tests use
    "facebook/opt-125m", "HuggingFaceH4/zephyr-7b-beta", "Qwen/Qwen2.5-1.5B-Instruct",
    "Qwen/Qwen2-1.5B-Instruct", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-8B",
    "HuggingFaceTB/SmolLM2-135M-Instruct", "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "intfloat/multilingual-e5-small", "openai-community/gpt2",
    "typeof/zephyr-7b-beta-lora", "charent/self_cognition_Alice",
)  # fmt: skip
EXTRA = ("pytest>=8.3,<10", "pytest-asyncio>=1,<2", "tblib>=3,<4")  # beside vLLM's own packages
OUTCOMES = ("passed", "failed", "skipped")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REVISION = "0" * 40
WEIGHTS, EMBEDDING, VOCABULARY = "model.safetensors", "model.embed_tokens.weight", 8192


def unpack(source: Path, place: Path) -> Path:
    """Put a source distribution's tests into a folder, with our fixture; return the folder."""
    if source.is_dir():
        shutil.copytree(source / "tests", place / "tests")
    else:
        with tarfile.open(source) as packed:
            (root,) = {Path(one.name).parts[0] for one in packed.getmembers()}
            wanted = [one for one in packed.getmembers() if one.name.startswith(f"{root}/tests/")]
            packed.extractall(place, wanted, filter="data")
        (place / root / "tests").rename(place / "tests")
    shutil.copy(Path(__file__).with_name("fixture.py"), place / "tests" / "utils.py")
    return place


def lay_out_models(hub: Path) -> Path:
    """Make a hub's cache in which every name is the bundled target; return the model's folder.

    Its vocabulary is filled up to the ids that the tests name, with copies of a byte that no UTF-8
    has, which the model never writes.
    """
    model = hub / "model"
    shutil.copytree(Path(specjax.bundled.__file__).parent / "target", model)
    edit(model / "tokenizer_config.json", chat_template=CHATML)
    edit(model / "config.json", vocab_size=VOCABULARY, max_position_embeddings=16384)
    never = Tokenizer.from_file(str(model / "tokenizer.json")).token_to_id(chr(0xC0))
    tensors = flax.load_file(model / WEIGHTS)
    known = tensors[EMBEDDING]
    more = jnp.tile(known[never], (VOCABULARY - len(known), 1))
    flax.save_file({**tensors, EMBEDDING: jnp.concatenate([known, more])}, model / WEIGHTS)
    for name in MODELS:
        entry = hub / "hub" / f"models--{name.replace('/', '--')}"
        (entry / "refs").mkdir(parents=True)
        (entry / "refs" / "main").write_text(REVISION)
        (entry / "snapshots").mkdir()
        (entry / "snapshots" / REVISION).symlink_to(model)
    return model


def edit(file: Path, **fields: Any) -> None:
    """Set fields of a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def command(server: str, python: Path, model: Path) -> list[str]:
    """Return the command that serves a model; "MODEL" stands for the name that a test uses."""
    named = ["--served-model-name", "MODEL", "--dtype", "float32"]
    if server == "vllm":
        return [str(python.with_name("vllm")), "serve", "MODEL", *named]
    return [sys.executable, "-m", "specjax", "serve", str(model), *named]


def read(report: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (file, test, outcome) of a report in JUnit's format."""
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "passed"
        module = case.get("classname", "").replace(".", "/").removeprefix(f"{ROOT}/")
        yield f"{module}.py", case.get("name", ""), "skipped" if "skipped" in kinds else outcome


def run(place: Path, python: Path, files: Sequence[str], environment: dict[str, str]) -> None:
    """Run test files one after the other, each with a report beside it."""
    reports = place / "reports"
    reports.mkdir()
    for number, file in enumerate(files):
        report = reports / f"{number}.xml"
        subprocess.run(
            [
                *(str(python), "-m", "pytest", f"{ROOT}/{file}", f"--junitxml={report}"),
                *(f"--rootdir={place}", f"--confcutdir={place / ROOT}", "-c", os.devnull),
                *("-k", "not lora and not multimodal", "-p", "no:cacheprovider"),
                *("-p", "tests.utils", "-q", "--tb=short"),
            ],
            cwd=place,
            env=environment,
        )


def counts(found: dict[str, dict[str, str]]) -> list[str]:
    """Return the lines of a table of outcomes by file."""
    rows = []
    for file, outcomes in found.items():
        numbers = [list(outcomes.values()).count(one) for one in OUTCOMES]
        rows.append([file, *map(str, numbers)])
    total = [str(sum(int(row[i]) for row in rows)) for i in (1, 2, 3)]
    return table(["file", *OUTCOMES], [*rows, ["all", *total]])


def main() -> None:
    """Run the tests and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sdist", type=Path, help="vllm-0.32.0.tar.gz, or its folder")
    parser.add_argument("files", nargs="*", default=FILES, help=f"under {ROOT}")
    parser.add_argument("--server", choices=("specjax", "vllm"), default="specjax")
    parser.add_argument("--json", type=Path, help="write every test's outcome here")
    chosen = parser.parse_intermixed_args()
    python = interpreter()
    extra = cache_folder(VARIABLE, "oracle") / "peer-tests"
    if not extra.exists():
        install = [str(python), "-m", "pip", "install", "--quiet", "--target", str(extra)]
        subprocess.run([*install, *EXTRA], check=True)
    with tempfile.TemporaryDirectory() as folder:
        place = unpack(chosen.sdist, Path(folder))
        hub = place / "huggingface"
        hub.mkdir()
        served = command(chosen.server, python, lay_out_models(hub))
        environment: dict[str, Any] = {
            **os.environ,
            "HF_HOME": str(hub),
            "HF_HUB_OFFLINE": "1",
            "PEER": json.dumps(served),
            "PEER_PATH": os.pathsep.join([str(Path(__file__).parents[3]), str(PLUGIN)]),
            "PYTHONPATH": os.pathsep.join([str(place), str(extra), str(PLUGIN)]),
            "VLLM_PLUGINS": "",  # PLUGIN names the package "vllm"; its repairs are not loaded
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": "1",
        }
        run(place, python, chosen.files, environment)
        found: dict[str, dict[str, str]] = {}
        for report in sorted((place / "reports").iterdir(), key=lambda one: int(one.stem)):
            for file, test, outcome in read(report):
                found.setdefault(file, {})[test] = outcome
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(*counts(found), sep="\n")


if __name__ == "__main__":
    main()

"""Prompts of 32,000 tokens are read in chunks, in the memory of caches and a chunk."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specjax.bundled import resolve
from specjax.engine.plan import CHUNKS

# VmHWM, not getrusage: ru_maxrss survives exec, so a child would report pytest's own peak.
CHILD = r"""
import json, pathlib, re, sys
from specjax import LLM, SamplingParams
def peak():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
folder, length, method = sys.argv[1:]
config = {"method": method, "num_speculative_tokens": 3} if method != "plain" else None
llm, length = LLM(folder, speculative_config=config), int(length)
ask = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
def complete(count):
    prompt = [2 + i * i % 1999 for i in range(count)]
    (done,) = llm.generate({"prompt_token_ids": prompt}, ask, use_tqdm=False)
    return done.outputs[0].token_ids
complete(64)
before = peak()
tokens = complete(length)
print(json.dumps({"tokens": list(tokens), "most": peak() - before}))
"""
# of the bundled target: 8 layers of 2 key heads of 64 numbers, keys and values, in bfloat16
PER_TOKEN = 8 * 2 * 64 * 2 * 2
PER_PASS = 400 << 20  # a chunk's masks and activations, further programs, and XLA's compiler


def lengthened(folder, length):
    """The bundled target with a config that allows longer texts."""
    for file in resolve("bundled").iterdir():
        (folder / file.name).symlink_to(file)
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    path.unlink()
    path.write_text(json.dumps(raw | {"max_position_embeddings": length}))
    return folder


def complete(folder, length, method):
    """Complete a prompt of so many tokens in a process of its own."""
    command = [sys.executable, "-c", CHILD, str(folder), str(length), method]
    ran = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("length", [3000, 32000])
def test_a_long_prompt_takes_its_cache_and_a_chunk(length, tmp_path):
    """A cache that grows is there twice; all positions at once would be 60 times a chunk."""
    folder = lengthened(tmp_path, 2 * length)
    found = complete(folder, length, "ngram")
    assert len(found["tokens"]) == 8
    held = PER_TOKEN * 2 ** (length - 1).bit_length()
    print(f"{length} tokens: {found['most'] / 1e6:.0f} MB, of which caches {2 * held / 1e6:.0f}")
    assert found["most"] < 2 * held + PER_PASS
    assert CHUNKS[-1] * 5 < length

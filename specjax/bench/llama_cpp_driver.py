"""Greedy completions by llama.cpp: JSON lines on stdin, answered in JSON lines on stdout.

Run by path under llama.cpp's own interpreter: it imports nothing of specjax. The first line is
``{"model", "threads", "context", "lookup"}``: a Hugging Face folder of a Qwen3 decoder, and
either null or [tokens drafted per round, longest n-gram]. Further lines ask for ``prompts`` of
token ids and ``num_tokens``. Everything llama.cpp prints goes to stderr.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import gguf
import numpy as np
from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

OF_A_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OTHERS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def main() -> int:
    """Load the model, then complete the prompts of each line of stdin."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = json.loads(sys.stdin.readline())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        write_gguf(Path(job["model"]), file)
        lookup = job["lookup"] and LlamaPromptLookupDecoding(
            num_pred_tokens=job["lookup"][0], max_ngram_size=job["lookup"][1]
        )
        llm = Llama(
            str(file),
            n_ctx=job["context"],
            n_threads=job["threads"],
            n_threads_batch=job["threads"],
            draft_model=lookup,
            verbose=False,
        )

    def complete(prompt, num_tokens):
        llm.reset()  # or a prompt that was read before costs nothing
        return list(islice(llm.generate(prompt, temp=0.0), num_tokens))

    def reply(answer):
        print(json.dumps(answer), file=answers, flush=True)

    reply(version("llama-cpp-python"))
    for line in sys.stdin:
        asked, start = json.loads(line), time.perf_counter()
        tokens = [complete(prompt, asked["num_tokens"]) for prompt in asked["prompts"]]
        seconds = time.perf_counter() - start
        reply({"token_ids": tokens, "seconds": seconds, "peak_bytes": peak_bytes()})
    return 0


def peak_bytes():
    """Return this process's peak resident memory; None where it is not available."""
    try:
        status = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    (peak,) = (line.split()[1] for line in status if line.startswith("VmHWM:"))
    return int(peak) * 1024


def write_gguf(folder: Path, file: Path) -> None:
    """Write a Qwen3 checkpoint, its matrices as they are stored; tokens have no text."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(file, "qwen3")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    size = config["vocab_size"]
    writer.add_token_list([f"<{i}>" for i in range(size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * size)
    writer.add_token_merges(["<0> <1>"])  # never used, but there has to be one
    for name, stored, values in tensors(folder / "model.safetensors"):
        if values.ndim == 1:
            writer.add_tensor(named(name), widened(values, stored))
        else:
            raw = gguf.GGMLQuantizationType.BF16 if stored == "BF16" else None
            writer.add_tensor(named(name), values.view(np.uint8) if raw else values, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def named(name: str) -> str:
    """Return llama.cpp's name of a tensor."""
    name = name.removesuffix(".weight")
    if name in OTHERS:
        return OTHERS[name] + ".weight"
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{OF_A_LAYER[rest]}.weight"


def tensors(file: Path) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield (name, how it is stored, values) from a file of safetensors; bfloat16 as uint16."""
    kinds = {"BF16": np.uint16, "F32": np.float32}
    with open(file, "rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
    data = np.memmap(file, np.uint8, "r", offset=8 + length)
    for name, one in header.items():
        if name != "__metadata__":
            start, end = one["data_offsets"]
            yield (
                name,
                one["dtype"],
                data[start:end].view(kinds[one["dtype"]]).reshape(one["shape"]),
            )


def widened(values: np.ndarray, stored: str) -> np.ndarray:
    """Return float32 values."""
    if stored == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values


if __name__ == "__main__":
    sys.exit(main())

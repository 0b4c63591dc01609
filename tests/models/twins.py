"""Drafting heads written again in NumPy, float64, one token at a time, from the papers.

They read a checkpoint's files themselves and share nothing with specjax: no names, no shapes,
no cache, no rotation.
"""

import json
import math
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

erf = np.vectorize(math.erf, otypes=[np.float64])


class Twin:
    """A head's facts and tensors; what it lacks is the target's."""

    def __init__(self, folder: Path, target: Path):
        self.facts, self.own = read(folder)
        _, self.target = read(target)
        self.facts = json.loads((target / "config.json").read_text()) | self.facts

    def get(self, name: str) -> np.ndarray:
        return np.asarray(self.own[name], np.float64)

    def embedding(self) -> np.ndarray:
        return np.asarray(self.target["model.embed_tokens.weight"], np.float64)

    def lm_head(self) -> np.ndarray:
        tied = self.target["model.embed_tokens.weight"]
        return np.asarray(self.target.get("lm_head.weight", tied), np.float64)


def read(folder: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """Return config.json and all tensors."""
    facts = json.loads((folder / "config.json").read_text())
    return facts, load_file(folder / "model.safetensors")


def rms(x: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + epsilon)


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + erf(x / math.sqrt(2))) / 2


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


class Speculator(Twin):
    """The MLP speculator (Wertheimer et al. 2024, arXiv:2404.19124), as fms-extras has it."""

    def stage(self, part: str, index: int, leaf: str = "weight") -> np.ndarray:
        """Return a stage's tensor; of tied stages only what differs is stored."""
        tied = min(index, 1 if part == "proj" else 0)
        names = (f"speculator.{part}.{i}.{leaf}" for i in (index, tied))
        return self.get(next(name for name in names if name in self.own))

    def draft(self, features: np.ndarray, tokens: list[int], depth: int) -> list[int]:
        """Draft from the target's final hidden states [T - 1, D] before each next token."""
        facts, drafted, token = self.facts, [], tokens[-1]
        keep = 0.5 ** (0.5 / facts["n_predict"])
        take = math.sqrt((1 - keep**2) * (facts["inner_dim"] / 2))
        state = features[len(tokens) - 2]
        if facts["scale_input"]:
            state = rms(state, 1e-6) / math.sqrt(2)
        for i in range(depth):
            state = self.stage("proj", i) @ state + take / keep * self.stage("emb", i)[token]
            state = rms(state, 1e-6) * self.stage("ln", i) + self.stage("ln", i, "bias")
            state = gelu(state)
            token = int(np.argmax(self.stage("head", i) @ state))
            drafted.append(token)
        return drafted


class Lstm(Twin):
    """Arctic's LSTM speculator, as ``ArcticLSTMSpeculator.generate_states`` has it."""

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return rms(x, 1e-6) * self.get(f"{name}.0.weight") + self.get(f"{name}.0.bias")

    def draft(self, features: np.ndarray, tokens: list[int], depth: int) -> list[int]:
        """Draft from the target's final hidden states [T - 1, D] before each next token."""
        facts, drafted, token, cell = self.facts, [], tokens[-1], 0.0
        keep = 0.5 ** (0.5 / facts["n_predict"])
        take = math.sqrt((1 - keep**2) * (int(facts["inner_dim"]) / 2)) / keep
        state = rms(features[len(tokens) - 2], 1e-6) / math.sqrt(2)
        for i in range(depth):
            told = take * self.get("forget_emb.0.weight")[token]
            forget, put, show, new = (
                self.get(f"{gate}_proj.{min(i, 1)}.weight") @ state + told
                for gate in ("forget", "input", "output", "cell")
            )
            cell = sigmoid(forget) * cell + sigmoid(put) * gelu(self.norm(new, "cell_ln"))
            state = sigmoid(show) * gelu(self.norm(cell, "state_ln"))
            token = int(np.argmax(self.get("head.0.weight") @ state))
            drafted.append(token)
        return drafted


class Mtp(Twin):
    """MiMo's multi-token prediction layer (arXiv:2505.07608): one Qwen block, used again."""

    def get(self, name: str) -> np.ndarray:
        return super().get(f"model.mtp_layers.0.{name}.weight")

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return rms(x, self.facts["rms_norm_eps"]) * self.get(name)

    def project(self, x: np.ndarray, name: str) -> np.ndarray:
        """Return [positions, heads, head_dim], with bias and norm where there are any."""
        y, path = x @ self.get(f"self_attn.{name}_proj").T, f"model.mtp_layers.0.self_attn.{name}"
        y = y + self.own.get(f"{path}_proj.bias", np.zeros(1)).astype(np.float64)
        size = self.facts.get("head_dim") or len(x[0]) // self.facts["num_attention_heads"]
        y = y.reshape(len(x), -1, size)
        return self.norm(y, f"self_attn.{name}_norm") if f"{path}_norm.weight" in self.own else y

    def rotate(self, x: np.ndarray) -> np.ndarray:
        """Turn pair j of the vector at position n by n * theta ** (-2j / d): complex numbers."""
        count, _, size = x.shape
        speed = self.facts["rope_theta"] ** (-np.arange(0, size, 2) / size)
        turn = np.exp(1j * np.arange(count)[:, None] * speed)[:, None]
        pairs = (x[..., : size // 2] + 1j * x[..., size // 2 :]) * turn
        return np.concatenate([pairs.real, pairs.imag], axis=-1)

    def block(self, x: np.ndarray) -> np.ndarray:
        """Pass all positions through the block, each seeing itself and those before."""
        count, normed = len(x), self.norm(x, "input_layernorm")
        query, key = (self.rotate(self.project(normed, name)) for name in "qk")
        value = self.project(normed, "v")
        each = query.shape[1] // key.shape[1]
        key, value = np.repeat(key, each, axis=1), np.repeat(value, each, axis=1)
        scores = np.einsum("nhd,mhd->hnm", query, key) / math.sqrt(query.shape[2])
        scores = np.where(np.tri(count, dtype=bool), scores, -np.inf)
        probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
        probs /= probs.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hnm,mhd->nhd", probs, value).reshape(count, -1)
        x = x + mixed @ self.get("self_attn.o_proj").T
        normed = self.norm(x, "post_attention_layernorm")
        gate, up = (normed @ self.get(f"mlp.{name}_proj").T for name in ("gate", "up"))
        return x + (gate / (1 + np.exp(-gate)) * up) @ self.get("mlp.down_proj").T

    def draft(self, features: np.ndarray, tokens: list[int], depth: int) -> list[int]:
        """Draft from the target's last layer [T - 1, D], before its final norm.

        Pair i is token i + 1 with the feature of position i; position 0 has no embedding.
        """
        read, features, drafted = list(tokens[1:]), features[: len(tokens) - 1], []
        for _ in range(depth):
            embedding = self.embedding()[read]
            embedding[0] = 0
            pair = [
                self.norm(features, "hidden_layernorm"),
                self.norm(embedding, "token_layernorm"),
            ]
            x = self.block(np.concatenate(pair, axis=-1) @ self.get("input_proj").T)
            last = self.norm(x[-1:], "final_layernorm")
            drafted.append(int(np.argmax(self.lm_head() @ last[0])))
            read.append(drafted[-1])
            features = np.concatenate([features, last])
        return drafted

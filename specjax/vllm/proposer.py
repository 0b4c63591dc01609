"""vLLM's ``custom_class``: it shows the tokens of every row, and takes draft tokens back."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from specjax.core.types import PyTree, Text
from specjax.engine.rows import Host, bucket
from specjax.host.compile_cache import enable_compile_cache
from specjax.vllm import programs
from specjax.vllm.options import build, check_reads_text, read_facts, read_options
from specjax.vllm.rows import Row, Rows

LEAST_WINDOW = 256
WIDTHS = (64, 512)  # tokens that are read in one pass, besides the K + 1 of a round


class Proposer:
    """Draft for vLLM by n-grams, suffixes, a draft model in JAX, or a function of one's own.

    vLLM builds it from ``speculative_config={"method": "custom_class", "model":
    "specjax.vllm.Proposer", "num_speculative_tokens": K}``; ``additional_config={"specjax":
    {...}}`` says what drafts, in the words of specjax's own speculative_config, and ``device``,
    JAX's platform ("cpu" by default). vLLM's scheduler, sampler and counters are as ever: a draft
    never changes its greedy text. Every rank of a tensor parallel group drafts the same.

    Raises:
        ValueError: an option is wrong, or needs more than text (``vllm.options``).
    """

    def __init__(self, vllm_config: Any):
        config, device = read_options(vllm_config)
        if device == "cpu":
            jax.config.update("jax_platforms", "cpu")  # a GPU is vLLM's
        facts = read_facts(vllm_config)
        wanted = build(facts, config, device)
        self.drafter, self._load = wanted.drafter, wanted.load
        self.corpus, self.learns = wanted.corpus, wanted.learns
        self.max_model_len = facts.max_model_len
        self.capacity = facts.max_model_len + self.drafter.room
        self.whole = config.method == "custom_class"  # its state may have the text's capacity
        self.device = jax.devices(None if device == "auto" else device)[0]
        self.rows = Rows(self.capacity)
        self.window, self.state, self.params = 0, (), None
        self.responses: dict[int, int] = {}  # name of a text -> of its response in the corpus
        self.loaded = False

    def load_model(self, *arguments: Any, **options: Any) -> None:
        """Read the drafter's weights; vLLM calls this after its own."""
        enable_compile_cache()
        with jax.default_device(self.device):
            self.params = self._load()
            check_reads_text(self.drafter, self._params())
        self.loaded = True

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: Any = None,
        **rest: Any,
    ) -> list[list[int]]:
        """Return up to K draft tokens for each row of the step.

        Args:
            sampled_token_ids: of each row in this step; none, and it drafts nothing.
            num_tokens_no_spec: the length of each row, these included.
            token_ids_cpu: [rows, max_model_len]; garbage past the length.
            slot_mappings: not read; nor is what later versions of vLLM may add.
        """
        if not self.loaded:
            self.load_model()
        asked = [
            (number, Row(token_ids_cpu[number, : num_tokens_no_spec[number]], len(sampled)))
            for number, sampled in enumerate(sampled_token_ids)
            if len(sampled) and num_tokens_no_spec[number] < self.max_model_len
        ]
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        if asked:
            with jax.default_device(self.device):
                found = self._draft([row for _, row in asked])
            for (number, row), tokens in zip(asked, found, strict=True):
                drafts[number] = tokens[: self.max_model_len - len(row.tokens)]
        return drafts

    def _draft(self, rows: Sequence[Row]) -> list[list[int]]:
        placed = self.rows.place(rows)
        self._learn(rows, placed.slots, placed.dropped)
        self._fit(placed.kept, placed.fresh)
        known, drafter, params = self.rows, self.drafter, self._params()
        width, size = drafter.depth + 1, len(known.lengths)
        while (left := known.lengths - known.read).max() > width:
            wide = next((one for one in WIDTHS if one >= left.max()), WIDTHS[-1])
            count = np.minimum(left, wide)
            unread = self._unread(count)
            self.state = programs.read(drafter, params, self.state, unread, wide, self.window)
            known.read = known.read + count  # a new array: the program may read the old one late
        unread, constants = self._unread(left), programs.constants(size, drafter.depth)
        tokens, real, self.state = programs.draft(
            drafter, params, self.state, unread, width, *constants, self.window
        )
        known.read = known.lengths.copy()
        tokens, count = np.asarray(tokens), np.asarray(real).sum(axis=1)
        return [tokens[slot, : count[slot]].tolist() for slot in placed.slots]

    def _unread(self, count: Host) -> programs.Unread:
        """Return the rows' texts, and how many tokens of each to read now."""
        known, size = self.rows, len(self.rows.lengths)
        width = self.capacity if self.whole else self.window
        lengths: Host = np.maximum(known.lengths, 1)
        limits: Host = np.full(size, self.max_model_len, np.int32)
        tokens: Host = known.tokens[:, :width].copy()  # the program may read it late
        starts: Host = known.starts.copy()
        reason: Host = np.zeros(size, np.int32)
        read: Host = known.read
        return programs.Unread(Text(tokens, starts, lengths, limits, reason), read, count)

    def _params(self) -> PyTree:
        return self.params if self.corpus is None else self.corpus.index

    def _fit(self, kept: np.ndarray | None, fresh: Sequence[int]) -> None:
        """Give the state its number of rows and the window, and begin the rows that are new."""
        longest = int(self.rows.lengths.max()) + self.drafter.room
        window = min(bucket(longest, LEAST_WINDOW), self.capacity)
        facts = self.drafter, self._params()
        if not self.window:
            size = len(self.rows.lengths)
            self.state = programs.begin(*facts, size, self.capacity, window)
            self.window = window
            return
        if kept is not None:
            self.state = programs.select(self.state, kept)
        if window != self.window:
            self.state, self.window = programs.refit(self.state, window), window
        if fresh and jax.tree.leaves(self.state):
            row = programs.begin(*facts, 1, self.capacity, window)
            for slot in fresh:
                self.state = programs.begin_row(self.state, slot, row)

    def _learn(self, rows: Sequence[Row], slots: Sequence[int], dropped: Sequence[int]) -> None:
        """Add the sampled tokens to the responses that suffixes are drafted from."""
        if self.corpus is None or not self.learns:
            return
        for name in dropped:
            self.corpus.finish(self.responses.pop(name))
        for row, slot in zip(rows, slots, strict=True):
            name = int(self.rows.names[slot])
            if name not in self.responses:
                self.responses[name] = self.corpus.start()
            self.corpus.extend(self.responses[name], row.tokens[-row.num_new :].tolist())

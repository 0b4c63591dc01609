"""Grammars of structured output: compiled, and followed along texts and drafts (llguidance).

A grammar's state is that of the committed text. Along a draft's path it advances and comes back:
what is not committed never stays. EOS is never fed to it: whether it may come is whether the
grammar accepts what there is, and after it comes nothing else.
"""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax.engine.options.structured_outputs import StructuredOutputsParams
from specjax.engine.text.tokenizer import Tokenizer

MOST_COMPILED = 128  # grammars that are kept, so that equal requests compile once
MOST_SHOWN = 500  # characters of an error of the library
WORD = 32  # tokens per word of a mask
EVERYTHING = -1  # a word of a mask that allows all of its tokens


class Nodes(NamedTuple):
    """One row of a draft, on the host."""

    tokens: np.ndarray  # [N]
    parents: np.ndarray  # [N]
    valid: np.ndarray  # [N]

    def children(self, node: int) -> Iterator[int]:
        """Yield the valid nodes after a node."""
        for child in range(node + 1, len(self.tokens)):
            if self.valid[child] and self.parents[child] == node:
                yield child


class GrammarState:
    """How far a text has come in its grammar, and which tokens may come next."""

    def __init__(self, matcher: Any, eos_ids: tuple[int, ...]):
        self._matcher, self._eos_ids = matcher, eos_ids
        self._num_committed = 0
        self._num_past_end = 0  # EOS tokens

    @property
    def error(self) -> str:
        """Return why the grammar cannot go on, by a limit of the library; "" if it can."""
        return shorten(self._matcher.get_error()) if self._matcher.is_error() else ""

    def follow(self, tokens: Sequence[int]) -> None:
        """Advance to the end of the committed output, of which a prefix has been followed."""
        for token in tokens[self._num_committed :]:
            self._enter(token)
        self._num_committed = len(tokens)

    def cut(self, nodes: Nodes, most_forced: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return a draft's tokens [N] and which of its nodes [N] the grammar allows.

        Where a chain ends or is cut, tokens that the grammar forces take the place of what
        followed, down to the depth ``most_forced``.
        """
        tokens, allowed = nodes.tokens.copy(), np.zeros(len(nodes.tokens), bool)

        def mark(node: int) -> None:
            allowed[node] = True

        depth = self._visit(nodes, mark)
        if most_forced > depth:
            forced = self._forced()[: most_forced - depth]
            tokens[depth + 1 : depth + 1 + len(forced)] = forced
            allowed[depth + 1 : depth + 1 + len(forced)] = True
        self._leave(depth)
        return tokens, allowed

    def masks(self, nodes: Nodes, words: np.ndarray) -> None:
        """Write to ``words`` [N, M] which tokens may follow each node; all nodes are allowed."""
        self._leave(self._visit(nodes, lambda node: self._mask(words[node])))

    def _visit(self, nodes: Nodes, visit: Callable[[int], None]) -> int:
        """Call ``visit`` at each allowed node, with the state there; return how deep it ends.

        It goes back only where it takes another branch: of a chain not at all.
        """
        entered = 0

        def descend(node: int, depth: int) -> None:
            nonlocal entered
            visit(node)
            for child in nodes.children(node):
                self._leave(entered - depth)
                entered = depth
                if self._enter(int(nodes.tokens[child])):
                    entered += 1
                    descend(child, depth + 1)

        descend(0, 0)
        return entered

    def _mask(self, words: np.ndarray) -> None:
        if self._num_past_end or self._matcher.is_error():
            words[:] = 0
            for token in self._eos_ids:
                words[token // WORD] |= np.uint32(1 << token % WORD).view(np.int32)
            return
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)

    def _enter(self, token: int) -> bool:
        """Advance by a token, if it is allowed; return whether it is."""
        if token in self._eos_ids:
            allowed = self._num_past_end > 0 or self._matcher.is_accepting()
            self._num_past_end += allowed
            return allowed
        return not self._num_past_end and self._matcher.try_consume_tokens([token]) == 1

    def _leave(self, count: int) -> None:
        """Go back by the tokens that were entered last."""
        past_end = min(count, self._num_past_end)
        self._num_past_end -= past_end
        if count > past_end:
            self._matcher.rollback(count - past_end)

    def _forced(self) -> list[int]:
        """Return the tokens that must come next, as far as the grammar leaves no choice."""
        if self._num_past_end:
            return []
        return self._matcher.compute_ff_tokens() or (
            [self._eos_ids[0]] if self._matcher.is_stopped() else []
        )


class Grammar:
    """A compiled grammar; every text has a state of its own."""

    def __init__(self, matcher: Any, eos_ids: tuple[int, ...]):
        self._matcher, self._eos_ids = matcher, eos_ids

    def start(self) -> GrammarState:
        """Return the state of an empty text."""
        return GrammarState(self._matcher.deep_copy(), self._eos_ids)


class GrammarCompiler:
    """Compiles grammars for one tokenizer, and keeps the last ones. From any thread.

    Args:
        tokenizer: the target's.
        eos_ids: the tokens that end a text.
        vocab_size: of the model, which may have more tokens than the tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer, eos_ids: tuple[int, ...], vocab_size: int):
        self._tokenizer, self._eos_ids, self._vocab_size = tokenizer, eos_ids, vocab_size
        self._vocabulary: Any = None  # the library's tokenizer, made for the first grammar
        self._compiled: OrderedDict[str, Grammar] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        """Return the grammar of structured outputs.

        Raises:
            ValueError: it cannot be compiled, the model has no EOS, or llguidance is not installed.
        """
        key = params.key()
        with self._lock:
            found = self._compiled.get(key)
        if found is None:  # outside the lock: it may take a second
            found = Grammar(self._new_matcher(params), self._eos_ids)
        with self._lock:
            self._compiled[key] = found
            self._compiled.move_to_end(key)
            while len(self._compiled) > MOST_COMPILED:
                self._compiled.popitem(last=False)
        return found

    def _new_matcher(self, params: StructuredOutputsParams) -> Any:
        library = load_library()
        if not self._eos_ids:
            raise ValueError("structured_outputs needs a model with an EOS token: this has none.")
        try:
            source = source_of(library, params)
        except ValueError as error:
            raise ValueError(f"{params.kind} cannot be compiled: {shorten(str(error))}") from None
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = library.LLTokenizer(
                    self._tokenizer.backend.to_str(),
                    n_vocab=self._vocab_size,
                    eos_token=list(self._eos_ids),
                )
        limits = library.LLParserLimits(verbose_errors=False)
        matcher = library.LLMatcher(self._vocabulary, source, log_level=0, limits=limits)
        if matcher.is_error():
            raise ValueError(f"{params.kind} cannot be compiled: {shorten(matcher.get_error())}")
        if not self._allows_a_token(matcher.deep_copy()):
            raise ValueError(f"{params.kind} allows no text at all, not even an empty one.")
        return matcher

    def _allows_a_token(self, matcher: Any) -> bool:
        """Return whether any text of the grammar, the empty one too, has a beginning."""
        words = np.zeros(num_words(self._vocab_size), np.int32)
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        return not matcher.is_error() and bool(words.any())


def load_library() -> Any:
    """Return the module llguidance. Raises ValueError where it is not installed."""
    try:
        import llguidance
    except ModuleNotFoundError:
        raise ValueError(
            "structured_outputs needs llguidance: pip install 'specjax[structured]'."
        ) from None
    return llguidance


def source_of(library: Any, params: StructuredOutputsParams) -> str:
    """Return a grammar in the library's own language.

    Raises:
        ValueError: the schema is no JSON object.
    """
    matcher = library.LLMatcher
    if params.regex is not None:
        return matcher.grammar_from_regex(params.regex)
    if params.choice is not None:
        return matcher.grammar_from_regex("|".join(map(re.escape, params.choice)))
    if params.grammar is not None:
        return library.grammar_from("grammar", params.grammar)
    schema = {"type": "object"} if params.json is None else params.json
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the schema is no JSON: {error}") from None
    if not isinstance(schema, dict | bool):
        raise ValueError(f"a schema is an object, got {schema!r}.")
    if params.disable_additional_properties:
        schema = close_objects(schema)
    options = {"whitespace_flexible": not params.disable_any_whitespace}
    if params.whitespace_pattern is not None:
        options["whitespace_pattern"] = params.whitespace_pattern  # pyright: ignore
    return matcher.grammar_from_json_schema(json.dumps(schema), overrides=options)


def close_objects(schema: Any) -> Any:
    """Return a schema whose objects have no properties but those that it names."""
    if isinstance(schema, list):
        return [close_objects(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: close_objects(value) for name, value in schema.items()}
    if "properties" in schema and "additionalProperties" not in schema:
        closed["additionalProperties"] = False
    return closed


def num_words(vocab_size: int) -> int:
    """Return M, how many words the mask of a vocabulary has."""
    return -(-vocab_size // WORD)


def shorten(message: str) -> str:
    """Return the beginning of a message of the library."""
    message = " ".join(message.split())
    return message if len(message) <= MOST_SHOWN else message[:MOST_SHOWN] + " ..."

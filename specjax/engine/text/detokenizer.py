"""Turn a stream of token ids into text, and find stop strings in it."""

import functools
from collections.abc import Sequence

import tokenizers

from specjax.engine.text.tokenizer import Tokenizer

BROKEN = "\ufffd"  # what an incomplete UTF-8 sequence decodes to


class Detokenizer:
    """Turns a stream of token ids into text, without ever emitting half a character.

    The invariant: what `push` returned plus `flush` is the text that ``prompt_ids`` + the pushed
    ids have beyond ``prompt_ids``; without a prompt it is `Tokenizer.decode` of the pushed ids.
    Only a window of the last few ids is decoded, beginning with ids that have been emitted, so
    that a leading space belongs to its word. SentencePiece byte tokens that turn a run of valid
    characters into an invalid one leave those characters as they are, where `decode` gives U+FFFD
    for every byte.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
    ):
        self._decode = functools.partial(tokenizer.decode, skip_special_tokens=False)
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._known = functools.partial(_is_known, tokenizer.backend)
        tail = [i for i in prompt_ids[-64:] if i not in self._skipped and self._known(i)]
        starts = (tail[-length:] for length in range(min(6, len(tail)), len(tail) + 1) if length)
        clean = (ids for ids in starts if not self._decode(ids).startswith(BROKEN))
        self._window = next(clean, [])  # the end of the prompt, from the start of a character
        self._context = len(self._window)  # ids of the window that have been emitted completely
        self._head = self._decode(self._window)  # their text
        self._sent = len(self._head.rstrip(BROKEN))  # characters of it that have been emitted

    def push(self, token_id: int) -> str:
        """Take one more token id and return the text it completes, possibly none."""
        if token_id in self._skipped or not self._known(token_id):
            return ""
        self._window.append(token_id)
        text = self._text()
        whole = text.rstrip(BROKEN)
        delta = whole[self._sent :]
        self._sent = max(self._sent, len(whole))
        if whole == text:
            self._window = self._window[self._context :]
            self._context = len(self._window)
            self._head = self._decode(self._window)
            self._sent = len(self._head)
        return delta

    def flush(self) -> str:
        """Return the text held back, U+FFFD for a character that was never completed."""
        text = self._text()
        delta, self._sent = text[self._sent :], len(text)
        return delta

    def _text(self) -> str:
        text = self._decode(self._window)
        if text.startswith(self._head.rstrip(BROKEN)):
            return text
        return self._head + self._decode(self._window[self._context :])


class StopChecker:
    """Finds stop strings in streamed text, and holds back the start of a possible one.

    The match that ends first wins, and the longest of those: the result depends on the text
    only, not on how tokens cut it. A stop string counts if it is completed by a token after the
    first ``min_tokens`` (vLLM's rule). ``hit`` is the string found; ``num_tokens`` counts the
    tokens up to the one that completed it, where the ids are to be cut.
    """

    def __init__(
        self,
        stop: Sequence[str],
        include_stop_str_in_output: bool = False,
        min_tokens: int = 0,
    ):
        self._stop = tuple(stop)
        self._include = include_stop_str_in_output
        self._min_tokens = min_tokens
        self._held = ""  # text not emitted yet; a suffix of the text
        self._seen = ""  # the end of the text, as far as a match can reach back
        self.num_tokens = 0
        self.hit: str | None = None

    def push(self, text: str) -> str:
        """Take the text of one more token ("" counts) and return what can be emitted."""
        if self.hit is not None:
            return ""
        self.num_tokens += 1
        return self._take(text)

    def flush(self, text: str = "") -> str:
        """Take the last token's late text (`Detokenizer.flush`) and return all that is held."""
        if self.hit is not None:
            return ""
        released = self._take(text)
        released, self._held = released + self._held, ""
        return released

    def _take(self, text: str) -> str:
        base = len(self._seen)
        self._seen, self._held = self._seen + text, self._held + text
        offset = len(self._seen) - len(self._held)  # where the held text starts
        matches = []
        for stop in self._stop if self.num_tokens > self._min_tokens else ():
            start = self._seen.find(stop, max(0, base - len(stop) + 1))
            if start >= 0:
                matches.append((start + len(stop), start, stop))
        if matches:
            end, start, self.hit = min(matches)
            cut = end if self._include else start
            released, self._held = self._held[: max(0, cut - offset)], ""
            return released
        keep = 0 if self._include else self._possible_start()
        split = len(self._held) - keep
        released, self._held = self._held[:split], self._held[split:]
        reach = max((len(stop) for stop in self._stop), default=0)
        self._seen = self._seen[max(0, len(self._seen) - reach) :]
        return released

    def _possible_start(self) -> int:
        """Return the length of the longest end of the held text that starts a stop string."""
        for length in range(min(len(self._held), max(map(len, self._stop), default=0)), 0, -1):
            end = self._held[-length:]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stop):
                return length
        return 0


def _is_known(backend: tokenizers.Tokenizer, token_id: int) -> bool:
    return backend.id_to_token(token_id) is not None

"""Print a streamed completion, tokens coloured by origin: accepted, recovered or bonus."""

from collections import deque

from rich.console import Console
from rich.text import Text

from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.request_state import RequestState
from specjax.engine.text.detokenizer import Detokenizer

ACCEPTED, OWN, FIRST = "bold green", "yellow", ""
LEGEND = (
    ("accepted draft token", ACCEPTED),
    ("the target's own token (recovered or bonus)", OWN),
)


def show(
    llm: LLM, prompt: str, sampling: SamplingParams, console: Console, *, with_prompt: bool = True
) -> RequestState:
    """Print one completion round by round and return its final state.

    On a terminal the prompt comes first, dim, and tokens have colours; elsewhere the
    completion is printed alone.
    """
    if with_prompt and console.is_terminal:
        console.print(Text(prompt, style="dim"), end="", soft_wrap=True)
    request_state, painter = None, None
    for request_state, transcript in llm.stream(prompt, sampling):
        if painter is None:
            painter = Painter(Detokenizer(llm.get_tokenizer(), request_state.request.prompt))
        for words, style in painter.paint(request_state, transcript.text):
            if console.is_terminal:
                console.print(Text(words, style=style), end="", soft_wrap=True)
            else:  # as it is: rich would expand tabs and drop control characters
                console.file.write(words)
                console.file.flush()
    console.print()
    assert request_state is not None  # a request yields at least its first token
    return request_state


def legend() -> Text:
    """Return a legend of the colours."""
    return Text("  ").join(Text(what, style=style) for what, style in LEGEND)


class Painter:
    """Split a growing text into pieces of one style each.

    The transcript decides which text can be shown, without incomplete characters and possible stop
    strings; this class only finds the token behind each character.
    """

    def __init__(self, detokenizer: Detokenizer):
        self._detokenizer = detokenizer
        self._waiting: deque[tuple[str, str]] = deque()  # pieces of text not shown yet
        self._num_rounds = self._num_shown = 0
        self._style = FIRST

    def paint(self, request_state: RequestState, text: str) -> list[tuple[str, str]]:
        """Return the new pieces of ``text``, with their styles."""
        for number in range(self._num_rounds, len(request_state.rounds)):
            one = request_state.rounds[number]
            for i, token in enumerate(one.tokens):
                style = ACCEPTED if i < one.num_accepted else OWN if number else FIRST
                self._waiting.append((self._detokenizer.push(token), style))
        self._num_rounds = len(request_state.rounds)
        fresh, pieces = text[self._num_shown :], []
        self._num_shown = len(text)
        while fresh and self._waiting:
            piece, self._style = self._waiting.popleft()
            taken, fresh = fresh[: len(piece)], fresh[len(piece) :]
            if len(taken) < len(piece):  # the rest is held back
                self._waiting.appendleft((piece[len(taken) :], self._style))
            pieces.append((taken, self._style))
        if fresh:  # the end of a broken character
            pieces.append((fresh, self._style))
        return pieces

"""What a request has said so far, as text; and whether it has said a stop string."""

from specjax.engine.detokenizer import Detokenizer, StopChecker
from specjax.engine.rounds import Progress
from specjax.engine.tokenizer import Tokenizer


class Transcript:
    """Follow one request's tokens: its text grows, and a stop string ends it."""

    def __init__(self, tokenizer: Tokenizer, progress: Progress, eos_ids: tuple[int, ...]):
        params = progress.request.params
        self._detokenizer = Detokenizer(
            tokenizer, progress.request.prompt, params.skip_special_tokens
        )
        self._stops = StopChecker(
            params.stop or (), params.include_stop_str_in_output, params.min_tokens
        )
        self._params = params
        self._eos = () if params.ignore_eos else eos_ids
        self._num_read = 0
        self.text = ""
        self.stop_reason: int | str | None = None

    def follow(self, progress: Progress) -> int | None:
        """Read the new tokens; return how many to keep if a stop string has completed.

        The text of a stop token is left out, as in vLLM, unless the request includes it.
        """
        if not self._params.detokenize:
            self._note_stop_token(progress)
            return None
        tokens = progress.tokens
        stopped = progress.finish_reason == "stop"
        silent = stopped and not self._params.include_stop_str_in_output
        for token in tokens[self._num_read : len(tokens) - silent]:
            self.text += self._stops.push(self._detokenizer.push(token))
            if self._stops.hit is not None:
                self.stop_reason = self._stops.hit
                return self._stops.num_tokens
        self._num_read = len(tokens)
        self._note_stop_token(progress)
        if progress.finish_reason is not None:
            self.text += self._stops.flush(self._detokenizer.flush())
            if self._stops.hit is not None:
                self.stop_reason = self._stops.hit
                return self._stops.num_tokens
        return None

    def _note_stop_token(self, progress: Progress) -> None:
        if progress.finish_reason == "stop" and progress.tokens[-1] not in self._eos:
            self.stop_reason = progress.tokens[-1]

"""The text of a request so far, and whether a stop string has ended it."""

from specjax.engine.request_state import RequestState
from specjax.engine.text.detokenizer import Detokenizer, StopChecker
from specjax.engine.text.tokenizer import Tokenizer


class Transcript:
    """Turns one request's tokens into text as they come, and finds stop strings in it."""

    def __init__(self, tokenizer: Tokenizer, request_state: RequestState, eos_ids: tuple[int, ...]):
        params = request_state.request.params
        self._detokenizer = Detokenizer(
            tokenizer, request_state.request.prompt, params.skip_special_tokens
        )
        self._stops = StopChecker(
            params.stop or (), params.include_stop_str_in_output, params.min_tokens
        )
        self._params = params
        self._eos = () if params.ignore_eos else eos_ids
        self._num_read = 0
        self.text = ""
        self.stop_reason: int | str | None = None

    def follow(self, request_state: RequestState) -> int | None:
        """Take the new tokens; return how many to keep if a stop string is complete, else None.

        The text of a stop token is left out, as in vLLM, unless the request includes it.
        """
        if not self._params.detokenize:
            self._set_stop_token(request_state)
            return None
        tokens = request_state.tokens
        stopped = request_state.finish_reason == "stop"
        silent = stopped and not self._params.include_stop_str_in_output
        for token in tokens[self._num_read : len(tokens) - silent]:
            self.text += self._stops.push(self._detokenizer.push(token))
            if self._stops.hit is not None:
                self.stop_reason = self._stops.hit
                return self._stops.num_tokens
        self._num_read = len(tokens)
        self._set_stop_token(request_state)
        if request_state.finish_reason is not None:
            self.text += self._stops.flush(self._detokenizer.flush())
            if self._stops.hit is not None:
                self.stop_reason = self._stops.hit
                return self._stops.num_tokens
        return None

    def _set_stop_token(self, request_state: RequestState) -> None:
        if request_state.finish_reason == "stop" and request_state.tokens[-1] not in self._eos:
            self.stop_reason = request_state.tokens[-1]

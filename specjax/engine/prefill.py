"""``Prefill``: the prompts that are being read, chunk by chunk, apart from the decoding rows."""

from collections.abc import Sequence
from typing import Any

from specjax.core.types import Params, State
from specjax.engine import masked_round, rows
from specjax.engine.prefix_cache import Prefix, PrefixCache
from specjax.engine.programs import Programs
from specjax.engine.request_state import RequestState


class Prefill:
    """A group of requests that are prefilled in one pass, and the state of their rows.

    Attributes:
        group: the request of each row.
        num_prefilled: the number of prompt positions that have been prefilled, of each.

    Args:
        prefixes: knows the beginnings of prompts; None: all are read.
    """

    def __init__(self, programs: Programs, prefixes: PrefixCache | None = None):
        self._programs, self._prefixes = programs, prefixes
        self._known: tuple[RequestState, Prefix | None] | None = None  # of the next prompt
        self.state: State | None = None
        self.group: list[RequestState] = []
        self.num_prefilled = 0

    def next_chunk(self, prefilling: Sequence[RequestState]) -> int:
        """Return how many positions of the prompts to prefill next."""
        plan = self._programs.plan
        if self.state is None:
            self._look_up(prefilling)
        left = max(len(one.request.prompt) for one in prefilling) - self.num_prefilled
        if len(prefilling) > 1:
            return plan.group_shape(len(prefilling), left)[1]
        return plan.next_chunk(left, is_scored(prefilling[0]))

    def _look_up(self, prefilling: Sequence[RequestState]) -> None:
        """Begin after what is known of a prompt that is read alone."""
        first = prefilling[0]
        if self._prefixes is None or len(prefilling) > 1 or is_scored(first):
            return
        if self._known is None or self._known[0] is not first:
            self._known = first, self._prefixes.find(first.request)
        prefix = self._known[1]
        self.num_prefilled = first.num_cached = 0 if prefix is None else prefix.length

    def keep(self, request_state: RequestState, row: State, *, donated: bool) -> None:
        """Keep what was read of a prompt; ``donated``: its row will be overwritten."""
        if self._prefixes is None:
            return
        if self._prefixes.add(request_state.request, row, donated=donated):
            request_state.num_stored = len(request_state.request.prompt) - request_state.num_cached

    def run(self, params: Params, chunk: int, prefilling: Sequence[RequestState]) -> list[Any]:
        """Start the prefill of the next chunk; return [infos, prompt logprobs] on the device.

        ``prefilling`` is the group to begin with, if none has begun.
        """
        programs, plan, start = self._programs, self._programs.plan, self.num_prefilled
        state = self.state
        if state is None:
            self.group = list(prefilling)
        group = self.group
        ever = max(one.request.limit for one in group) + programs.engine.drafter.room
        window = plan.window(start + chunk + 1, ever)
        if state is None:
            shape = plan.prefill_tier.layout, plan.capacity
            laid_out = [rows.row(one.request, *shape) for one in group]
            if len(group) > 1:
                spare = plan.group_shape(len(group), chunk)[0] - len(group)
                laid_out += [rows.idle_row(*shape)] * spare
            text, sampling, keys = rows.concatenate(laid_out)
            mask = masked_round.first_masks(group, len(laid_out), programs.vocab_size)
            state = programs.new_state((text, sampling._replace(mask=mask), keys), window)
            state = self._resumed(state)
        state = programs.driver.fit(state, window)
        engine = programs.prefill_engine(window, plan.scores_all or is_scored(group[0]))
        self.state, *results = programs.driver.prefill(engine, params, state, start, chunk)
        self.num_prefilled = start + chunk
        return results

    def _resumed(self, state: State) -> State:
        """Return a new state with the positions that have been read before."""
        prefix = self._known[1] if self._known and self._known[0] is self.group[0] else None
        resume, self._known = self._programs.driver.resume, None
        if prefix is None or resume is None or len(self.group) > 1:
            return state
        return resume(state, prefix.slots, prefix.length)

    def clear(self) -> None:
        """Forget the state, so that the next group begins."""
        self.state, self.num_prefilled = None, 0


def is_scored(request_state: RequestState) -> bool:
    """Return whether a request wants its prompt's log probabilities."""
    return request_state.request.params.prompt_logprobs is not None

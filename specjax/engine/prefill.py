"""``Prefill``: the prompts that are being read, chunk by chunk, apart from the decoding rows."""

from collections.abc import Sequence
from typing import Any

from specjax.core.types import Params, State
from specjax.engine import masked_round, rows
from specjax.engine.programs import Programs
from specjax.engine.request_state import RequestState


class Prefill:
    """A group of requests that are prefilled in one pass, and the state of their rows.

    Attributes:
        group: the request of each row.
        num_prefilled: the number of prompt positions that have been prefilled, of each.
    """

    def __init__(self, programs: Programs):
        self._programs = programs
        self.state: State | None = None
        self.group: list[RequestState] = []
        self.num_prefilled = 0

    def next_chunk(self, prefilling: Sequence[RequestState]) -> int:
        """Return how many positions of the prompts to prefill next."""
        plan = self._programs.plan
        left = max(len(one.request.prompt) for one in prefilling) - self.num_prefilled
        if len(prefilling) > 1:
            return plan.group_shape(len(prefilling), left)[1]
        return plan.next_chunk(left, is_scored(prefilling[0]))

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
        state = programs.driver.fit(state, window)
        engine = programs.prefill_engine(window, is_scored(group[0]))
        self.state, *results = programs.driver.prefill(engine, params, state, start, chunk)
        self.num_prefilled = start + chunk
        return results

    def clear(self) -> None:
        """Forget the state, so that the next group begins."""
        self.state, self.num_prefilled = None, 0


def is_scored(request_state: RequestState) -> bool:
    """Return whether a request wants its prompt's log probabilities."""
    return request_state.request.params.prompt_logprobs is not None

"""What to change on a server: K by batch size, only as far as measurements or a roofline know."""

from typing import NamedTuple

from specjax.readers.observation import Observation
from specjax.theory.modelled import ModelledServer, advise
from specjax.traces.causes import depth
from specjax.traces.gain import Gain


class ServerAdvice(NamedTuple):
    """A schedule, None where nothing is known, and sentences."""

    schedule: list[list[int]] | None  # num_speculative_tokens_per_batch_size
    says: tuple[str, ...]


def advise_server(seen: Observation, gain: Gain, server: ModelledServer | None) -> ServerAdvice:
    """Return what is known about K at this load and others.

    At this load a measured speedup decides; elsewhere the roofline, where K changes only if the
    change pays at every bound of its assumptions.
    """
    says = []
    if gain.speedup is not None and gain.speedup.high < 1:
        says.append(
            "At this load plain decoding (K = 0) is measured to be faster: switch speculation off "
            "here, or draft less."
        )
    k, rates = depth(seen), seen.acceptance_per_position
    if server is None or k is None or rates is None:
        missing = (
            "no --hardware and --model"
            if server is None
            else f"acceptance by position is unknown ({seen.why('acceptance_per_position')})"
        )
        says.append(
            f"No schedule: {missing}. Measure K and plain decoding at batch sizes up to your "
            "largest load: specjax ab run --concurrency 1,8,32,128 --arm plain=url:... --arm ..."
        )
        return ServerAdvice(None, tuple(says))
    share = 1.0  # of the rounds that had a draft
    if gain.tokens_per_round is not None and seen.mean_acceptance_length:
        accepted = float(seen.mean_acceptance_length) - 1.0
        share = (gain.tokens_per_round - 1.0) / accepted if accepted > 0 else 1.0

    def tokens(n: int) -> float:
        return 1.0 + share * float(sum(rates[:n]))

    found = advise(server, tokens, k)
    for (first, last, best), one in zip(found.schedule, found.gains, strict=True):
        which = f"batch {first} to {last}: K = {best}"
        if best == k:
            says.append(f"{which}, as now: no other K is better at every bound.")
        else:
            says.append(f"{which}, {one.low:.2f}x to {one.high:.2f}x of K = {k} at batch {last}.")
    says.append(
        f"Modelled up to batch {found.schedule[-1][1]}, which fits into memory; nothing is said "
        f"of K > {k}, whose acceptance was not seen."
    )
    return ServerAdvice(found.schedule, tuple(says))

"""Replay a benchmark's table in the serving simulator: every row, plain and speculative."""

from collections.abc import Sequence
from typing import NamedTuple

from specjax.simulate.calibrate import fit_costs
from specjax.simulate.metrics import Metrics, measure
from specjax.simulate.policy import fixed_k, off_above
from specjax.simulate.serving import Costs, serving
from specjax.simulate.workload import closed_loop
from specjax.theory.arrays import Scalar
from specjax.theory.lengths import alpha_from_ratio
from specjax.theory.published import SUFFIX_BENCHMARK, BenchmarkRow

K = 3  # num_speculative_tokens of the guide's benchmark


class Replayed(NamedTuple):
    """A row of the table, and the simulator's two runs of it."""

    row: BenchmarkRow
    plain: Metrics
    spec: Metrics

    @property
    def tpot_gain(self) -> float:
        """Plain TPOT / speculative TPOT."""
        return float(self.plain.tpot_request_mean_s / self.spec.tpot_request_mean_s)

    @property
    def tps_gain(self) -> float:
        """Speculative TPS / plain TPS."""
        return float(self.spec.tps / self.plain.tps)


def replay(
    rows: Sequence[BenchmarkRow] = SUFFIX_BENCHMARK,
    costs: Costs | None = None,
    drafted: Scalar | None = None,
    *,
    most_requests: int | None = None,
    output_cv: Scalar = 0.5,
    seed: int = 0,
) -> list[Replayed]:
    """Return the simulator's runs of each row's closed loop, plain and speculative.

    A step drafts all K = 3 tokens or, where nothing matches, none; as many on average as
    ``drafted``. alpha is solved from the row's acceptance ratio. Both runs share their requests
    and noise. ``most_requests`` shortens runs: at concurrency c they have at least 3 c requests.
    """
    if costs is None or drafted is None:
        costs, drafted = fit_costs(rows)
    found = min(drafted / K, 1.0)
    num_slots = max(row.concurrency for row in rows)
    pmf = [1.0 - found] + [0.0] * (K - 1) + [found]
    done = []
    for row in rows:
        size = row.num_requests
        if most_requests is not None:
            size = min(size, most_requests if row.concurrency == 1 else 3 * num_slots)
        workload = closed_loop(
            row.concurrency,
            size,
            row.mean_input_tokens,
            row.mean_output_tokens,
            float(alpha_from_ratio(row.ratio, K)),
            output_cv=output_cv,
            seed=seed,
        )
        plain, spec = (
            measure(serving(workload, costs, policy, num_slots, seed=seed), workload)
            for policy in (off_above(0, K, num_slots, pmf), fixed_k(K, num_slots, pmf))
        )
        done.append(Replayed(row, plain, spec))
    return done

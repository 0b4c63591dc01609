"""``make power``: how many texts ``specjax audit server`` needs to flag each fault of the zoo.

Our own server serves the bundled pair with one specimen switched on, and is audited over HTTP as
any other server is: by its own logprobs where a request is plain, else against a plain server.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers

from specjax.audit.client import Server
from specjax.audit.recorded import MODELS, load_model, probs_after
from specjax.audit.server import PROMPTS, Plan, collect, judge, tabulate
from specjax.audit.specimen import Specimen
from specjax.audit.zoo import (
    bonus_from_the_wrong_row,
    filter_after_the_ratio,
    first_token_unverified,
    position_shifted_q,
    recovered_from_p,
    residual_before_the_filter,
)
from specjax.audit.zoo_engines import keys_of_rejected_tokens_kept
from specjax.audit.zoo_pairs import shared_noise_distribution
from specjax.audit.zoo_reported import (
    cut_after_looking,
    min_p_on_the_bonus_token_alone,
    one_coin_for_both,
    penalties_once_a_round,
    ratio_at_temperature_one,
    recovered_with_the_drafts_noise,
    rejected_token_kept_as_context,
    residual_without_the_drafted_token_alone,
    rows_of_another_request,
)
from specjax.bundled import prompts, resolve
from specjax.host.compile_cache import enable_compile_cache
from specjax.host.markdown import replace_section, table
from specjax.theory.goodness import draws_for_power, pearson, samples_for_chi2
from specjax.verify.rejection import rejection
from tests.audit.served import serving

UNSURE = prompts()[4]["turns"][0]  # its first token is sure, and the second, a drafted one, is not
SURE = prompts()[15]["turns"][0]  # likewise, and the draft model is sure enough of the second
SPREAD = PROMPTS[1]
NOUGHTS = "0, " * 10  # its tokens come again within a round of four
HEADINGS = "served", "requests", "texts", "TV", "by chance", "p (Holm)", "texts for power 90%"
LOOKS = 8


class Case(NamedTuple):
    """A server, and the requests that it is audited with."""

    served: Callable[[], Specimen]
    plan: Plan
    num_speculative_tokens: int = 2
    options: dict[str, float] | None = None  # of every request; the reference is a plain server


class Measured(NamedTuple):
    """What an audit of a server found."""

    name: str
    requests: str
    flagged: bool
    texts: int  # drawn from the server, over all prompts, until the verdict
    tv: float  # of the prompt that differs most
    by_chance: float
    p: float
    needed: int  # such texts for power 90%, by the same prompt's chi-square statistic; 0: unknown


def plan(*asked: str, **options) -> Plan:
    """Return how the faults are looked for: with seeds, and up to eight looks."""
    common = {"temperature": 1.0, "tokens": 2, "cells": 12, "looks": LOOKS, "seed": 0}
    return Plan(prompts=asked or (UNSURE,), greedy_tokens=16, **{**common, **options})


def shipped() -> Specimen:
    """Return the shipped rule, which is not to be flagged."""
    return Specimen(rejection)


CASES = (
    Case(shipped, plan(tv=0.05), 1),
    Case(shipped, plan(tv=0.1, tokens=3), options={"top_k": 2, "temperature": 0.7}),
    Case(recovered_with_the_drafts_noise, plan(tv=0.04), 1),
    Case(one_coin_for_both, plan(tv=0.05), 1),
    Case(recovered_from_p, plan(tv=0.1)),
    Case(residual_without_the_drafted_token_alone, plan(tv=0.1)),
    Case(position_shifted_q, plan(tv=0.1)),
    Case(first_token_unverified, plan(tv=0.1)),
    Case(bonus_from_the_wrong_row, plan(tv=0.1, tokens=3), 1),
    Case(cut_after_looking, plan(SURE, tv=0.1)),
    Case(rejected_token_kept_as_context, plan(tv=0.1)),
    Case(rows_of_another_request, plan(SPREAD, tv=0.1)),
    Case(keys_of_rejected_tokens_kept, plan(tv=0.1, tokens=4)),
    Case(filter_after_the_ratio, plan(tv=0.1), options={"top_k": 2}),
    Case(residual_before_the_filter, plan(tv=0.1), options={"top_k": 2}),
    Case(min_p_on_the_bonus_token_alone, plan(tv=0.1), options={"min_p": 0.3}),
    Case(ratio_at_temperature_one, plan(tv=0.1, temperature=0.5)),
    Case(penalties_once_a_round, plan(NOUGHTS, tv=0.1, tokens=5), 4, {"frequency_penalty": 2.0}),
)


def measure(case: Case, reference: Server | None) -> Measured:
    """Return the audit's findings on one server; ``reference`` is asked if a request needs it."""
    wanted = case.options is not None or case.plan.temperature != 1
    with serving(case.served(), case.num_speculative_tokens) as url:
        base = Server(url, extra=case.options)
        if wanted and reference is not None:
            reference.extra = dict(case.options or {})
        collected = collect(base, reference if wanted else None, case.plan)
    report = judge(collected)
    worst = min(range(len(report.findings)), key=lambda i: report.findings[i].p)
    found = report.findings[worst]
    options = {"temperature": case.plan.temperature, **(case.options or {})}
    counts = tabulate(collected["asked"][worst], case.plan.cells)
    return Measured(
        name=case.served.__name__.replace("_", " "),
        requests=", ".join(f"{name} {value:g}" for name, value in options.items()),
        flagged=any(one.differs for one in report.findings),
        texts=sum(one.draws for one in report.findings),
        tv=found.tv,
        by_chance=found.expected_tv,
        p=found.adjusted_p,
        needed=texts_needed(counts, case.plan, wanted),
    )


def texts_needed(counts: np.ndarray, plan: Plan, compared: bool) -> int:
    """Return the texts of one prompt by which a chi-square test would find this difference.

    ``counts`` [cells, 2] are the server's, and those of the reference or expected ones.
    """
    observed, other = counts.T
    expected = counts.sum(axis=1) / 2 if compared else other * observed.sum() / other.sum()
    statistic = pearson(observed, expected) * (2 if compared else 1)
    effect = max(statistic - (len(counts) - 1), 0.0) / observed.sum()
    level = plan.level / len(plan.prompts)
    return draws_for_power(effect, len(counts), level, plan.power) if effect else 0


def exact_power(
    prompt: str,
    fault: Callable[[np.ndarray, np.ndarray], np.ndarray] = shared_noise_distribution,
    cells: int = 12,
    level: float = 0.01,
) -> tuple[float, int]:
    """Return total variation, and texts for power 90%, of a fault on the token drafted first.

    In closed form, from the bundled pair's distributions after the prompt and its likeliest token;
    the likeliest ``cells`` - 1 tokens and all others together are told apart. ``fault`` makes of
    p and q [V] what the faulty server emits.
    """
    words = tokenizers.Tokenizer.from_file(str(resolve("bundled") / "tokenizer.json"))
    ids = np.array([words.encode(prompt).ids], np.int32)
    models = [load_model(name) for name in MODELS]
    first = probs_after(*models[0], ids, 1).argmax(axis=-1)[:, None].astype(np.int32)
    p, q = (probs_after(*model, np.concatenate([ids, first], 1), 1)[0] for model in models)
    found = fault(p.astype(np.float64), q.astype(np.float64))
    likely = np.argsort(-p)[: cells - 1]
    law, broken = (np.append(one[likely], one.sum() - one[likely].sum()) for one in (p, found))
    needed = samples_for_chi2(law / law.sum(), broken / broken.sum(), level=level, power=0.9)
    return float(abs(found - p).sum() / 2), needed


def after_looking(p: np.ndarray, q: np.ndarray, least: float = 0.3) -> np.ndarray:
    """Return the distribution that ``cut_after_looking`` makes of p and q [V].

    A draft token that is likely enough is verified, and recovered from the residual; in place of
    any other one the target's own is drawn.
    """
    kept = np.where(q > least, q, 0.0)
    accepted, residual = np.minimum(kept, kept / np.maximum(q, 2.0**-126) * p), np.maximum(p - q, 0)
    rejected = kept.sum() - accepted.sum()
    return accepted + rejected * residual / max(residual.sum(), 2.0**-126) + (1.0 - kept.sum()) * p


def main() -> None:
    """Audit every server, print a line about each, and write the page's section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readme", type=Path, help="a Markdown file: rewrite its section 'power'")
    parser.add_argument("--only", nargs="*", help="names of specimens")
    given = parser.parse_args()
    enable_compile_cache()
    exact = (
        "Exactly, each of its prompt: "
        + "; ".join(
            f"{name}, TV {tv:.3f}, power 90% with {needed} texts"
            for name, (tv, needed) in (
                ("shared noise", exact_power(UNSURE)),
                ("a cut after looking", exact_power(SURE, after_looking)),
            )
        )
        + "."
    )
    print(exact)
    rows = []
    with serving(None, 0) as plain:
        reference = Server(plain)
        for case in CASES:
            if given.only and case.served.__name__ not in given.only:
                continue
            found = measure(case, reference)
            row = (
                found.name, found.requests, f"{found.texts}", f"{found.tv:.3f}",
                f"{found.by_chance:.3f}", f"{found.p:.2g}" + (" flagged" if found.flagged else ""),
                f"{found.needed}" if found.flagged else "",
            )  # fmt: skip
            print(*row, sep="  ", flush=True)
            rows.append(row)
    if given.readme is not None:
        replace_section(given.readme, "power", [*table(HEADINGS, rows), "", exact])


if __name__ == "__main__":
    main()

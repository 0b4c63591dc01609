"""Published verifications: exact where they say so, ordered as their papers prove, and bounded."""

import numpy as np
import pytest
from typer.testing import CliRunner

from specjax.audit.cases import random_cases
from specjax.audit.compare import (
    CHAIN,
    PATHS,
    SIBLINGS,
    Compared,
    Comparison,
    measure,
    methods,
    paths_bound,
    random_families,
)
from specjax.audit.exact import exact_distribution
from specjax.audit.published import greedy_multi_path, k_sequential, traversal
from specjax.audit.published_lossy import (
    fly,
    hierarchical,
    lenience,
    relaxed,
    spectr_gbv,
    target_only,
)
from specjax.audit.rules import EXACT, LOSSY, ROUNDING
from specjax.cli.audit_compare import markdown
from specjax.theory.multi_draft import multi_draft_acceptance, optimal_transport_acceptance
from specjax.verify.block import block
from specjax.verify.rejection import rejection
from specjax.verify.rejection_tree import rejection_tree
from specjax.viz.verifications import verification_comparison

RAGGED = (0, 0, 0, 1, 1)


def lengths(rule, parents, K, *, size=3, num=22, **options):
    """Return the expected lengths of an exact rule, on random pairs with edge cases."""
    found = exact_distribution(rule, *random_cases(num, size, K), K, parents=parents, **options)
    assert (found.tv + found.doubt).max() < ROUNDING
    assert found.stray.max() == 0
    return found.expected_length


@pytest.mark.parametrize("replacement", [True, False])
def test_traversal_is_exact_and_never_shorter_than_recursion(replacement):
    drawn = {"replacement": replacement}
    ours = lengths(traversal(RAGGED), RAGGED, 2, **drawn)
    recursive = lengths(rejection_tree, RAGGED, 2, **drawn)
    assert (ours >= recursive - 1e-6).all()
    assert ours.mean() > recursive.mean() + 0.005


def test_on_a_chain_traversal_is_block_verification():
    chain = CHAIN.parents
    ours, theirs = (lengths(rule, chain, 3) for rule in (traversal(chain), block))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("shape", [(0, 0, 0), (0, 0, 0, 1, 2)], ids=str)
def test_the_highest_of_several_paths_is_verified_against_its_own_distribution(shape):
    """It is exact; where q is p already the highest path is no better than any other one."""
    depth = 2 if len(shape) == 5 else 1
    ours, one = lengths(greedy_multi_path(shape), shape, depth), (0, *range(depth))
    alone = lengths(block, one, depth)
    assert (ours > alone + 0.05).any()
    assert (ours < alone - 0.01).any()


def test_on_a_chain_greedy_multi_path_is_block_verification():
    chain = CHAIN.parents
    ours, theirs = (lengths(rule, chain, 3) for rule in (greedy_multi_path(chain), block))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_greedy_multi_path_takes_paths_that_part_at_the_root():
    with pytest.raises(ValueError, match=r"got parents \(0, 0, 0, 1, 1\)"):
        greedy_multi_path(RAGGED)


def test_hierarchical_as_coded_is_no_longer_exact_from_two_tokens_on():
    cases = random_cases(22, 3, 2)
    found, exact = (exact_distribution(rule, *cases, 2) for rule in (hierarchical, block))
    np.testing.assert_allclose(
        lengths(hierarchical, (0, 0), 1), lengths(block, (0, 0), 1), atol=1e-6
    )
    longer = found.expected_length - exact.expected_length
    assert longer.min() > -1e-6
    assert (longer > 1e-5).any()
    np.testing.assert_array_equal(found.tv > 1e-5, longer > 1e-5)  # block is optimal


def test_spectr_gbv_as_coded_is_exact_for_one_token_alone():
    np.testing.assert_allclose(
        lengths(spectr_gbv((0, 0)), (0, 0), 1), lengths(rejection, (0, 0), 1), atol=1e-6
    )
    for shape, depth in (((0, 0, 1), 2), ((0, 0, 0), 1)):
        found = exact_distribution(
            spectr_gbv(shape), *random_cases(22, 3, depth), depth, parents=shape
        )
        assert found.doubt.max() == 0
        assert found.tv.max() > 0.05
    with pytest.raises(ValueError, match=r"got parents \(0, 0, 0, 1, 1\)"):
        spectr_gbv(RAGGED)


def test_fly_is_rejection_until_the_target_is_unsure_enough():
    chain, most = CHAIN.parents, np.log(3) + 1 / np.e
    np.testing.assert_allclose(
        lengths(fly(most, 2), chain, 3), lengths(rejection, chain, 3), atol=1e-6
    )
    found = exact_distribution(fly(0.0, 2), *random_cases(22, 3, 3), 3)
    assert found.doubt.max() == 0
    assert found.expected_length.mean() > lengths(rejection, chain, 3).mean() + 0.1
    assert found.tv.max() > 0.05


def test_k_sequential_lies_where_spectr_proves_it_to_lie():
    shape = SIBLINGS.parents
    kept = lengths(k_sequential(shape), shape, 1, size=4) - 1
    p, q = (tree[:, 0] for tree in random_cases(22, 4, 1))
    best = np.array([optimal_transport_acceptance(*pair, 3) for pair in zip(p, q, strict=True)])
    assert (kept <= best + 1e-6).all()
    assert (kept >= (1 - (1 - 1 / 3) ** 3) * best - 1e-6).all()
    single = lengths(k_sequential((0, 0)), (0, 0), 1) - lengths(rejection, (0, 0), 1)
    np.testing.assert_allclose(single, 0, atol=1e-6)


def test_recursion_accepts_what_the_closed_form_says():
    kept = lengths(traversal(SIBLINGS.parents), SIBLINGS.parents, 1, size=4) - 1
    p, q = (tree[:, 0] for tree in random_cases(22, 4, 1))
    closed = [multi_draft_acceptance(*pair, 3) for pair in zip(p, q, strict=True)]
    np.testing.assert_allclose(kept, closed, atol=1e-6)


def test_lossy_rules_are_exact_at_one_end_and_ever_longer_to_the_other():
    chain = CHAIN.parents
    np.testing.assert_allclose(
        lengths(lenience(1.0), chain, 3), lengths(rejection, chain, 3), atol=1e-6
    )
    lengths(target_only(), chain, 3)
    for rules in (
        [lenience(share) for share in (0.8, 0.3)],
        [target_only(1.0, t) for t in (0.8, 0.3)],
        [target_only(t, 1.0) for t in (0.6, 0.2)],
        [relaxed(3, delta) for delta in (0.2, 0.8)],
    ):
        less, more = (exact_distribution(rule, *random_cases(22, 3, 3), 3) for rule in rules)
        assert more.expected_length.mean() > less.expected_length.mean() + 0.1
        assert less.tv.max() > 0.05


def test_the_bound_is_that_of_one_path_and_grows_with_paths():
    p, q = (tree[0] for tree in random_families(1)["far"])
    one, two = (paths_bound(p, q, PATHS._replace(paths=k)) for k in (1, 2))
    first = np.minimum(p[0], q[0]).sum()
    words = np.minimum(p[:1].T * p[1:5], q[:1].T * q[1:5]).sum()
    assert one == pytest.approx(1 + first + words)
    assert one + 0.01 < two < 3
    distinct = paths_bound(p, q, SIBLINGS, replacement=False)
    assert distinct > paths_bound(p, q, SIBLINGS)


def test_no_method_brings_more_than_the_best_and_distinct_siblings_help():
    cases = {name: random_families(2)[name] for name in ("far", "peaked")}
    some = [one for one in methods() if one.promise == EXACT and one.shape == SIBLINGS]
    rows = [measure(one, cases) for one in some]
    for row, method in zip(rows, some, strict=True):
        assert row.kept
        for family, (p, q) in cases.items():
            best = np.mean(
                [
                    paths_bound(*pair, SIBLINGS, method.replacement)
                    for pair in zip(p, q, strict=True)
                ]
            )
            assert row.tokens[family] <= best + 1e-6
    tokens = {(row.name, row.drafts): row.tokens["far"] for row in rows}
    assert (
        tokens["recursive rejection", "3 siblings"]
        < tokens["k-sequential (SpecTr)", "3 siblings"]
        < tokens["recursive rejection", "3 siblings, distinct"]
    )


def test_the_table_and_the_picture_say_what_was_found(tmp_path):
    def row(name, promise, tokens, tv, curve=""):
        worst = tv if promise == LOSSY else 1e-7
        facts = {"far": tokens}, {"far": tv}
        return Compared(name, "2211.17192", promise, "chain of 3", curve, *facts, worst)

    found = Comparison(
        (
            row("rejection", EXACT, 2.0, 1e-7),
            row("lenience", LOSSY, 2.5, 0.2, "l 0.5"),
            row("lenience", LOSSY, 2.8, 0.4, "l 0.2"),
        ),
        {"chain of 3": {"far": 2.5}},
    )
    headings, rows = markdown(found, "far", 0.1)
    assert headings[3] == "far"
    assert rows[0][3:] == ("2.000", "80.0%", "1.538", "1e-07")
    assert rows[1][0] == "lenience, l 0.5"
    assert rows[-1][2:4] == ("chain of 3", "2.500")
    ax = verification_comparison(found, "far")
    curve = ax.lines[0]
    assert list(curve.get_xdata()) == [0.2, 0.4]
    assert list(curve.get_ydata()) == [2.5, 2.8]
    ax.get_figure(root=True).savefig(tmp_path / "verifications.png")
    with pytest.raises(ValueError, match="there is no 'near': choose from far"):
        verification_comparison(found, "near")
    assert not row("block", EXACT, 2.0, 1e-7)._replace(worst=1e-3).kept


def test_every_method_is_compared_on_the_bundled_pair_too(tmp_path, monkeypatch):
    from specjax.cli.app import app

    monkeypatch.setattr("specjax.audit.compare.CASES", 1)

    page = tmp_path / "page.md"
    page.write_text("<!-- verifications: begin -->\n<!-- verifications: end -->\n")
    result = CliRunner().invoke(app, ["audit", "rules", "--compare", "--readme", str(page)])
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert text.count("arXiv:2505.12398") == 5
    assert "bundled" in text.splitlines()[1]
    assert {one.name.split(",")[0] for one in methods()} == {
        line.split(" | ")[0].strip("| ").split(",")[0]
        for line in text.splitlines()[3:]
        if line.startswith("| ") and "*" not in line
    }


def test_the_bundled_pairs_distributions_are_those_of_its_models():
    from specjax.audit.recorded import TOKENS, bundled_cases
    from specjax.bundled import prompts
    from specjax.engine.llm import LLM
    from specjax.engine.options.sampling_params import SamplingParams

    found = bundled_cases(1, 3, 1)
    assert found.p_tree.shape == found.q_tree.shape == (1, 4, 3)
    np.testing.assert_allclose(found.p_tree.sum(axis=-1), 1, atol=1e-6)
    llm = LLM("bundled")
    ids = llm.get_tokenizer().encode(prompts()[0]["turns"][0])[:TOKENS]
    asked = SamplingParams(temperature=0.0, max_tokens=1, logprobs=20)
    (answer,) = llm.generate([{"prompt_token_ids": list(ids)}], asked)
    said = answer.outputs[0].logprobs[0]
    likely = sorted((np.exp(one.logprob) for one in said.values()), reverse=True)
    ratio = found.p_tree[0, 0].max() / np.sort(found.p_tree[0, 0])[1]
    assert min(abs(likely[0] / other / ratio - 1) for other in likely[1:]) < 1e-3
    with pytest.raises(ValueError, match="bundled prompts have"):
        bundled_cases(10_000, 3, 1)

"""The figures of the formulas carry the formulas' numbers, and say what they show."""

import numpy as np
import pytest

from specjax import theory
from specjax.theory.published import SUFFIX_BENCHMARK
from specjax.viz.acceptance_by_position import Drafts, acceptance_by_position
from specjax.viz.gain_by_concurrency import gain_by_concurrency
from specjax.viz.roofline import roofline
from specjax.viz.speedup_surface import speedup_surface


def save(ax, path):
    """Draw the figure: what cannot be drawn fails here."""
    ax.get_figure(root=True).savefig(path, dpi=60)


def test_the_surface_has_its_ridge_and_its_break_even_line(tmp_path):
    surface, ax = speedup_surface(0.1, k_max=8, num_alphas=51)
    assert surface.speedup.shape == (8, 51)
    i = 40  # alpha = 0.8
    assert surface.alphas[i] == pytest.approx(0.8)
    assert surface.speedup[4, i] == pytest.approx(2.45952)
    assert surface.best[i] == 6 == surface.speedup[:, i].argmax() + 1
    np.testing.assert_allclose(theory.speedup(surface.breakeven, surface.ks, 0.1), 1)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["break-even: slower on its left", "best K, up to 8"]
    ridge = ax.lines[-1]
    np.testing.assert_array_equal(ridge.get_ydata(), surface.best[surface.best > 0])
    assert "c = 0.1" in ax.get_title(loc="left")
    save(ax, tmp_path / "surface.png")


def test_a_draft_as_dear_as_the_target_never_pays(tmp_path):
    surface, ax = speedup_surface(1.5, k_max=3, num_alphas=11)
    assert (surface.best == 0).all()
    assert np.isnan(surface.breakeven).all()
    save(ax, tmp_path / "never.png")


def test_positions_have_intervals_over_requests_and_the_alpha_that_would_explain_them(tmp_path):
    accepted = np.repeat([0, 1, 2], [20, 40, 40])  # easy requests last, hard ones first
    drafts = Drafts(accepted, np.repeat(np.arange(10), 10))
    data, ax = acceptance_by_position([80, 40, 0, 0], 100, drafts=drafts)
    np.testing.assert_allclose(data.marginal.estimate, [0.8, 0.4, 0, 0])
    np.testing.assert_allclose(data.conditional.estimate, [0.8, 0.5, 0, np.nan])
    assert (data.marginal.low <= data.marginal.estimate).all()
    assert data.tokens_per_step == pytest.approx(2.2)
    assert theory.tokens_per_step(data.alpha, 4) == pytest.approx(2.2)
    np.testing.assert_allclose(data.expected, data.alpha ** np.arange(1, 5))
    widths = data.marginal.high - data.marginal.low
    independent = theory.acceptance_ci(40, 100)
    assert widths[1] > 2 * (independent.high - independent.low)
    assert len(ax.containers) == 2
    assert "2.20 tokens per step" in " ".join(t.get_text() for t in ax.get_legend().get_texts())
    assert "over requests" in ax.get_ylabel()
    save(ax, tmp_path / "positions.png")


def test_counters_alone_have_no_interval(tmp_path):
    data, ax = acceptance_by_position([80, 40, 0, 0], 100)
    np.testing.assert_allclose(data.marginal.estimate, [0.8, 0.4, 0, 0])
    assert np.isnan(data.marginal.low).all()
    assert np.isnan(data.conditional.high).all()
    assert "no intervals" in ax.get_ylabel()
    save(ax, tmp_path / "counters.png")
    with pytest.raises(ValueError, match="drafts must be those counted"):
        acceptance_by_position([80, 40], 100, drafts=Drafts(np.ones(100, int), np.arange(100)))


def test_the_roofline_is_flat_up_to_its_knee(tmp_path):
    roofs, ax = roofline(most_tokens=1024)
    for roof, hw in zip(roofs, (theory.H200, theory.ASCEND_910B), strict=True):
        flat = roof.tokens <= roof.knee
        np.testing.assert_allclose(roof.milliseconds[flat], roof.milliseconds[0])
        assert (np.diff(roof.milliseconds[~flat]) > 0).all()
        twice = theory.decode_time_roofline(1, 2 * roof.knee, 0, theory.QWEN3_32B, hw)
        assert 1e3 * twice == pytest.approx(2 * roof.milliseconds[0])
    assert "assumed" in ax.get_xlabel()
    assert "(ms)" in ax.get_ylabel()
    save(ax, tmp_path / "roofline.png")


@pytest.mark.parametrize("metric", ["tpot", "tps"])
def test_the_guides_points_lie_over_the_model_fitted_to_the_others(tmp_path, metric):
    predicted = theory.lodo_error(SUFFIX_BENCHMARK, metric).predicted
    panels, axes = gain_by_concurrency(metric=metric, simulated=[1.3] * 18)
    assert len(panels) == len(axes) == 6
    at = 0
    for panel, ax in zip(panels, axes, strict=True):
        for concurrency, measured in zip(panel.concurrency, panel.measured, strict=True):
            row = SUFFIX_BENCHMARK[at]
            line = np.interp(concurrency, panel.line_concurrency, panel.line)
            gain = (
                row.baseline_tpot_s / predicted[at]
                if metric == "tpot"
                else predicted[at] / row.baseline_tps
            )
            assert line == pytest.approx(gain, rel=1e-4)
            assert ax.get_ylim()[0] < measured < ax.get_ylim()[1]
            at += 1
        assert (np.diff(panel.line) < 0).all()
        assert panel.dataset in ax.get_title()
    labels = [text.get_text() for text in axes[0].get_figure(root=True).legends[0].get_texts()]
    assert labels == ["model, fitted to the other datasets", "simulated", "measured (guide)"]
    save(axes[0], tmp_path / "gain.png")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: speedup_surface(-0.1), "c must be"),
        (lambda: speedup_surface(0.1, k_max=1), "k_max"),
        (lambda: acceptance_by_position([5, 6], 10), "fall of accepted_per_pos"),
        (lambda: acceptance_by_position([], 10), "number of positions"),
        (lambda: roofline(hardware=()), "at least one hardware"),
        (lambda: gain_by_concurrency(metric="itl"), "metric must be"),
        (lambda: gain_by_concurrency(simulated=[1.0]), "a simulated gain per row, 18"),
    ],
)
def test_nothing_to_draw_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()

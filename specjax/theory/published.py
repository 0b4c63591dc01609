"""Published numbers, as data for tests of the formulas and for figures."""

from typing import NamedTuple

from specjax.theory.arrays import Scalar


class BenchmarkRow(NamedTuple):
    """One row of the guide's suffix-decoding benchmark, plain and speculative."""

    dataset: str
    concurrency: int
    num_requests: int
    mean_input_tokens: float
    mean_output_tokens: float
    baseline_tpot_s: float
    baseline_tps: float  # output tokens per second of the whole server
    spec_tpot_s: float
    spec_tps: float
    ratio: float  # accepted / drafted
    published_tpot_gain: float  # baseline / spec - 1, as printed there
    published_tps_gain: float  # spec / baseline - 1


# Guide "Suffix speculative decoding" of vllm-ascend: Qwen3-32B in bf16 on four cards of one Atlas
# 800T A2, suffix decoding with num_speculative_tokens = 3, temperature 0, measured with AISBench.
SUFFIX_BENCHMARK = (
    BenchmarkRow("Humaneval", 1, 100, 150, 2700, 0.0551, 18.1, 0.0379, 26.3, 0.270, 0.452, 0.451),
    BenchmarkRow(
        "Humaneval", 15, 100, 150, 2700, 0.0616, 233.8, 0.0458, 318.2, 0.270, 0.346, 0.361
    ),
    BenchmarkRow(
        "Humaneval", 26, 100, 150, 2700, 0.0647, 403.8, 0.0509, 519.2, 0.270, 0.272, 0.286
    ),
    BenchmarkRow("ARC", 1, 100, 76, 960, 0.0528, 18.9, 0.0395, 25.4, 0.239, 0.337, 0.346),
    BenchmarkRow("ARC", 8, 100, 76, 960, 0.0591, 125.4, 0.0470, 163.1, 0.239, 0.257, 0.300),
    BenchmarkRow("ARC", 15, 100, 76, 960, 0.0598, 245.8, 0.0489, 311.7, 0.239, 0.223, 0.268),
    BenchmarkRow("GSM8K", 1, 100, 67, 1570, 0.0555, 18.0, 0.0357, 28.5, 0.311, 0.556, 0.584),
    BenchmarkRow("GSM8K", 17, 100, 67, 1570, 0.0615, 279.8, 0.0454, 403.0, 0.311, 0.356, 0.440),
    BenchmarkRow("GSM8K", 26, 100, 67, 1570, 0.0639, 396.4, 0.0500, 527.6, 0.311, 0.278, 0.331),
    BenchmarkRow("ShareGPT", 1, 327, 666, 231, 0.0541, 18.3, 0.0392, 24.1, 0.239, 0.379, 0.315),
    BenchmarkRow("ShareGPT", 8, 327, 666, 231, 0.0588, 125.0, 0.0462, 153.2, 0.239, 0.271, 0.225),
    BenchmarkRow("ShareGPT", 14, 327, 666, 231, 0.0618, 227.0, 0.0499, 273.9, 0.239, 0.238, 0.207),
    BenchmarkRow(
        "SuperGLUE_BoolQ", 1, 100, 207, 314, 0.0541, 18.4, 0.0361, 26.8, 0.334, 0.498, 0.456
    ),
    BenchmarkRow(
        "SuperGLUE_BoolQ", 16, 100, 207, 314, 0.0600, 229.7, 0.0435, 303.9, 0.334, 0.380, 0.323
    ),
    BenchmarkRow(
        "SuperGLUE_BoolQ", 32, 100, 207, 314, 0.0627, 396.4, 0.0478, 507.5, 0.334, 0.313, 0.280
    ),
    BenchmarkRow("AGIEval", 1, 100, 735, 1880, 0.0531, 18.7, 0.0318, 34.1, 0.503, 0.668, 0.819),
    BenchmarkRow("AGIEval", 24, 100, 735, 1880, 0.0640, 381.2, 0.0433, 629.0, 0.503, 0.478, 0.650),
    BenchmarkRow("AGIEval", 34, 100, 735, 1880, 0.0700, 494.6, 0.0502, 768.4, 0.503, 0.394, 0.553),
)


class LeviathanTable1(NamedTuple):
    """Leviathan et al. 2023 (arXiv 2211.17192), Table 1: c = c^ = 0."""

    alpha: float
    K: int
    operations: float
    speedup: float


LEVIATHAN_TABLE_1 = (
    LeviathanTable1(0.6, 2, 1.53, 1.96),
    LeviathanTable1(0.7, 3, 1.58, 2.53),
    LeviathanTable1(0.8, 2, 1.23, 2.44),
    LeviathanTable1(0.8, 5, 1.63, 3.69),
    LeviathanTable1(0.9, 2, 1.11, 2.71),
    LeviathanTable1(0.9, 10, 1.60, 6.86),
)


class LeviathanTable4(NamedTuple):
    """Leviathan et al. 2023 (arXiv 2211.17192), Table 4: T5-XXL with smaller T5 drafts; expected
    against measured."""

    task: str
    draft: str
    temperature: float
    K: int
    alpha: float
    c: float
    expected: float
    measured: float


LEVIATHAN_TABLE_4 = (
    LeviathanTable4("EnDe", "T5-small", 0, 7, 0.75, 0.02, 3.2, 3.4),
    LeviathanTable4("EnDe", "T5-base", 0, 7, 0.80, 0.04, 3.3, 2.8),
    LeviathanTable4("EnDe", "T5-large", 0, 7, 0.82, 0.11, 2.5, 1.7),
    LeviathanTable4("EnDe", "T5-small", 1, 7, 0.62, 0.02, 2.3, 2.6),
    LeviathanTable4("EnDe", "T5-base", 1, 5, 0.68, 0.04, 2.4, 2.4),
    LeviathanTable4("EnDe", "T5-large", 1, 3, 0.71, 0.11, 2.0, 1.4),
    LeviathanTable4("CNNDM", "T5-small", 0, 5, 0.65, 0.02, 2.4, 3.1),
    LeviathanTable4("CNNDM", "T5-base", 0, 5, 0.73, 0.04, 2.6, 3.0),
    LeviathanTable4("CNNDM", "T5-large", 0, 3, 0.74, 0.11, 2.0, 2.2),
    LeviathanTable4("CNNDM", "T5-small", 1, 5, 0.53, 0.02, 1.9, 2.3),
    LeviathanTable4("CNNDM", "T5-base", 1, 3, 0.55, 0.04, 1.8, 2.2),
    LeviathanTable4("CNNDM", "T5-large", 1, 3, 0.56, 0.11, 1.6, 1.7),
)


class BatchCurve(NamedTuple):
    """A published curve: throughput with speculation over without, by batch size."""

    source: str
    method: str
    batch: tuple[int, ...]
    speedup: tuple[float, ...]


EAGLE3_SGLANG, EAGLE3_VLLM = (
    "EAGLE-3 (Li et al. 2025), Table 3: SGLang, H100",
    "EAGLE-3 (Li et al. 2025), Table 5: vLLM",
)
SGLANG_BATCHES = (2, 4, 8, 16, 24, 32, 48, 56, 64)
VLLM_BATCHES = (2, 4, 8, 16, 24, 32, 48, 56)
BATCH_CURVES = (
    BatchCurve(
        EAGLE3_SGLANG,
        "EAGLE",
        SGLANG_BATCHES,
        (1.40, 1.38, 1.23, 1.02, 0.93, 0.94, 0.88, 0.99, 0.99),
    ),
    BatchCurve(
        EAGLE3_SGLANG,
        "EAGLE-3",
        SGLANG_BATCHES,
        (1.81, 1.82, 1.62, 1.48, 1.39, 1.32, 1.38, 1.34, 1.38),
    ),
    BatchCurve(
        EAGLE3_VLLM, "EAGLE", VLLM_BATCHES, (1.30, 1.25, 1.21, 1.10, 1.03, 0.93, 0.82, 0.71)
    ),
    BatchCurve(
        EAGLE3_VLLM, "EAGLE-3", VLLM_BATCHES, (1.75, 1.68, 1.58, 1.49, 1.42, 1.36, 1.21, 1.01)
    ),
)


class PublishedSpeedup(NamedTuple):
    """The speedup over plain decoding that a paper or an engine states, a range or one number."""

    source: str
    method: str
    least: float
    most: float


SPEEDUPS = (
    PublishedSpeedup("Leviathan et al. 2023 (arXiv 2211.17192)", "draft model, T5-XXL", 2.0, 3.0),
    PublishedSpeedup(
        "Chen et al. 2023 (arXiv 2302.01318)", "draft model, Chinchilla 70B", 2.0, 2.5
    ),
    PublishedSpeedup(
        "Miao et al. 2024, SpecInfer (arXiv 2305.09781)", "trees, several GPUs", 1.5, 2.8
    ),
    PublishedSpeedup("Cai et al. 2024, Medusa (arXiv 2401.10774)", "Medusa-2", 2.3, 3.6),
    PublishedSpeedup("Li et al. 2024, EAGLE (arXiv 2401.15077)", "LLaMA2-Chat 70B", 2.7, 3.5),
    PublishedSpeedup("Li et al. 2024, EAGLE-2 (arXiv 2406.16858)", "EAGLE-2", 3.05, 4.26),
    PublishedSpeedup("Li et al. 2025, EAGLE-3 (arXiv 2503.01840)", "EAGLE-3, at most", 6.5, 6.5),
)
ENGINES = (  # the same of engines, from the tables above, over all batches and datasets
    *(
        PublishedSpeedup(one.source, f"{one.method}, by batch", min(one.speedup), max(one.speedup))
        for one in BATCH_CURVES
    ),
    PublishedSpeedup(
        "the vllm-ascend guide, Qwen3-32B on Atlas 800T A2",
        "suffix decoding, TPOT",
        *(
            pick(row.baseline_tpot_s / row.spec_tpot_s for row in SUFFIX_BENCHMARK)
            for pick in (min, max)
        ),
    ),
)
NEAR = 0.03  # alphas that count as equal


def consult(alpha: Scalar, K: Scalar, claimed: Scalar) -> tuple[str, ...]:
    """Return what was published at like alpha and K, and which papers' speedups hold ``claimed``.

    Leviathan et al. 2023 (arXiv 2211.17192), Table 4, the abstracts of ``SPEEDUPS``, ``ENGINES``.
    """
    near = tuple(
        f"measured {row.measured:g}x, expected {row.expected:g}x, at alpha {row.alpha:g}, "
        f"K {row.K}, c {row.c:g}: Leviathan et al. 2023, Table 4, {row.task}, {row.draft}"
        for row in LEVIATHAN_TABLE_4
        if row.K == K and abs(row.alpha - alpha) <= NEAR
    )
    stated = tuple(
        f"a speedup of {row.least:.3g}x to {row.most:.3g}x: {row.source}, {row.method}"
        if row.least < row.most
        else f"a speedup of {row.most:g}x: {row.source}, {row.method}"
        for row in (*SPEEDUPS, *ENGINES)
        if row.least <= claimed <= row.most
    )
    return near + stated

"""The mathematics of speculative decoding: pure functions, float64, arrays broadcast.

Which function answers which question:

How many tokens does a round give?
    tokens_per_step, accepted_per_step, step_length_pmf, step_length_var, tokens_adaptive,
    tokens_from_positions, marginal_to_conditional, steps_to_emit; over unlike texts mixture_tokens,
    beta_mixture_tokens, markov_tokens, jensen_gap; by other rules token_verification_tokens,
    block_verification_tokens
What is alpha?
    from distributions acceptance_prob, residual, tv, coupled_bound, greedy_draft_alpha,
    alpha_vs_temperature; from a log alpha_from_ratio, alpha_from_length, draft_acceptance_ratio,
    tokens_from_ratio; how well it is known acceptance_ci, acceptance_ci_clustered, Interval
How much faster, and with which K?
    speedup, optimal_k, optimal_k_real, breakeven_alpha, guaranteed_speedup, oracle_speedup,
    ops_factor, staged_draft_cost
Is a published number right?
    check_claim, Claim
Which tree, how many drafts?
    tree_tokens, tree_optimal, tree_from_probs, tree_hardware_optimal, cartesian_tree_tokens, Tree,
    SizedTree, Choice, multi_draft_acceptance, optimal_transport_acceptance
What happens in a batch, with a long context, on my hardware?
    speedup_vs_batch, decode_time_roofline, critical_batch, long_context_speedup, devices_needed,
    kv_bytes_per_token, model_cost, ModelCost, Hardware, HARDWARE, H200, ASCEND_910B, QWEN3_32B,
    QWEN3_0_6B; of experts moe_active_experts, moe_tokens_per_expert, moe_full_activation_tokens,
    target_efficiency
On many devices?
    split_pass_time, split_round_time, num_all_reduces, all_reduce_bytes, all_reduce_time, Link,
    Shape, NETWORK, NVLINK, QWEN3_0_6B_SHAPE, QWEN3_32B_SHAPE; of experts that are dealt out
    moe_busiest_device; of the weights' files split_loading, Loading
In a server under load?
    goodput, optimal_k_goodput, num_speculative_tokens_per_batch_size, effective_batch,
    latency_vs_rps, saturation_rps, mg1_ps, mg1_fcfs, little_ratio, e2e_speedup,
    draft_memory_impact, MemoryImpact; from a benchmark's table serving_multiplier,
    fit_serving_model, lodo_error, ServingModel, LodoError; quantiles of latency and what meets
    an objective: ``specjax.simulate``
Are two texts of one distribution, and how many would show it?
    distribution_test, GoodnessOfFit, samples_for_tv, samples_for_chi2, null_expected_tv

Leviathan's letters: p is the target's distribution, q the draft's, alpha the chance that a draft
token is accepted, K how many are drafted, c the cost of a draft step in plain target
steps. "Per step" is per round: K draft steps and one verification. "Tokens" count the target's own
token of each step, "accepted" does not. Results are NumPy float64; with a JAX array as an argument,
jit, vmap and grad go through (see ``arrays``).
"""

from specjax.theory.acceptance import (
    acceptance_prob,
    alpha_vs_temperature,
    coupled_bound,
    greedy_draft_alpha,
    residual,
    tv,
)
from specjax.theory.block import block_verification_tokens, token_verification_tokens
from specjax.theory.claims import Claim, check_claim
from specjax.theory.goodness import (
    GoodnessOfFit,
    distribution_test,
    null_expected_tv,
    samples_for_chi2,
    samples_for_tv,
)
from specjax.theory.intervals import Interval, acceptance_ci, acceptance_ci_clustered
from specjax.theory.lengths import (
    accepted_per_step,
    alpha_from_length,
    alpha_from_ratio,
    draft_acceptance_ratio,
    marginal_to_conditional,
    step_length_pmf,
    step_length_var,
    steps_to_emit,
    tokens_adaptive,
    tokens_from_positions,
    tokens_from_ratio,
    tokens_per_step,
)
from specjax.theory.mixtures import (
    beta_mixture_tokens,
    jensen_gap,
    markov_tokens,
    mixture_tokens,
)
from specjax.theory.model_cost import model_cost
from specjax.theory.moe import (
    moe_active_experts,
    moe_busiest_device,
    moe_full_activation_tokens,
    moe_tokens_per_expert,
    target_efficiency,
)
from specjax.theory.multi_draft import multi_draft_acceptance, optimal_transport_acceptance
from specjax.theory.parallel import (
    NETWORK,
    NVLINK,
    QWEN3_0_6B_SHAPE,
    QWEN3_32B_SHAPE,
    Link,
    Loading,
    Shape,
    all_reduce_bytes,
    all_reduce_time,
    num_all_reduces,
    split_loading,
    split_pass_time,
    split_round_time,
)
from specjax.theory.queueing import (
    MemoryImpact,
    draft_memory_impact,
    e2e_speedup,
    effective_batch,
    latency_vs_rps,
    little_ratio,
    mg1_fcfs,
    mg1_ps,
    saturation_rps,
)
from specjax.theory.roofline import (
    ASCEND_910B,
    H200,
    HARDWARE,
    QWEN3_0_6B,
    QWEN3_32B,
    Hardware,
    ModelCost,
    critical_batch,
    decode_time_roofline,
    devices_needed,
    kv_bytes_per_token,
    long_context_speedup,
    speedup_vs_batch,
)
from specjax.theory.schedule import (
    goodput,
    num_speculative_tokens_per_batch_size,
    optimal_k_goodput,
)
from specjax.theory.serving import (
    LodoError,
    ServingModel,
    fit_serving_model,
    lodo_error,
    serving_multiplier,
)
from specjax.theory.trees import (
    Choice,
    SizedTree,
    Tree,
    cartesian_tree_tokens,
    tree_from_probs,
    tree_hardware_optimal,
    tree_optimal,
    tree_tokens,
)
from specjax.theory.walltime import (
    breakeven_alpha,
    guaranteed_speedup,
    ops_factor,
    optimal_k,
    optimal_k_real,
    oracle_speedup,
    speedup,
    staged_draft_cost,
)

__all__ = [
    "ASCEND_910B",
    "H200",
    "HARDWARE",
    "NETWORK",
    "NVLINK",
    "QWEN3_0_6B",
    "QWEN3_0_6B_SHAPE",
    "QWEN3_32B",
    "QWEN3_32B_SHAPE",
    "Choice",
    "Claim",
    "GoodnessOfFit",
    "Hardware",
    "Interval",
    "Link",
    "Loading",
    "LodoError",
    "MemoryImpact",
    "ModelCost",
    "ServingModel",
    "Shape",
    "SizedTree",
    "Tree",
    "acceptance_ci",
    "acceptance_ci_clustered",
    "acceptance_prob",
    "accepted_per_step",
    "all_reduce_bytes",
    "all_reduce_time",
    "alpha_from_length",
    "alpha_from_ratio",
    "alpha_vs_temperature",
    "beta_mixture_tokens",
    "block_verification_tokens",
    "breakeven_alpha",
    "cartesian_tree_tokens",
    "check_claim",
    "coupled_bound",
    "critical_batch",
    "decode_time_roofline",
    "devices_needed",
    "distribution_test",
    "draft_acceptance_ratio",
    "draft_memory_impact",
    "e2e_speedup",
    "effective_batch",
    "fit_serving_model",
    "goodput",
    "greedy_draft_alpha",
    "guaranteed_speedup",
    "jensen_gap",
    "kv_bytes_per_token",
    "latency_vs_rps",
    "little_ratio",
    "lodo_error",
    "long_context_speedup",
    "marginal_to_conditional",
    "markov_tokens",
    "mg1_fcfs",
    "mg1_ps",
    "mixture_tokens",
    "model_cost",
    "moe_active_experts",
    "moe_busiest_device",
    "moe_full_activation_tokens",
    "moe_tokens_per_expert",
    "multi_draft_acceptance",
    "null_expected_tv",
    "num_all_reduces",
    "num_speculative_tokens_per_batch_size",
    "ops_factor",
    "optimal_k",
    "optimal_k_goodput",
    "optimal_k_real",
    "optimal_transport_acceptance",
    "oracle_speedup",
    "residual",
    "samples_for_chi2",
    "samples_for_tv",
    "saturation_rps",
    "serving_multiplier",
    "speedup",
    "speedup_vs_batch",
    "split_loading",
    "split_pass_time",
    "split_round_time",
    "staged_draft_cost",
    "step_length_pmf",
    "step_length_var",
    "steps_to_emit",
    "target_efficiency",
    "token_verification_tokens",
    "tokens_adaptive",
    "tokens_from_positions",
    "tokens_from_ratio",
    "tokens_per_step",
    "tree_from_probs",
    "tree_hardware_optimal",
    "tree_optimal",
    "tree_tokens",
    "tv",
]

"""A config.json's cost is that of the published parameter counts."""

import numpy as np
import pytest

from specjax import theory
from specjax.theory.model_cost import model_cost
from specjax.theory.roofline import HARDWARE

QWEN3_32B = {
    "model_type": "qwen3", "hidden_size": 5120, "num_hidden_layers": 64, "head_dim": 128,
    "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 25600,
    "vocab_size": 151936, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_30B_A3B = {
    "hidden_size": 2048, "num_hidden_layers": 48, "head_dim": 128, "num_attention_heads": 32,
    "num_key_value_heads": 4, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936,
}  # fmt: skip
DEEPSEEK_V3 = {
    "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512,
    "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "vocab_size": 129280, "quantization_config": {"quant_method": "fp8"},
}  # fmt: skip


def test_parameters_are_the_published_ones_without_input_embeddings():
    """Qwen3-32B 32.8B, Qwen3-30B-A3B 30.5B of which 3.3B, DeepSeek-V3 671B of which 37B."""
    for config, total, active in (
        (QWEN3_32B, 32.8e9 - 0.78e9, 32.8e9 - 0.78e9),
        (QWEN3_30B_A3B, 30.5e9 - 0.31e9, 3.3e9 - 0.31e9),
        (DEEPSEEK_V3, 671e9 - 0.93e9, 37e9 - 0.93e9),
    ):
        cost = model_cost(config)
        assert cost.num_params == pytest.approx(total, rel=0.01)
        assert cost.active_params == pytest.approx(active, rel=0.02)
    assert model_cost(QWEN3_32B).kv_bytes == theory.QWEN3_32B.kv_bytes
    assert model_cost(QWEN3_32B).context_flops == theory.QWEN3_32B.context_flops
    assert model_cost(DEEPSEEK_V3).kv_bytes == 2 * 61 * 576
    assert model_cost(DEEPSEEK_V3).bytes_per_param == 1


def test_attention_is_a_quarter_of_the_operations_at_8192_tokens():
    cost = model_cost(QWEN3_32B)
    assert 8192 * cost.context_flops / (2 * cost.num_params) == pytest.approx(0.27, abs=0.01)
    time = theory.decode_time_roofline(64, 64, 8192, cost, HARDWARE["H200"])
    bare = theory.decode_time_roofline(
        64, 64, 8192, cost._replace(context_flops=0.0), HARDWARE["H200"]
    )
    assert time / bare == pytest.approx(1.27, abs=0.01)


def test_experts_are_read_as_tokens_take_them():
    cost, hw = model_cost(QWEN3_30B_A3B), HARDWARE["H200"]
    one = theory.decode_time_roofline(1, 1, 0, cost, hw)
    assert one == pytest.approx(2 * cost.active_params / hw.bandwidth)
    awake = theory.moe_active_experts(128, 8, 32) / 128
    many = theory.decode_time_roofline(8, 4, 0, cost, hw)
    read = cost.num_params - cost.expert_params * (1 - awake)
    assert many == pytest.approx(2 * read / hw.bandwidth)
    with pytest.raises(ValueError, match="routed experts"):
        theory.critical_batch(1, 0, cost, hw)


def test_with_attention_the_critical_batch_is_where_both_times_meet():
    cost, hw = model_cost(QWEN3_32B), HARDWARE["H200"]
    batch = float(theory.critical_batch(6, 2048, cost, hw))
    low, high = (theory.decode_time_roofline(b * batch, 6, 2048, cost, hw) for b in (0.99, 1.01))
    both = theory.decode_time_roofline(batch, 6, 2048, cost, hw, overlap="sum")
    assert theory.decode_time_roofline(batch, 6, 2048, cost, hw) == pytest.approx(both / 2)
    assert high / low > 1.01
    assert np.isfinite(batch)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": None}, "no hidden_size"),
        ({"intermediate_size": None}, "no intermediate_size"),
        ({"num_experts": 8}, "no num_experts_per_tok"),
        ({"quantization_config": {"quant_method": "odd"}}, "quant_method 'odd' are not known"),
    ],
)
def test_a_config_without_its_sizes_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        model_cost({**QWEN3_32B, **changes})

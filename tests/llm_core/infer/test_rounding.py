"""Numbers of 8 bits are as near as their scale says, and take the memory that is stated."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from llm_core.infer.cache.rounding import Numbers, from_int8, to_int8
from llm_core.infer.cache.static import StaticCache
from tests.support.engine.small_model import make_model


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=16))
def test_no_number_is_off_by_more_than_half_a_scale(values: list[float]) -> None:
    numbers = torch.tensor([values])
    codes, scales = to_int8(numbers)
    assert codes.dtype == torch.int8
    error = (from_int8(codes, scales, torch.float64) - numbers.double()).abs()
    assert float((error - 0.5001 * scales.double()).max()) <= 1e-30


def test_zeros_and_tokens_apart_keep_scales_of_their_own() -> None:
    numbers = torch.tensor([[0.0, 0.0], [1e-6, -1e-6], [1e6, 5e5]])
    codes, scales = to_int8(numbers)
    assert codes.tolist() == [[0, 0], [127, -127], [127, 64]]
    assert from_int8(codes, scales, torch.float32)[:2].tolist() == numbers[:2].tolist()


def test_memory_is_a_byte_a_number_and_four_a_head() -> None:
    model = make_model()
    shape, device = (2, 3, 8), torch.device("cpu")
    assert Numbers(shape, torch.float32, device).num_bytes == 2 * 3 * 8 * 4
    assert Numbers(shape, torch.float32, device, int8=True).num_bytes == 2 * 3 * (8 + 4)
    plain, rounded = (StaticCache(model.config, 2, 16, int8=int8) for int8 in (False, True))
    heads = 2 * model.config.num_layers * 2 * model.config.num_kv_heads * 16
    assert plain.num_bytes == heads * model.config.head_dim * 4 + 2 * 4
    assert rounded.num_bytes == heads * (model.config.head_dim + 4) + 2 * 4

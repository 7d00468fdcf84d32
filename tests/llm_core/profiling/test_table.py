"""The table adds up: every moment of a step belongs to one kind, and what runs concurrently is
told apart."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_core.profiling.kinds import KINDS, kind_of_kernel, kind_of_operator
from llm_core.profiling.table import Span, exposed, own_times, read_trace, tabulate


def event(
    category: str, name: str, begin: float, end: float, thread: int = 1, **arguments: Any
) -> dict[str, Any]:
    shown = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread}
    return shown | {"ts": begin, "dur": end - begin, "args": arguments}


def by_kind(table: Any, column: str) -> dict[str, float]:
    return {row["kind"]: round(row[column], 6) for row in table.rows if row[column]}


GPU = [
    event("user_annotation", "ProfilerStep#3", 0, 1000),
    event("user_annotation", "ProfilerStep#4", 1000, 2000),
    event("user_annotation", "optimizer", 500, 600),
    event("cuda_runtime", "cudaLaunchKernel", 10, 12, correlation=1),
    event("cuda_runtime", "cudaLaunchKernel", 20, 22, correlation=2),
    event("cuda_driver", "cuLaunchKernelEx", 550, 552, correlation=3),
    event("cuda_runtime", "cudaLaunchKernel", 560, 562, correlation=4),
    event("kernel", "nvjet_tst_128x256_64x4", 100, 500, 7, correlation=1),
    event("kernel", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", 400, 900, 9, correlation=2),
    event("kernel", "void multi_tensor_apply_kernel<...>", 1000, 1300, 7, correlation=3),
    event("kernel", "ncclDevKernel_AllGather_RING_LL", 1200, 1400, 9, correlation=4),
    event("kernel", "flash_fwd_kernel", 1500, 2100, 7, correlation=5),
    event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 950, 1000, 7, correlation=6),
    event("kernel", "before the steps", -500, -100, 7, correlation=7),
]


def test_on_a_gpu_communication_counts_where_nothing_is_computed_and_the_optimizer_by_where_it_was_launched() -> (  # noqa: E501
    None
):
    table = tabulate(GPU)
    assert (table.device, table.num_steps, table.step_ms) == ("cuda", 2, 1.05)
    # In microseconds of both steps: halves of them in milliseconds of one.
    exposed_us = {
        "matmul": 400,
        "attention": 600,
        "optimizer": 300,
        "copies": 50,
        "communication": 400 + 100,
        "idle": 250,
    }
    assert by_kind(table, "exposed_ms") == {kind: time / 2000 for kind, time in exposed_us.items()}
    busy_us = {
        "communication": 700,
        "matmul": 400,
        "attention": 600,
        "optimizer": 300,
        "copies": 50,
    }
    assert by_kind(table, "busy_ms") == {kind: time / 2000 for kind, time in busy_us.items()}
    assert sum(row["share"] for row in table.rows) == pytest.approx(1)
    assert "| communication | 0.250 | 23.8 % | 0.350 | 1.0 |" in table.markdown()


def test_on_a_cpu_operators_count_with_what_they_did_not_leave_to_others() -> None:
    table = tabulate(
        [
            event("user_annotation", "ProfilerStep#1", 0, 100),
            event("user_annotation", "optimizer", 60, 90),
            event("cpu_op", "aten::linear", 10, 50),
            event("cpu_op", "aten::addmm", 15, 45),
            event("cpu_op", "aten::copy_", 20, 25),
            event("cpu_op", "aten::_foreach_mul_", 65, 85),
            event("cpu_op", "aten::mul", 0, 100, thread=5),
            event("user_annotation", "gloo:all_reduce", 40, 95, thread=6),
        ]
    )
    exposed_us = {"matmul": 35, "copies": 5, "optimizer": 20, "communication": 25, "idle": 15}
    assert table.device == "cpu" and by_kind(table, "exposed_ms") == {
        kind: time / 1000 for kind, time in exposed_us.items()
    }
    assert by_kind(table, "calls") == {"matmul": 2, "copies": 1, "optimizer": 1, "communication": 1}


spans = st.lists(
    st.tuples(st.integers(-20, 120), st.integers(0, 60), st.sampled_from(KINDS[:-1])), max_size=12
)


@given(spans)
def test_exposed_times_add_up_and_are_those_of_each_moment(
    found: list[tuple[int, int, str]],
) -> None:
    given_spans = [Span(begin, begin + length, kind, "") for begin, length, kind in found]
    expected = dict.fromkeys(KINDS, 0.0)
    for moment in range(100):
        running = {span.kind for span in given_spans if span.begin <= moment < span.end}
        expected[next((kind for kind in KINDS if kind in running), "idle")] += 1
    assert exposed(given_spans, 0, 100) == expected


@given(st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=3), max_leaves=12))
def test_own_times_of_nested_operators_add_up_to_the_outermost(tree: list[Any]) -> None:
    events: list[dict[str, Any]] = []

    def place(node: list[Any], begin: float) -> float:
        end = begin + 1
        for child in node:
            end = place(child, end) + 1
        events.append(event("cpu_op", f"op{len(events)}", begin, end))
        return end

    whole = place(tree, 0.0)
    times = own_times(events)
    assert sum(end - begin for begin, end, _, _ in times) == whole
    assert sorted(name for _, _, name, is_first in times if is_first) == sorted(
        e["name"] for e in events
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "matmul"),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_64x4_tn>",
            "matmul",
        ),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_3", "attention"),
        ("triton_tem_fused_flex_attention_1", "attention"),
        ("triton_red_fused__to_copy_mean_mul_pow_rsqrt_2", "elementwise"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>",
            "elementwise",
        ),
        ("split_backward", "elementwise"),
        ("quantize_square", "elementwise"),
        (
            "kernel_cutlass_kernel_flash_attncuteflash_bwd_sm90FlashAttentionBackwardSm90_object",
            "attention",
        ),
        (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "communication",
        ),
        ("something_nobody_knows", "other"),
    ],
)
def test_kernels_are_known_by_their_names(name: str, kind: str) -> None:
    assert kind_of_kernel(name) == kind


def test_operators_are_known_by_their_names() -> None:
    found = [
        "aten::addmm",
        "aten::_scaled_mm",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::mul",
        "c10d::allreduce_",
        "aten::copy_",
    ]
    assert list(map(kind_of_operator, found)) == [
        "matmul",
        "matmul",
        "attention",
        "elementwise",
        "communication",
        "copies",
    ]


def test_a_file_that_is_no_trace_and_a_trace_without_steps_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.json.gz"
    with gzip.open(file, "wt") as stream:
        json.dump([1], stream)
    with pytest.raises(ValueError, match="is not a Chrome trace"):
        read_trace(file)
    with pytest.raises(ValueError, match="has no ProfilerStep"):
        tabulate([event("cpu_op", "aten::mm", 0, 1)])

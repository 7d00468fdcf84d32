"""Each optimizer computes what was published: against torch.optim, or the formulas in plain
float64."""

import pytest
import torch
from torch import Tensor

from llm_core.optim.config import AdafactorConfig, GroupRule, MuonConfig
from llm_core.optim.muon import orthogonalise
from llm_core.optim.optimizer import NORM_EPS
from tests.support.engine.small_optimizers import ONE, copies, make_optimizer, same, set_gradients
from tests.support.engine.small_runs import MODEL

NUM_STEPS = 4


def steps(kind: str, **values: object) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(weights before, weights after) some steps with the gradients of `set_gradients`."""
    weights, optimizer, config = make_optimizer(kind, **values)  # type: ignore[arg-type]
    before = copies(weights)
    for seed in range(NUM_STEPS):
        set_gradients(weights, seed)
        optimizer.step(config.lr, ONE, ONE)
    return before, copies(weights)


def reference(
    before: dict[str, Tensor], make: object, names: list[str] | None = None, **groups: list[str]
) -> dict[str, Tensor]:
    """Weights after the same steps of an optimizer of torch."""
    weights = {name: torch.nn.Parameter(value.clone()) for name, value in before.items()}
    optimizer = make(weights)  # type: ignore[operator]
    for seed in range(NUM_STEPS):
        set_gradients(weights, seed)  # type: ignore[arg-type]
        optimizer.step()
    return copies(weights)  # type: ignore[arg-type]


def decaying(weights: dict[str, Tensor]) -> list[dict[str, object]]:
    return [
        {"params": [w for w in weights.values() if w.ndim >= 2], "weight_decay": 0.1},
        {"params": [w for w in weights.values() if w.ndim < 2], "weight_decay": 0.0},
    ]


def test_adamw_is_that_of_torch_to_the_bit() -> None:
    before, after = steps("adamw")
    options = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "fused": True}
    assert same(after, reference(before, lambda w: torch.optim.AdamW(decaying(w), **options)))


def test_clipping_divides_the_gradient_by_its_norm_over_the_limit() -> None:
    found = []
    for norm, factor in ((4.0, 1.0), (1.0, 0.5 / (4.0 + NORM_EPS))):
        weights, optimizer, config = make_optimizer("adamw", clip_norm=0.5 if norm > 1 else 1e9)
        for seed in range(2):
            set_gradients(weights, seed, factor)
            optimizer.step(config.lr, ONE, ONE * norm)
        found.append(copies(weights))
    assert (
        max(
            float((a - b).abs().max())
            for a, b in zip(found[0].values(), found[1].values(), strict=True)
        )
        < 1e-8
    )


def test_bf16_moments_change_adamw_no_more_than_their_rounding() -> None:
    before, exact = steps("adamw")
    _, rounded = steps("adamw", state_dtype="bf16")
    moved = max(float((exact[name] - before[name]).abs().max()) for name in before)
    error = max(float((exact[name] - rounded[name]).abs().max()) for name in before)
    assert 0 < error < 0.05 * moved


def test_adamw_with_moments_of_its_own_kernel_and_without_agree() -> None:
    from llm_core.optim.adamw import AdamW

    found = []
    for rounded in (False, True):
        weights, optimizer, config = make_optimizer("adamw", clip_norm=0.5)
        method = optimizer.methods[0]
        assert isinstance(method, AdamW)
        for seed in range(NUM_STEPS):
            set_gradients(weights, seed)
            if rounded:  # moments stay float64: only the arithmetic is the other one
                method.update = method._update_rounded  # type: ignore[method-assign]
            optimizer.step(config.lr, ONE, ONE * 3)
        found.append(copies(weights))
    assert (
        max(
            float((a - b).abs().max())
            for a, b in zip(found[0].values(), found[1].values(), strict=True)
        )
        < 1e-12
    )


def test_lion_follows_the_published_algorithm() -> None:
    before, after = steps("lion", beta2=0.99, weight_decay=0.3)
    weights = copies(before)
    means = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for seed in range(NUM_STEPS):
        set_gradients(weights, seed)
        for name, weight in weights.items():
            grad, decay = weight.grad, 0.3 if weight.ndim >= 2 else 0.0
            assert grad is not None
            direction = torch.sign(0.9 * means[name] + 0.1 * grad)
            weights[name].copy_(weight - 1e-2 * (direction + decay * weight))
            means[name] = 0.99 * means[name] + 0.01 * grad
    assert max(float((after[name] - weights[name]).abs().max()) for name in after) < 1e-13


def adafactor_formula(
    weights: dict[str, Tensor], lr: float, numbers: AdafactorConfig, decay: float
) -> None:
    """Algorithms 4 and 5 of the paper in its own notation, with the decay of AdamW; in place, over
    NUM_STEPS."""
    rows: dict[str, Tensor] = {}
    columns: dict[str, Tensor] = {}
    vectors: dict[str, Tensor] = {}
    for step in range(1, NUM_STEPS + 1):
        set_gradients(weights, step - 1)
        beta = 1 - step**-numbers.decay_power
        for name, x in weights.items():
            assert x.grad is not None
            square = x.grad**2 + numbers.eps_square
            size = max(numbers.min_rms, float(x.square().mean().sqrt()))
            if x.ndim == 2:
                ones_c, ones_r = (
                    torch.ones(x.shape[1], dtype=x.dtype),
                    torch.ones(x.shape[0], dtype=x.dtype),
                )
                rows[name] = beta * rows.get(name, 0) + (1 - beta) * (square @ ones_c)
                columns[name] = beta * columns.get(name, 0) + (1 - beta) * (ones_r @ square)
                moment = torch.outer(rows[name], columns[name]) / (ones_r @ rows[name])
            else:
                moment = vectors[name] = beta * vectors.get(name, 0) + (1 - beta) * square
            change = x.grad / moment.sqrt()
            change = change / max(1.0, float(change.square().mean().sqrt()) / numbers.clip_rms)
            x.copy_(x * (1 - lr * decay * (x.ndim == 2)) - lr * size * change)


@pytest.mark.parametrize(("clip_rms", "min_rms"), [(1.0, 1e-3), (0.7, 0.5)])
def test_adafactor_follows_the_published_algorithm(clip_rms: float, min_rms: float) -> None:
    numbers = AdafactorConfig(clip_rms=clip_rms, min_rms=min_rms)
    before, after = steps("adafactor", adafactor=numbers)
    weights = copies(before)
    adafactor_formula(weights, 1e-2, numbers, 0.1)
    assert max(float((after[name] - weights[name]).abs().max()) for name in after) < 1e-13


def test_adafactor_is_that_of_torch_where_its_relative_step_is_no_limit() -> None:
    before, after = steps("adafactor")
    found = reference(before, lambda w: torch.optim.Adafactor(decaying(w), lr=1e-2))
    assert max(float((after[name] - found[name]).abs().max()) for name in after) < 1e-12


def test_muon_is_that_of_torch_for_the_matrices_of_blocks_and_adamw_for_the_rest() -> None:
    """Sections of fused matrices are separate matrices to torch."""
    from llm_core.model.fused import join_gate_up, join_qkv, split_gate_up, split_qkv

    before, after = steps("muon", muon=MuonConfig(dtype="bf16"))
    weights = {name: torch.nn.Parameter(value.clone()) for name, value in before.items()}
    parts: dict[str, list[torch.nn.Parameter]] = {}
    for name, value in before.items():
        if name.startswith("blocks.") and value.ndim == 2:
            split = (
                split_qkv(MODEL, value)
                if "qkv" in name
                else split_gate_up(MODEL, value)
                if "gate_up" in name
                else [value]
            )
            parts[name] = [torch.nn.Parameter(part.clone()) for part in split]
    muon = torch.optim.Muon(
        [part for found in parts.values() for part in found],
        lr=1e-2,
        weight_decay=0.1,
        adjust_lr_fn="match_rms_adamw",
    )
    rest = {name: weight for name, weight in weights.items() if name not in parts}
    adamw = torch.optim.AdamW(decaying(rest), lr=1e-2, betas=(0.9, 0.95), fused=True)  # type: ignore[arg-type]
    for seed in range(NUM_STEPS):
        set_gradients(weights, seed)  # type: ignore[arg-type]
        for name, found in parts.items():
            grad = weights[name].grad
            assert grad is not None
            grads = (
                split_qkv(MODEL, grad)
                if "qkv" in name
                else split_gate_up(MODEL, grad)
                if "gate_up" in name
                else [grad]
            )
            for part, piece in zip(found, grads, strict=True):
                part.grad = piece.contiguous()
        muon.step()
        adamw.step()
    assert same({name: after[name] for name in rest}, copies(rest))  # type: ignore[arg-type]
    for name, found in parts.items():
        join = join_qkv if "qkv" in name else join_gate_up
        whole = join(MODEL, *found) if len(found) > 1 else found[0]
        # Both iterate in bfloat16, in products of other shapes.
        assert float((after[name] - whole).detach().abs().max()) < 2e-2 * 1e-2 * NUM_STEPS, name


@pytest.mark.parametrize("shape", [(3, 8, 20), (2, 24, 8), (1, 8, 8)])
def test_orthogonal_matrices_keep_singular_vectors_and_lose_singular_values(
    shape: tuple[int, int, int],
) -> None:
    matrices = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = orthogonalise(matrices, 5, in_bfloat16=False)
    u, s, vh = torch.linalg.svd(matrices, full_matrices=False)
    values = u.mT @ found @ vh.mT
    off = values - torch.diag_embed(values.diagonal(dim1=1, dim2=2))
    assert float(off.abs().max()) < 1e-10
    large = values.diagonal(dim1=1, dim2=2)[s > 0.1 * s.amax(dim=1, keepdim=True)]
    assert float(large.min()) > 0.6 and float(large.max()) < 1.3


def test_rows_may_stand_in_any_order_for_muon() -> None:
    matrices = torch.randn(
        2, 12, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    order = torch.randperm(12, generator=torch.Generator().manual_seed(3))
    one, other = (
        orthogonalise(matrices, 5, False)[:, order],
        orthogonalise(matrices[:, order], 5, False),
    )
    assert float((one - other).abs().max()) < 1e-12


@pytest.mark.parametrize("kind", ["adamw", "lion", "adafactor", "muon"])
def test_a_rule_changes_rate_and_decay_of_its_weights_alone(kind: str) -> None:
    rules = (GroupRule("ffn.down", weight_decay=0.0, lr_factor=0.0),)
    before, plain = steps(kind)
    _, ruled = steps(kind, groups=rules)
    for name in before:
        if "ffn.down" in name:
            assert torch.equal(ruled[name], before[name]) and not torch.equal(
                plain[name], before[name]
            )
        else:
            assert torch.equal(ruled[name], plain[name])

"""Chooses the next token of every row at once, on the device of the logits and without waiting.

No row is sorted. A filter keeps what lies above a threshold: the k-th largest logit for top-k, and
for top-p the largest threshold above which the wanted mass lies, found by halving the range of
float32 bit patterns, which are ordered as the numbers are. Of logits equal to a threshold the
lowest ids stay. The draw inverts the cumulative sum in the order of ids with one uniform number
(`llm_core.infer.choice.streams`). Definitions: `llm_core.infer.choice.sampling`.

Costs a few passes over the logits, and 32 more for top-p. A CPU, which need not wait for anybody,
weighs tokens by ranges instead (`llm_core.kernels.cpu.choose`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from llm_core.infer.choice.sampling import SamplingError, SamplingParams
from llm_core.infer.choice.streams import uniforms

# B rows (sequences) · V vocabulary · K the likeliest of it

RUN = 128
"""Weights that are summed before sums are compared with a number."""


@dataclass(frozen=True)
class Choosers:
    """The parameters of all rows as tensors on the device; rebuilt when the rows change."""

    temperature_B1: Tensor
    """0 for greedy rows, as `llm_core.kernels.decode.choose` expects."""
    divisor_B1: Tensor
    """The temperature, but 1 for greedy rows: they draw too, and their numbers stay finite."""
    top_k_B1: Tensor
    top_p_B1: Tensor
    min_p_B1: Tensor
    draws_B1: Tensor
    seed_B: Tensor
    choice_B: Tensor
    largest_k: int
    """0 where no row has top-k."""
    any_greedy: bool
    any_draw: bool
    any_top_p: bool
    any_min_p: bool

    @staticmethod
    def of(
        params: Sequence[SamplingParams], choices: Sequence[int], device: torch.device | str
    ) -> Choosers:
        """choices: which of a request's answers each row is."""

        def column(values: Sequence[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        drawing = [p for p in params if p.temperature > 0]
        return Choosers(
            column([p.temperature for p in params], torch.float32)[:, None],
            column([p.temperature or 1.0 for p in params], torch.float32)[:, None],
            column([p.top_k for p in params], torch.int64)[:, None],
            column([p.top_p for p in params], torch.float64)[:, None],
            column([p.min_p for p in params], torch.float32)[:, None],
            column([p.temperature > 0 for p in params], torch.bool)[:, None],
            column([p.seed for p in params], torch.int64),
            column(choices, torch.int64),
            max((p.top_k for p in drawing), default=0),
            len(drawing) < len(params),
            bool(drawing),
            any(p.top_p < 1 for p in drawing),
            any(p.min_p > 0 for p in drawing),
        )


def choose(logits_BV: Tensor, choosers: Choosers, steps_B: Tensor) -> Tensor:
    """ids_B, the next token of every row; -1 for a row with NaN, plus infinity or nothing finite.

    steps_B: how many tokens each row has chosen before.
    """
    logits_BV = logits_BV.float()
    best_B1 = logits_BV.amax(-1, keepdim=True)
    ids_B1 = best_B1.new_zeros(best_B1.shape, dtype=torch.int64)
    if choosers.any_greedy:
        ids_B1 = _likeliest(logits_BV)
    if choosers.any_draw:
        uniform_B1 = uniforms(choosers.seed_B, choosers.choice_B, steps_B)[:, None]
        ids_B1 = torch.where(
            choosers.draws_B1, _drawn(logits_BV, best_B1, uniform_B1, choosers), ids_B1
        )
    # A maximum is NaN where any number is.
    return torch.where(best_B1.isfinite(), ids_B1, -1)[:, 0]


def _likeliest(logits_BV: Tensor) -> Tensor:
    """ids_B1, the first of equal maxima on every device, by the definitions of both libraries."""
    if logits_BV.device.type == "cpu":  # NumPy takes a tenth of the time
        return torch.from_numpy(logits_BV.numpy().argmax(-1, keepdims=True))
    return logits_BV.argmax(-1, keepdim=True)


def _drawn(logits_BV: Tensor, best_B1: Tensor, uniform_B1: Tensor, choosers: Choosers) -> Tensor:
    if logits_BV.device.type != "cpu":
        return _place(kept_weights(logits_BV, choosers), uniform_B1)
    from llm_core.kernels.cpu.choose import draw

    weight_BV = (logits_BV - best_B1).div_(choosers.divisor_B1).exp_()
    columns = best_B1, choosers.divisor_B1, choosers.top_k_B1, choosers.top_p_B1, choosers.min_p_B1
    ids_B = draw(
        logits_BV.contiguous().numpy(), weight_BV.numpy(),
        *(column_B1[:, 0].contiguous().numpy() for column_B1 in (*columns, uniform_B1)),
    )  # fmt: skip
    return torch.from_numpy(ids_B)[:, None]


def _place(weight_BN: Tensor, uniform_B1: Tensor) -> Tensor:
    """place_B1 where the sum of weights in the order of ids passes this part of all."""
    # In double: a float32 sum over a large vocabulary would round away its tail. Runs first, then
    # within one: a cumulative sum is slow.
    runs_BCR = F.pad(weight_BN, (0, -weight_BN.shape[1] % RUN)).unflatten(1, (-1, RUN))
    reached_BC = runs_BCR.sum(-1, dtype=torch.float64).cumsum(-1)
    wanted_B1 = uniform_B1 * reached_BC[:, -1:]
    run_B1 = torch.searchsorted(reached_BC, wanted_B1, right=True).clamp(max=runs_BCR.shape[1] - 1)
    weight_BR = runs_BCR.gather(1, run_B1[..., None].expand(-1, -1, RUN))[:, 0]
    inner_BR = weight_BR.cumsum(-1, dtype=torch.float64)
    before_B1 = F.pad(reached_BC, (1, 0)).gather(1, run_B1)
    # The two sums round apart: a place behind the last weight, or at one of zero, is not taken.
    last_B1 = (weight_BR > 0).long().mul(torch.arange(RUN, device=weight_BR.device)).amax(-1, True)
    place_B1 = torch.searchsorted(inner_BR, wanted_B1 - before_B1, right=True).minimum(last_B1)
    return run_B1 * RUN + place_B1


def check_chosen(ids: Sequence[int], logits_BV: Tensor) -> None:
    """Raises SamplingError for the first row that `choose` could not choose for."""
    if -1 not in ids:
        return
    row = ids.index(-1)
    logits_V = logits_BV[row]
    what = "+inf" if bool((logits_V == float("inf")).any()) else "only -inf"
    what = "NaN" if bool(logits_V.isnan().any()) else what
    raise SamplingError(
        f"row {row} of the logits has {what}; the weights or a mask are broken, no token can be"
        " chosen"
    )


def check_id(token: int, row: int) -> None:
    """Raises SamplingError for an id that `choose` gives where it cannot choose."""
    if token < 0:
        raise SamplingError(
            f"row {row} of the logits has NaN, +inf or only -inf; the weights or a mask are broken,"
            " no token can be chosen"
        )


def kept_weights(logits_BV: Tensor, choosers: Choosers) -> Tensor:
    """weight_BV: probabilities relative to the likeliest token after temperature, 0 for tokens that
    a filter drops."""
    best_B1 = logits_BV.amax(-1, keepdim=True)
    # The maximum goes first, so that a small temperature sends the rest to zero and nothing to
    # infinity.
    weight_BV = ((logits_BV - best_B1) / choosers.divisor_B1).exp()
    if choosers.largest_k:
        weight_BV = _keep_k(weight_BV, logits_BV, choosers)
    if choosers.any_top_p:
        weight_BV = _keep_mass(weight_BV, logits_BV, choosers.top_p_B1)
    if choosers.any_min_p:
        weight_BV = weight_BV * (weight_BV >= choosers.min_p_B1)
    return weight_BV


def _keep_k(weight_BV: Tensor, logits_BV: Tensor, choosers: Choosers) -> Tensor:
    vocab = logits_BV.shape[1]
    largest_BK = logits_BV.topk(min(choosers.largest_k, vocab), dim=-1).values
    wanted_B1 = torch.where(choosers.top_k_B1 > 0, choosers.top_k_B1, vocab).clamp(max=vocab)
    place_B1 = (wanted_B1 - 1).clamp(max=largest_BK.shape[1] - 1)
    threshold_B1 = largest_BK.gather(1, place_B1)
    above_BV = logits_BV > threshold_B1
    tied_BV = logits_BV == threshold_B1
    spare_B1 = wanted_B1 - above_BV.sum(-1, keepdim=True)
    kept_BV = above_BV | (tied_BV & (tied_BV.cumsum(-1) <= spare_B1))
    return weight_BV * (kept_BV | (choosers.top_k_B1 == 0))


def _keep_mass(weight_BV: Tensor, logits_BV: Tensor, top_p_B1: Tensor) -> Tensor:
    """Tokens stay while those before them, by logit and then id, have not reached top_p."""
    wanted_B1 = top_p_B1 * weight_BV.sum(-1, keepdim=True, dtype=torch.float64)
    threshold_B1 = _by_halving(weight_BV, logits_BV, wanted_B1)
    above_BV, tied_BV = logits_BV > threshold_B1, logits_BV == threshold_B1
    each_B1 = (weight_BV * tied_BV).amax(-1, keepdim=True).double()
    before_BV = _mass(weight_BV, above_BV) + (tied_BV.cumsum(-1) - 1) * each_B1
    # Nothing is before the first of all, which stays whatever is wanted.
    kept_BV = above_BV | tied_BV & ((before_BV < wanted_B1) | (before_BV == 0))
    # A sum that rounds to the whole mass would drop the tail that top_p = 1 keeps.
    return weight_BV * (kept_BV | (top_p_B1 >= 1))


def _by_halving(weight_BV: Tensor, logits_BV: Tensor, wanted_B1: Tensor) -> Tensor:
    """The lowest logit needed to reach the wanted mass, without a sort or a wait: by halving the
    range of float32 numbers."""
    key_BV = _ordered_bits(logits_BV)
    # Invariant: the mass of keys >= low reaches what is wanted, that of keys >= high does not.
    high_B1 = key_BV.amax(-1, keepdim=True) + 1
    low_B1 = torch.full_like(high_B1, -(2**31))
    for _ in range(32):
        middle_B1 = (low_B1 + high_B1) >> 1
        reached_B1 = _mass(weight_BV, key_BV >= middle_B1) >= wanted_B1
        low_B1 = torch.where(reached_B1, middle_B1, low_B1)
        high_B1 = torch.where(reached_B1, high_B1, middle_B1)
    return logits_BV.masked_fill(key_BV < low_B1, float("inf")).amin(-1, keepdim=True)


def _mass(weight_BV: Tensor, of_BV: Tensor) -> Tensor:
    return (weight_BV * of_BV).sum(-1, keepdim=True, dtype=torch.float64)


def _ordered_bits(logits_BV: Tensor) -> Tensor:
    """int64 keys that compare as the float32 numbers do."""
    # Adding zero makes -0.0, which equals 0.0, have its bits.
    bits_BV = (logits_BV + 0.0).view(torch.int32)
    return (bits_BV ^ ((bits_BV >> 31) & 0x7FFFFFFF)).long()

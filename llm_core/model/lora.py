"""Products of two small factors beside linear layers (LoRA; see `llm_core.model.adapter`).

Of a fused matrix each part has an A of its own. Their products with x are one product, and B, whose
rows are in the order of the matrix, is spread to as many columns: zeros where a row belongs to
another part. So the sum over parts is one product too, tensor parallelism may cut between runs of
rows as in the matrix itself, and the merged matrix is W + s spread(B) A; with lengths of rows
(DoRA), each of its rows is stretched to its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llm_core.model.adapter import AdaptedModelConfig, layers_of

# I inputs · O outputs · R rank · P parts


class Factors(nn.Module):
    """s spread(B) A x, which is added to what the layer beside it computes."""

    m: nn.Parameter | None

    def __init__(
        self,
        layer: nn.Linear,
        parts: tuple[int, ...],
        rank: int,
        scale: float,
        decomposed: bool = False,
    ) -> None:
        """decomposed: with lengths of rows, `m`."""
        super().__init__()
        self.parts, self.scale = parts, scale
        weight = layer.weight
        self.a = nn.Parameter(weight.new_empty(len(parts) * rank, weight.shape[1]))
        self.b = nn.Parameter(weight.new_empty(weight.shape[0], rank))
        self.m = nn.Parameter(weight.new_empty(weight.shape[0])) if decomposed else None

    def forward(self, x: Tensor) -> Tensor:
        """x [..., I] → [..., O]."""
        # The scale on the narrow side, where it costs least.
        return F.linear(F.linear(x, self.a) * self.scale, spread(self.b, self.parts))

    def stretch(self, weight_OI: Tensor) -> Tensor:
        """What each output is multiplied by, [O]: the length of its row over that of the sum. The
        latter is a constant for backward (Liu et al., 2024, section 4.3)."""
        assert self.m is not None, "lengths of rows are not trained"
        with torch.no_grad():
            lengths_O = merge(weight_OI, self.a, self.b, self.parts, self.scale).norm(dim=1)
        return self.m / lengths_O


class AdaptedLinear(nn.Linear):
    """A linear layer with factors beside it, with its weight in codes, or with both."""

    lora: Factors | None

    def forward(self, x: Tensor) -> Tensor:
        if self.lora is None or self.lora.m is None:
            out = product(x, self.weight, self.bias)
            return out if self.lora is None else out + self.lora(x)
        plain = product(x, self.weight) + self.lora(x)
        out = plain * self.lora.stretch(self.weight).to(plain.dtype)
        return out if self.bias is None else out + self.bias


def product(x: Tensor, weight: Tensor | nn.Module, bias: Tensor | None = None) -> Tensor:
    """x [..., I] → [..., O]. weight: numbers, or codes (`llm_core.model.nf4`)."""
    return weight(x, bias) if isinstance(weight, nn.Module) else F.linear(x, weight, bias)


def spread(b_OR: Tensor, parts: tuple[int, ...]) -> Tensor:
    """B as wide as all parts: each row has its numbers in the columns of its part; [O, P R]."""
    if len(parts) == 1:
        return b_OR
    rank, last = b_OR.shape[1], len(parts) - 1
    runs = b_OR.unflatten(0, (-1, sum(parts))).split(parts, dim=1)
    wide = [F.pad(run, (at * rank, (last - at) * rank)) for at, run in enumerate(runs)]
    return torch.cat(wide, dim=1).flatten(0, 1)


def merge(weight_OI: Tensor, a: Tensor, b: Tensor, parts: tuple[int, ...], scale: float) -> Tensor:
    """The matrix that computes what the weight and its factors do, in float32 or wider: a sum in
    fewer bits loses most of what was learned."""
    wide = torch.promote_types(a.dtype, torch.float32)
    a, b = a.to(wide), b.to(wide)
    return torch.addmm(weight_OI.to(wide), spread(b, parts), a, alpha=scale)


def stretched(weight_OI: Tensor, lengths_O: Tensor) -> Tensor:
    """The matrix with rows of these lengths."""
    return weight_OI * (lengths_O.to(weight_OI.dtype) / weight_OI.norm(dim=1))[:, None]


def add_factors(blocks: Iterable[nn.Module], config: AdaptedModelConfig) -> None:
    """Put factors beside the layers of blocks that the config names."""
    adapter, factored = config.adapter, config.factored
    for block in blocks:
        for name, layer in layers_of(config).items():
            if name not in factored and adapter.base_codes == "none":
                continue
            plain = block.get_submodule(name)
            assert isinstance(plain, nn.Linear)
            factors = None
            if name in factored:
                sizes = adapter.rank, adapter.strength, adapter.decomposed
                factors = Factors(plain, layer.parts, *sizes)
            owner, _, last = name.rpartition(".")
            setattr(block.get_submodule(owner), last, _beside(plain, factors))


def _beside(plain: nn.Linear, factors: Factors | None) -> AdaptedLinear:
    # On the meta device, as its own weights are not used.
    layer = AdaptedLinear(plain.in_features, plain.out_features, bias=False, device="meta")
    layer.weight, layer.bias, layer.lora = plain.weight, plain.bias, factors
    return layer


def merged(
    config: AdaptedModelConfig, weights: Iterable[tuple[str, Tensor]]
) -> Iterator[tuple[str, Tensor]]:
    """(name, weight) of the merged model, in float32 or wider.

    weights: of the model and of its factors, in any order; memory holds what waits for its factors.
    """
    waiting: dict[str, dict[str, Tensor]] = {}
    factored = re.compile(rf"(blocks\.\d+\.({'|'.join(config.factored)}))\.(weight|lora\.[abm])$")
    all_of_one = 4 if config.adapter.decomposed else 3
    for name, weight in weights:
        found = factored.match(name)
        if found is None:
            yield name, weight.to(torch.promote_types(weight.dtype, torch.float32))
            continue
        one = waiting.setdefault(found[1], {})
        one[found[3]] = weight
        if len(one) == all_of_one:
            parts, scale = config.factored[found[2]].parts, config.adapter.strength
            whole = merge(one["weight"], one["lora.a"], one["lora.b"], parts, scale)
            if "lora.m" in one:
                whole = stretched(whole, one["lora.m"])
            yield f"{found[1]}.weight", whole
            del waiting[found[1]]
    assert not waiting, f"factors without their matrix: {list(waiting)}"

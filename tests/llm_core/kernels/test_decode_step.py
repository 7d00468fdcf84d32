"""The CUDA text of a decode step, run lane by lane on a CPU, gives the logits of the model."""

import dataclasses
import functools
from pathlib import Path

import pytest
import torch

from llm_core.infer.cache.paged import PagedCache, Pass
from llm_core.infer.decoders import DecodeRows, FusedDecoder
from llm_core.kernels.decode import step
from llm_core.model.config import ModelConfig
from llm_core.model.transformer import Transformer
from llm_core.quantize.formats import Format, restore
from llm_core.quantize.model import round_model, rounded_weights
from tests.support.engine.small_model import make_wide_model
from tests.support.lanes import can_run, decode_on_cpu

pytestmark = pytest.mark.skipif(not can_run, reason="needs g++ and a processor of x86-64")

LLAMA = ModelConfig(
    vocab_size=256, dim=256, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=512,
    max_seq_len=512, tied_embeddings=False,
)  # fmt: skip
CONFIGS = {
    "llama": LLAMA,
    # One group of eight heads.
    "qwen2": dataclasses.replace(
        LLAMA, qkv_bias=True, num_heads=8, num_kv_heads=1, own_head_dim=128
    ),
    "qwen3": dataclasses.replace(LLAMA, qk_norm=True, own_head_dim=128),
    # Two tiles of heads; slices and chunks that are not whole.
    "many": dataclasses.replace(LLAMA, num_heads=12, num_kv_heads=1, own_head_dim=64, ffn_dim=1216),
}


def restored(model: Transformer) -> Transformer:
    """A model with the weights of a rounded one as they are multiplied on a GPU."""
    plain = make_wide_model(model.config)
    weights = dict(plain.named_parameters())
    with torch.no_grad():
        for name, rounded in rounded_weights(model).items():
            weights[name if name in weights else f"{name}.weight"].copy_(restore(rounded))
    return plain


@pytest.mark.parametrize(
    ("name", "rows", "format", "slices"),
    [
        ("llama", 3, None, 2),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("llama", 2, None, None), ("qwen2", 16, None, 2), ("qwen2", 9, "int8", 4),
                ("qwen3", 2, "int4", None), ("many", 4, None, 4), ("llama", 9, "int4", 2),
            )
        ),
    ],
)  # fmt: skip
def test_two_steps_give_the_logits_of_whole_sequences(
    name: str,
    rows: int,
    format: Format | None,
    slices: int | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    config = CONFIGS[name]
    model = reference = make_wide_model(config)
    if format is not None:
        model = round_model(model, format)
        reference = restored(model)
    # With two rows, blocks share the tokens of a head.
    cells = rows * config.num_kv_heads
    decode_on_cpu(monkeypatch, tmp_path, (2 * cells if rows == 2 else cells) + 2)
    if slices is not None:
        monkeypatch.setattr(step, "memory_of", functools.partial(step._memory, slices=slices))
    # The last row has no tokens yet, like rows that nobody reads.
    lengths = [*[37, 100, 200, *range(16, 28), 5][: rows - 1], 0]
    tables = [[row * 14 + i for i in range(14)] for row in range(rows)]
    cache = PagedCache(config, 14 * rows + 1, 16, torch.bfloat16, "cpu")
    # Whatever is read beyond the tokens of a row spoils its logits.
    cache.keys.stored.fill_(torch.nan)
    cache.values.stored.fill_(torch.nan)
    buffers = DecodeRows.empty(rows, 14, 14 * rows, torch.device("cpu"))
    torch.manual_seed(1)
    tokens = [torch.randint(0, 256, (length,)).tolist() for length in lengths]
    with torch.inference_mode():
        filled = slice(rows - 1)
        coming = Pass.of(tokens[filled], lengths[filled], tables[filled], 16, "cpu")
        cache.begin(coming)
        reference.hidden(coming.ids_N[None], coming.positions_N[None], cache)
        buffers.tables_BM.copy_(torch.tensor(tables))
        buffers.lengths_B.copy_(torch.tensor(lengths))
        decoder = FusedDecoder(model, cache, buffers)
        for number in range(2):
            buffers.ids_B.copy_(torch.arange(rows) + 7 + number)
            for row in range(rows):
                tokens[row].append(row + 7 + number)
            found_BV = decoder()
            expected_BV = torch.stack([reference(torch.tensor([t]))[0, -1] for t in tokens])
            # A few roundings to 8 bits, of the largest logit.
            assert (found_BV - expected_BV).abs().max() < 0.03 * expected_BV.abs().max()
            buffers.lengths_B.add_(1)

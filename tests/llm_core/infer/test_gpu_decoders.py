"""On a GPU, decoders of few and many rows give the logits of the model over whole sequences."""

import dataclasses

import pytest
import torch

from llm_core.infer.bursts import Bursts
from llm_core.infer.cache.paged import PagedCache, Pass
from llm_core.infer.choice.sampling import GREEDY, SamplingParams
from llm_core.infer.decoders import Decoder, DecodeRows, FusedDecoder, ModelDecoder, is_fusable
from llm_core.infer.engine import Engine, EngineConfig
from llm_core.infer.few_tokens import FewTokens, Part
from llm_core.model.config import ModelConfig
from llm_core.quantize.formats import Format
from llm_core.quantize.model import round_model
from tests.support.engine.small_model import make_wide_model

pytestmark = pytest.mark.gpu

LLAMA = ModelConfig(
    vocab_size=2048, dim=512, num_layers=3, num_heads=8, num_kv_heads=4, ffn_dim=1408,
    max_seq_len=512, tied_embeddings=False,
)  # fmt: skip
QWEN2 = dataclasses.replace(LLAMA, qkv_bias=True, num_kv_heads=2, dim=1024, own_head_dim=128)
QWEN3 = dataclasses.replace(LLAMA, qk_norm=True, num_kv_heads=8, own_head_dim=128)
# Activations of 16 rows do not fit shared memory, and the last chunk of a row is not whole.
WIDE = dataclasses.replace(LLAMA, ffn_dim=7744)
CONFIGS = {"llama": LLAMA, "qwen2": QWEN2, "qwen3": QWEN3, "wide": WIDE}


@pytest.mark.parametrize("format", [None, "int8", "int4"])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16])
def test_logits_follow_those_of_whole_sequences(
    name: str, rows: int, format: Format | None
) -> None:
    config = CONFIGS[name]
    if format == "int4":  # scales are copied by fours
        config = dataclasses.replace(config, ffn_dim=config.ffn_dim // 256 * 256 + 256)
    model = make_wide_model(config, "cuda")
    if format is not None:
        model = round_model(model, format)
    lengths = [37, 100, 5, 200, *range(16, 28)][:rows]
    tables = [[row * 14 + i for i in range(14)] for row in range(rows)]
    found = []
    kinds: list[type[FusedDecoder] | type[ModelDecoder]] = [FusedDecoder, ModelDecoder]
    for kind in kinds:
        torch.manual_seed(1)
        cache = PagedCache(config, 14 * rows + 1, 16, torch.bfloat16, "cuda")
        with torch.inference_mode():
            tokens = [torch.randint(0, 2048, (length,)).tolist() for length in lengths]
            coming = Pass.of(tokens, lengths, tables, 16, "cuda")
            cache.begin(coming)
            model.hidden(coming.ids_N[None], coming.positions_N[None], cache)
            buffers = DecodeRows.empty(rows, 14, 14 * rows, torch.device("cuda"))
            buffers.tables_BM.copy_(torch.tensor(tables))
            buffers.lengths_B.copy_(torch.tensor(lengths))
            buffers.ids_B.copy_(torch.arange(rows) + 7)
            assert is_fusable(model, cache, rows)
            decoder: Decoder = kind(model, cache, buffers)
            found.append(decoder().float().clone())
            whole = [torch.tensor([[*t, row + 7]]).cuda() for row, t in enumerate(tokens)]
            expected_BV = torch.stack([model(ids)[0, -1].float() for ids in whole])
        # A few roundings to 8 bits, of the largest logit.
        assert (found[-1] - expected_BV).abs().max() < 0.03 * expected_BV.abs().max()
        best_B = expected_BV.gather(1, found[-1].argmax(-1, keepdim=True))[:, 0]
        assert (expected_BV.amax(-1) - best_B < 0.03 * expected_BV.abs().max()).all()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("window", [0, 50])
def test_captured_passes_of_few_tokens_store_and_tell_what_whole_sequences_give(
    name: str, window: int
) -> None:
    config = dataclasses.replace(CONFIGS[name], window=window)
    model = make_wide_model(config, "cuda")
    olds, news = [37, 0, 200, 64], [20, 9, 1, 30]
    tables = [[row * 14 + i for i in range(14)] for row in range(4)]
    caches = [PagedCache(config, 57, 16, torch.bfloat16, "cuda") for _ in range(2)]
    with torch.inference_mode():
        torch.manual_seed(1)
        tokens = [
            torch.randint(0, 2048, (old + new,)).tolist()
            for old, new in zip(olds, news, strict=True)
        ]
        for cache, lengths in zip(caches, (olds, [len(each) for each in tokens]), strict=True):
            rows = [row for row, length in enumerate(lengths) if length]
            coming = Pass.of(
                [tokens[row][: lengths[row]] for row in rows],
                [lengths[row] for row in rows],
                [tables[row] for row in rows],
                16,
                "cuda",
            )
            cache.begin(coming)
            model.hidden(coming.ids_N[None], coming.positions_N[None], cache)
        few = FewTokens(Bursts(model, caches[0], spare_block=56, most_told=1))
        parts = [
            Part(each[old:], old, table, 0, (GREEDY, 0))
            for each, old, table in zip(tokens, olds, tables, strict=True)
        ]
        told = few.run(parts)
        assert few.run(parts) == told
        for row, (each, id) in enumerate(zip(tokens, told, strict=True)):
            for ours, theirs in zip(*([c.keys, c.values] for c in caches), strict=True):
                held, wanted = (
                    x.stored[:, tables[row]].flatten(1, 2)[:, : len(each)].float()
                    for x in (ours, theirs)
                )
                assert (held - wanted).abs().max() < 0.03 * wanted.abs().max()
            logits_V = model(torch.tensor([each]).cuda())[0, -1].float()
            assert logits_V.max() - logits_V[id] < 0.03 * logits_V.abs().max()


def test_nothing_is_captured_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_wide_model(LLAMA, "cuda")
    engine = Engine(model, EngineConfig(cache_tokens=4096, max_running=9), eos_ids=[])
    engine.warm_up()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", pytest.fail)
    for count in (1, 3, 9):
        requests = [engine.submit(list(range(5, 40 + i)), GREEDY, 20) for i in range(count)]
        while engine.busy:
            engine.step()
        assert all(len(request.answers[0]) == 20 for request in requests)


@pytest.mark.parametrize("num_requests", [1, 3, 9])
def test_an_engine_writes_the_same_answers_in_bursts_of_any_size(num_requests: int) -> None:
    model = make_wide_model(LLAMA, "cuda")
    params = SamplingParams(temperature=0.8, top_k=50, seed=2)
    found = []
    for burst_tokens in (1, 5):
        config = EngineConfig(cache_tokens=4096, burst_tokens=burst_tokens)
        engine = Engine(model, config, eos_ids=[])
        requests = [engine.submit([5, 6, 7 + i], params, 20) for i in range(num_requests)]
        while engine.busy:
            engine.step()
        assert engine.num_used_blocks == 0
        found.append([request.answers[0] for request in requests])
    assert found[0] == found[1]
    assert all(len(answer) == 20 for answer in found[0])


@pytest.mark.parametrize("num_requests", [1, 9])
def test_greedy_answers_do_not_depend_on_the_seed(num_requests: int) -> None:
    model = make_wide_model(LLAMA, "cuda")
    found = []
    for seed in (1, 2):
        engine = Engine(model, EngineConfig(cache_tokens=4096), eos_ids=[])
        params = SamplingParams(temperature=0.0, seed=seed)
        requests = [engine.submit([5, 6, 7 + i], params, 40) for i in range(num_requests)]
        while engine.busy:
            engine.step()
        found.append([request.answers[0] for request in requests])
    assert found[0] == found[1]

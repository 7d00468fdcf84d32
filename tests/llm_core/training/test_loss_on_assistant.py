"""Masked tokens are in no loss and no gradient: transformers with labels of -100, in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from llm_core.data.batch import IGNORED
from llm_core.data.config import DataConfig
from llm_core.data.loader import Loader
from llm_core.data.shards import open_shards
from llm_core.huggingface.export import load_model
from llm_core.huggingface.names import to_hugging_face
from llm_core.memory.chunked_loss import head_loss
from llm_core.memory.config import MemoryConfig
from tests.support.engine.published_models import reference
from tests.support.engine.shard_files import write_split

SEQ_LEN = 12


def is_answer(place: int) -> int:
    return int(place % 9 > 5)


@pytest.mark.parametrize("chunk", [0, 5])
def test_loss_and_gradients_are_those_of_transformers(tmp_path: Path, chunk: int) -> None:
    draw = torch.Generator().manual_seed(3)
    lengths = torch.randint(3, 30, (9,), generator=draw).tolist()
    documents = [[*torch.randint(1, 51, (n,), generator=draw).tolist(), 0] for n in lengths]
    write_split(tmp_path, [documents[:4], documents[4:]], loss_mask=is_answer)
    data = DataConfig(packing="best_fit", loss_on="assistant")
    batch = Loader(open_shards(tmp_path, "train"), SEQ_LEN, 4, 0, data=data).batch(0)
    count = (batch.targets_BT != IGNORED).sum()
    assert 0 < count < batch.targets_BT.numel() // 2

    theirs = reference("gpt 2 untied", tmp_path / "model").double()
    ours = load_model(tmp_path / "model", torch.float64)
    ours.head_loss = head_loss(MemoryConfig(loss_chunk_tokens=chunk))
    ours.requires_grad_(True)
    nats, losses_BT = ours(batch.ids_BT, targets_BT=batch.targets_BT)
    (nats / count).backward()
    # Transformers predicts each label from the ids before it.
    ids_BT = torch.cat([batch.ids_BT, torch.zeros(len(batch.ids_BT), 1, dtype=torch.int64)], dim=1)
    labels_BT = torch.cat([torch.full((len(ids_BT), 1), -100), batch.targets_BT], dim=1)
    found = theirs(ids_BT, labels=labels_BT)
    # Its own loss is taken in float32, so the same formula stands for it beyond that.
    logits_NV, labels_N = found.logits[:, :-1].flatten(0, 1), labels_BT[:, 1:].flatten()
    loss = F.cross_entropy(logits_NV, labels_N, ignore_index=-100)
    torch.testing.assert_close(found.loss, loss.float(), atol=0, rtol=1e-6)
    loss.backward()

    torch.testing.assert_close(nats / count, loss, atol=0, rtol=1e-13)
    assert torch.equal(losses_BT == 0, batch.targets_BT == IGNORED)
    grads = {name: weight.grad for name, weight in ours.named_parameters()}
    named = to_hugging_face(ours.config, grads)
    expected = {name: weight.grad for name, weight in theirs.named_parameters()}
    for name, grad in named.items():
        torch.testing.assert_close(grad, expected[name], atol=1e-13, rtol=1e-11)
    assert named.keys() == expected.keys()

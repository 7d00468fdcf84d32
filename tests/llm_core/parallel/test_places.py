"""A piece in main memory is part of a whole tensor like any, also where processes meet through
GPUs."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from llm_core.compat import dtensor_of
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.places import Place
from llm_core.parallel.ranks import open_ranks


def test_a_piece_in_main_memory_stays_there_as_part_of_a_tensor_of_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    piece = torch.arange(12.0).view(4, 3)
    with open_ranks(ParallelConfig(kind="fsdp", device="cpu")) as ranks:
        assert ranks.weights is not None
        place = Place(piece.shape, piece.shape, ranks.weights, (("dp_shard", Shard(0)),))
        expected = place.view(piece)
        monkeypatch.setattr(DeviceMesh, "device_type", property(lambda mesh: "cuda"))
        found = place.view(piece)
        assert isinstance(expected, DTensor) and isinstance(found, DTensor)
        assert (
            found._spec
            == expected._spec
            == dtensor_of(piece, found.device_mesh, [Shard(0)], piece.shape)._spec
        )
        assert (
            found.to_local().data_ptr() == piece.data_ptr()
            and found.shape == piece.shape
            and not found.requires_grad
        )

"""Tensors in pages keep their values and every change made in their turn, and leave neither memory
nor disk behind."""

from __future__ import annotations

import errno
import fcntl
import os
import random
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.memory.backing import InMemory, OnDisk, PagingFailed, allocate, padded
from llm_core.memory.paging import Lanes, Pager, Placed

SIZES = st.lists(
    st.lists(st.sampled_from([0, 1, 7, 512, 1024, 1500, 4096]), min_size=1, max_size=4), max_size=7
)
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
CPU = torch.device("cpu")


def make_groups(sizes: list[list[int]]) -> list[list[Tensor]]:
    return [
        [torch.zeros(size, dtype=DTYPES[(i + j) % 3]) for j, size in enumerate(group)]
        for i, group in enumerate(sizes)
    ]


def make_pager(groups: list[list[Tensor]], where: str, folder: Path, shuffled: int = 0) -> Pager:
    """In file order unless shuffled, as runs of one large tensor do not lie side by side."""
    tensors = [tensor for group in groups for tensor in group]
    random.Random(shuffled).shuffle(tensors)
    begins, end = {}, 0
    for tensor in tensors if shuffled else (tensor for group in groups for tensor in group):
        begins[id(tensor)] = end
        end += padded(tensor.nbytes)
    pages = [
        [Placed(tensor, tensor.shape, begins[id(tensor)]) for tensor in group] for group in groups
    ]
    backing = OnDisk(end, folder) if where.startswith("disk") else InMemory(end, pinned=False)
    return Pager(pages, backing, Lanes(CPU) if where.endswith("lanes") else None)


@pytest.mark.parametrize("where", ["host", "host lanes", "disk", "disk lanes", "disk cached"])
@given(sizes=SIZES, shuffled=st.integers(0, 2))
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_paged_tensors_hold_what_tensors_in_memory_would(
    where: str,
    sizes: list[list[int]],
    shuffled: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if where == "disk cached":  # as on a file system without direct I/O
        monkeypatch.setattr(OnDisk, "_set_direct", lambda self: False)
    paged, plain = make_groups(sizes), make_groups(sizes)
    pager = make_pager(paged, where, tmp_path, shuffled)
    everything = [
        pair
        for one, other in zip(paged, plain, strict=True)
        for pair in zip(one, other, strict=True)
    ]
    for turn in range(3):
        assert all(torch.equal(a, b) for a, b in everything)
        for number in pager.turns():
            for a, b in zip(paged[number], plain[number], strict=True):
                a.mul_(1.5).add_(turn + number)
                b.mul_(1.5).add_(turn + number)
        if turn != 1:  # as a checkpoint does that is read, between updates
            pager.settle()
            for a, b in everything:
                a.sub_(1)
                b.sub_(1)
    pager.settle()
    assert all(torch.equal(a, b) for a, b in everything)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["disk", "host lanes"])
def test_tensors_are_in_three_buffers_while_they_are_used(where: str, tmp_path: Path) -> None:
    megabyte, pages = 1 << 20, 12
    groups = [[torch.zeros(megabyte // 4)] for _ in range(pages)]
    pager = make_pager(groups, where, tmp_path)
    before, seen = resident_bytes(), set()
    for _ in range(2):
        pager.settle()
        for group in groups:  # as a checkpoint does, which leaves them in the kernel's cache
            group[0].add_(1)
        for number in pager.turns():
            seen.add(groups[number][0].data_ptr())
            groups[number][0].add_(number)
            assert where != "disk" or resident_bytes() - before < 5 * megabyte
    assert len(seen) == 3 and pager.device_bytes == 3 * megabyte
    pager.settle()
    assert [float(group[0].sum()) for group in groups] == [
        2 * (number + 1) * megabyte // 4 for number in range(pages)
    ]
    if isinstance(pager.backing, OnDisk):
        assert (
            pager.backing.traffic.read_bytes
            == pager.backing.traffic.written_bytes
            == 2 * pages * megabyte
        )


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_without_room_is_one_line(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(
        ConfigError,
        match=rf"state_folder \({tmp_path}\).*5.0 MB.*{os.strerror(number)}.*state_in=host",
    ) as error:
        OnDisk(5_000_000, tmp_path)
    assert "\n" not in str(error.value) and list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_and_memory_that_is_not_there_are_one_line(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="optim.state_folder"):
        OnDisk(5, tmp_path / "file" / "folder")
    needs = r"optim.state_in \(host\) needs .* use optim.state_in=disk"
    with pytest.raises(ConfigError, match=needs):
        InMemory(1 << 60, pinned=False)


def test_runs_may_share_a_folder_and_direct_io_is_used_where_there_is_such(tmp_path: Path) -> None:
    one, other = OnDisk(4096, tmp_path), OnDisk(4096, tmp_path)
    buffer = allocate(4096)
    one.write([(0, 4096)], buffer.fill_(1))
    other.read([(0, 4096)], buffer)
    assert not buffer.any() and one.bytes_N.all()
    flags = fcntl.fcntl(one._file.fileno(), fcntl.F_GETFL)
    assert one.is_direct == bool(flags & os.O_DIRECT)


@pytest.mark.parametrize("call", ["preadv", "pwritev"])
def test_a_disk_that_fails_ends_the_update_in_one_line(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pager = make_pager([[torch.zeros(5)] for _ in range(6)], "disk", tmp_path)

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(
        PagingFailed, match=rf"state in {tmp_path} .*Input/output.*last checkpoint"
    ) as error:
        for _ in pager.turns():
            pass
    assert "\n" not in str(error.value)

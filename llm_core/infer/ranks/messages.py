"""Sends plain values from rank 0 to all others, and from one of them to rank 0: JSON, so that
nothing received can run.

Small messages to all are one broadcast between main memories, large ones two. They have a group of
their own, which waits as long as nobody asks for anything.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import torch
import torch.distributed as dist

FIRST_BYTES, LENGTH_BYTES = 4096, 8


def send(message: list[Any], group: dist.ProcessGroup) -> None:
    content = _encoded(message)
    first = bytearray(FIRST_BYTES)
    first[:LENGTH_BYTES] = len(content).to_bytes(LENGTH_BYTES, "little")
    room = FIRST_BYTES - LENGTH_BYTES
    first[LENGTH_BYTES : LENGTH_BYTES + len(content[:room])] = content[:room]
    dist.broadcast(torch.frombuffer(first, dtype=torch.uint8), 0, group)
    if rest := bytearray(content[room:]):
        dist.broadcast(torch.frombuffer(rest, dtype=torch.uint8), 0, group)


def receive(group: dist.ProcessGroup) -> list[Any]:
    first = torch.empty(FIRST_BYTES, dtype=torch.uint8)
    dist.broadcast(first, 0, group)
    content = first.numpy().tobytes()
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    content = content[LENGTH_BYTES : LENGTH_BYTES + length]
    if length > len(content):
        rest = torch.empty(length - len(content), dtype=torch.uint8)
        dist.broadcast(rest, 0, group)
        content += rest.numpy().tobytes()
    message: list[Any] = json.loads(content)
    return message


def reply(values: list[Any], group: dist.ProcessGroup) -> None:
    """To rank 0, which waits for it with `replies`."""
    content = bytearray(_encoded(values))
    dist.send(torch.tensor([len(content)]), 0, group)
    dist.send(torch.frombuffer(content, dtype=torch.uint8), 0, group)


def replies(group: dist.ProcessGroup) -> list[list[Any]]:
    """Of every other rank, in their order."""
    found = []
    for rank in range(1, dist.get_world_size()):
        length = torch.zeros(1, dtype=torch.int64)
        dist.recv(length, rank, group)
        content = torch.empty(int(length), dtype=torch.uint8)
        dist.recv(content, rank, group)
        found.append(json.loads(content.numpy().tobytes()))
    return found


def _encoded(values: list[Any]) -> bytes:
    return json.dumps(values, separators=(",", ":"), default=_plain).encode()


def _plain(value: Any) -> Any:
    """Of dataclasses and arrays."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value.tolist()

"""Reads shards of MosaicML Streaming (MDS): a sample is a record.

A shard is self-describing: the number of samples and their places (uint32), the columns as JSON,
then the samples, each with the sizes of its columns of variable size before their bytes. Texts,
numbers, JSON and bytes are read; columns of other types (arrays, pictures) are null, and pickles
are never loaded. A sample that is damaged is a fault; without sound places the rest is lost.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, BinaryIO

from tasks.readers.bytestreams import SoundBytes
from tasks.readers.items import Columns, Fault, Item, Record, damaged
from tasks.readers.recordlimits import Limits

MAX_PLACES_BYTES, MAX_CONFIG_BYTES = 1 << 27, 1 << 20


def _number(form: str, data: bytes) -> Any:
    return struct.unpack(f"<{form}", data)[0]


NUMBERS = {"int": "q", "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q"}
NUMBERS |= {"int8": "b", "int16": "h", "int32": "i", "int64": "q"}
NUMBERS |= {"float16": "e", "float32": "f", "float64": "d"}
DECODERS: Mapping[str, Callable[[bytes], Any]] = {
    "str": bytes.decode,
    "bytes": bytes,
    "json": json.loads,
    "str_int": lambda data: int(data.decode()),
    "str_float": lambda data: float(data.decode()),
    "str_decimal": bytes.decode,
    **{name: partial(_number, form) for name, form in NUMBERS.items()},
}


class Malformed(ValueError):
    """A shard that does not describe itself; the message is the end of a fault's error."""


def read_mds(
    stream: BinaryIO, compression: str, name: str, columns: Columns, limits: Limits
) -> Iterator[Item]:
    """Records at their number in the shard."""
    sound = SoundBytes(stream, compression, limits)
    try:
        places, names, encodings, sizes = _read_head(sound)
    except Malformed as error:
        what = damaged(sound.damage) if sound.damage else f"unreadable MDS: {error}"
        yield Fault(1, None, what, ends=True)
        return
    for number, (begin, end) in enumerate(pairwise(places)):
        if end - begin > limits.record_bytes:
            yield Fault(number + 1, None, limits.over("a sample"))
            _pass(sound, end - begin)
            continue
        data = _read(sound, end - begin)
        if len(data) < end - begin:
            why = sound.damage or "it ends within a sample"
            yield Fault(number + 1, None, damaged(why), ends=True)
            return
        try:
            yield Record(number, number + 1, None, _decode(data, names, encodings, sizes))
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            yield Fault(number + 1, None, f"invalid UTF-8: byte 0x{byte:02x}")
        except (ValueError, struct.error, RecursionError) as error:
            yield Fault(number + 1, None, f"unreadable MDS: a sample ({type(error).__name__})")
    is_more = bool(_read(sound, 1))
    sound.drain()
    if is_more or sound.damage:
        why = sound.damage or "bytes after the last sample"
        yield Fault(len(places), None, damaged(why), ends=True)


def _read_head(stream: SoundBytes) -> tuple[tuple[int, ...], list[str], list[str], list[Any]]:
    """Places of the samples; names, encodings and sizes of the columns."""
    first = _read(stream, 4)
    count = int.from_bytes(first, "little")
    num_bytes = 4 * (count + 1)
    if len(first) < 4 or num_bytes > MAX_PLACES_BYTES:
        raise Malformed("no number of samples")
    data = _read(stream, num_bytes)
    if len(data) < num_bytes:
        raise Malformed("its places are cut off")
    places = struct.unpack(f"<{count + 1}I", data)
    config_bytes = places[0] - 4 - num_bytes
    if not 0 <= config_bytes <= MAX_CONFIG_BYTES or list(places) != sorted(places):
        raise Malformed("its places are not in order")
    try:
        config = json.loads(_read(stream, config_bytes))
        names, encodings = config["column_names"], config["column_encodings"]
        sizes = config["column_sizes"]
        is_sound = len(names) == len(encodings) == len(sizes) and config["format"] == "mds"
        is_sound = is_sound and all(isinstance(one, str) for one in (*names, *encodings))
        is_sound = is_sound and all(size is None or int(size) >= 0 for size in sizes)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise Malformed("no description of its columns") from error
    if not is_sound:
        raise Malformed("no description of its columns")
    return places, names, encodings, sizes


def _decode(
    data: bytes, names: list[str], encodings: list[str], sizes: list[Any]
) -> dict[str, Any]:
    place = 4 * sum(not size for size in sizes)
    given = iter(struct.unpack_from(f"<{place // 4}I", data))
    values: dict[str, Any] = {}
    for name, encoding, size in zip(names, encodings, sizes, strict=True):
        end = place + (int(size) if size else next(given))
        if end > len(data):
            raise ValueError("a column is longer than its sample")
        decode = DECODERS.get(encoding)
        values[name] = decode(data[place:end]) if decode else None
        place = end
    if place != len(data):
        raise ValueError("a sample is longer than its columns")
    return values


def _read(stream: SoundBytes, num_bytes: int) -> bytes:
    """So many bytes, or what there is."""
    blocks: list[bytes] = []
    while num_bytes and (block := stream.read(min(num_bytes, 1 << 20))):
        blocks.append(block)
        num_bytes -= len(block)
    return b"".join(blocks)


def _pass(stream: SoundBytes, num_bytes: int) -> None:
    while num_bytes and (block := stream.read(min(num_bytes, 1 << 20))):
        num_bytes -= len(block)

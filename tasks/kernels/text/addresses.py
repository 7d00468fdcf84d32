"""Gives helpers of kernels the addresses of an array's numbers, instead of arrays.

An array given to a function is counted up and down by atomic instructions, which was a third to
three quarters of the time of some kernels, and it compiles as seven arguments. A bare address costs
neither. It also knows neither a length nor an owner, so:

bounds    Nothing is checked. Who makes room says for how many, and what is read behind the end of a
          text has a guard or padding.
ends      An index below 0 is an address before the array: nothing is counted from the end.
lifetime  The caller of the kernel holds what it gives. Of an array that the kernel itself makes,
          take the address anew in each round of the loop that uses the array, or use the array
          again behind the last use of the address: Numba drops an array after its last use, and
          knows of no address. The address of an array that grows is taken after it has grown.
layout    Only arrays in one piece compile, and only bytes are read and written as words.

Tests run the kernels with each array between pages that may not be touched.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import errors, types
from numba.core import cgutils
from numba.extending import intrinsic


def _pointer_type(kind: Any) -> Any:
    if isinstance(kind, types.BaseTuple):
        return types.Tuple([_pointer_type(member) for member in kind])
    if not isinstance(kind, types.Array) or kind.layout != "C":
        raise errors.TypingError(f"{kind} is not an array in one piece")
    return types.CPointer(kind.dtype)


@intrinsic
def pointers(typing_context: Any, arrays: Any) -> Any:
    """Where the numbers of an array lie, row by row; of a tuple of arrays a tuple of that, as deep.
    Indexed by one number."""

    def unpack(context, builder, kind, value):  # type: ignore[no-untyped-def]
        if not isinstance(kind, types.BaseTuple):
            return context.make_array(kind)(context, builder, value).data
        members = cgutils.unpack_tuple(builder, value)
        found = [unpack(context, builder, *member) for member in zip(kind, members, strict=True)]
        return context.make_tuple(builder, _pointer_type(kind), found)

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return unpack(context, builder, arrays, arguments[0])

    return _pointer_type(arrays)(arrays), generate


def _check_bytes(kind: Any) -> None:
    pointer = kind if isinstance(kind, types.CPointer) else _pointer_type(kind)
    if pointer != types.CPointer(types.uint8):
        raise errors.TypingError(f"{kind} are not bytes")


def _bytes_at(context, builder, kind, buf, pos):  # type: ignore[no-untyped-def]
    start = (
        buf
        if isinstance(kind, types.CPointer)
        else context.make_array(kind)(context, builder, buf).data
    )
    return builder.bitcast(builder.gep(start, [pos]), ir.IntType(64).as_pointer())


@intrinsic
def load_word(typing_context: Any, buf: Any, pos: Any) -> Any:
    """The eight bytes at buf[pos] as one number, `buf` being an array or where one lies; nothing is
    checked or aligned."""
    _check_bytes(buf)

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        word = builder.load(_bytes_at(context, builder, signature.args[0], *arguments))
        word.align = 1
        return word

    return types.uint64(buf, types.int64), generate


@intrinsic
def store_word(typing_context: Any, buf: Any, pos: Any, word: Any) -> Any:
    """Write a number as the eight bytes at buf[pos], as `load_word` reads them."""
    _check_bytes(buf)

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        builder.store(
            arguments[2], _bytes_at(context, builder, signature.args[0], *arguments[:2])
        ).align = 1
        return context.get_dummy_value()

    return types.void(buf, types.int64, types.uint64), generate

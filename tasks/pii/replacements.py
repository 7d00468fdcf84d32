"""Makes what stands in the place of spans: tags, masks and pseudonyms, and digests of values.

`tag`: `<EMAIL>`. `mask`: one `*` per byte. `drop_document`: the document goes; spans keep their
tags for whoever shows an excerpt. `pseudonym`: `<EMAIL-` and sixteen letters, the same ones for the
same value under one key, in every run: the first 64 bits of HMAC-SHA256 (RFC 2104) over type and
value, written in the letters a to p. No replacement holds anything that a detector looks at.

Digests of values are 32 bits of an HMAC under the key: enough to see that two spans hold the same.
Without a key there are none: the numbers of a kind are few, and whoever tries them all finds the
one behind a plain digest.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tasks.definitions.pii_kinds import TYPE_NAMES
from tasks.pii.spans import Spans

PSEUDONYM_LETTERS = 16
HASH_LETTERS = 8
_TO_LETTERS = str.maketrans("0123456789abcdef", "abcdefghijklmnop")


def pseudonym(key: bytes, kind: str, value: bytes) -> str:
    """The name that stands for a value of a type; case, and blanks and signs in numbers, make no
    difference."""
    digest = _keyed_digest(key, kind, value)[:PSEUDONYM_LETTERS]
    return f"<{kind}-{digest.translate(_TO_LETTERS)}>"


def _keyed_digest(key: bytes, kind: str, value: bytes) -> str:
    # Of the type too, so that a card and a telephone number of the same digits differ.
    typed = kind.encode() + b"\0" + normal_form(kind, value)
    return hmac.new(key, typed, hashlib.sha256).hexdigest()


def normal_form(kind: str, value: bytes) -> bytes:
    """One spelling of a value, that of its view (`tasks.kernels.text.view`): e-mail in lower case;
    numbers without what groups them."""
    from tasks.kernels.text.view import view_of

    # As the search reads it, so that a number is the same in digits of every script.
    view = view_of(np.frombuffer(value, np.uint8), np.array([0, len(value)]), signs=True)
    value = view.values.tobytes()
    if kind == "EMAIL":
        return value.decode("utf-8").casefold().encode()
    if kind in ("CARD", "IBAN", "NATIONAL_ID", "PHONE", "MAC"):
        return bytes(c for c in value.lower() if 48 <= c <= 57 or 97 <= c <= 122 or c == 43)
    return value


def replacements(
    values: np.ndarray, spans: Spans, action_of: Callable[[str], str], key: bytes | None
) -> pa.Array:
    """What stands in the place of each span, as strings."""
    types = spans.types
    texts = np.array([f"<{name}>" for name in TYPE_NAMES], object)[types]
    for number, name in enumerate(TYPE_NAMES):
        action = action_of(name)
        if action in ("tag", "drop_document"):
            continue
        known: dict[bytes, str] = {}
        for i in np.flatnonzero(types == number).tolist():
            start, end = int(spans.starts[i]), int(spans.ends[i])
            if action == "mask":
                texts[i] = "*" * (end - start)
                continue
            assert key is not None, "a pseudonym needs a key"
            value = values[start:end].tobytes()
            if value not in known:
                known[value] = pseudonym(key, name, value)
            texts[i] = known[value]
    return pa.array(texts, pa.string())


def value_hashes(values: np.ndarray, spans: Spans, key: bytes | None) -> pa.Array:
    """The digest of each span's value; null without a key."""
    if key is None:
        return pa.nulls(len(spans), pa.string())
    known: dict[tuple[int, bytes], str] = {}
    digests = []
    columns = (spans.starts.tolist(), spans.ends.tolist(), spans.types.tolist())
    for start, end, number in zip(*columns, strict=True):
        value = number, values[start:end].tobytes()
        if value not in known:
            known[value] = _keyed_digest(key, TYPE_NAMES[number], value[1])[:HASH_LETTERS]
        digests.append(known[value])
    return pa.array(digests, pa.string())

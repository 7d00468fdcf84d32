"""Measures how often values that only look like personal data are taken for it.

`python -m benchmarks.data.pii_lookalikes [COUNT]`: COUNT (1,000) values of each kind below, made at
random by a fixed seed, each between 200 characters of the embedded corpus on both sides, and all
types are looked for. Told is by kind and type how many values are touched by a span, with Wilson's
interval of 95 %; a touch that the text without the value has too is not counted. These are shares
of each kind, not precision in a text: that is a matter of how many look-alikes it has for each real
value.
"""

from __future__ import annotations

import base64
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.data.pii_truth import SAMPLE
from benchmarks.data.shares import records, wilson_interval
from llm_core.printing import show
from tasks.definitions.pii_kinds import FORM_TYPES, TYPE_NAMES
from tasks.pii.config import PiiConfig
from tasks.pii.spans import find_all_spans

MARGIN_CHARS = 200
SEED = 20261128

Make = Callable[[random.Random], str]


def _hex(rng: random.Random, size: int) -> str:
    return "".join(rng.choices("0123456789abcdef", k=size))


def _digits(rng: random.Random, size: int) -> str:
    """A number of so many digits that begins with none of 0."""
    return str(rng.randrange(10 ** (size - 1), 10**size))


def _number(size: int) -> Make:
    return lambda rng: f"id {_digits(rng, size)}"


def _joined(separator: str, count: int, size: int) -> Make:
    """Groups of hexadecimal digits in either case."""
    return lambda rng: _either_case(rng, separator.join(_hex(rng, size) for _ in range(count)))


def _either_case(rng: random.Random, text: str) -> str:
    return text.upper() if rng.random() < 0.3 else text


def _clock(rng: random.Random, separator: str, count: int) -> str:
    return separator.join(f"{rng.randrange(60):02d}" for _ in range(count))


def _isbn13(rng: random.Random) -> str:
    digits = [9, 7, 8, *(rng.randrange(10) for _ in range(9))]
    digits.append(-sum(d * (3 if i % 2 else 1) for i, d in enumerate(digits)) % 10)
    text = "".join(map(str, digits))
    return (
        f"{text[:3]}-{text[3]}-{text[4:9]}-{text[9:12]}-{text[12]}" if rng.random() < 0.7 else text
    )


def _isbn10(rng: random.Random) -> str:
    digits = [rng.randrange(10) for _ in range(9)]
    last = "0123456789X"[-sum(d * (10 - i) for i, d in enumerate(digits)) % 11]
    text = "".join(map(str, digits))
    return f"{text[0]}-{text[1:4]}-{text[4:9]}-{last}" if rng.random() < 0.7 else text + last


def _imei(rng: random.Random) -> str:
    digits = [3, 5, *(rng.randrange(10) for _ in range(12))]
    total = sum(sum(divmod(2 * d, 10)) if i % 2 else d for i, d in enumerate(digits))
    return "".join(map(str, [*digits, -total % 10]))


def _uuid(rng: random.Random) -> str:
    return _either_case(rng, "-".join(_hex(rng, size) for size in (8, 4, 4, 4, 12)))


_WORDS = "std a b ab abc ace add bad bee cab cafe dead beef decade face fade"


def _name_of_code(rng: random.Random) -> str:
    """Words of hexadecimal letters, some with a number."""
    parts = (
        rng.choice(_WORDS.split())
        + rng.choice(("", "", str(rng.randrange(256))))
        + rng.choice(("", "d", "f"))
        for _ in range(3)
    )
    return "::".join(list(parts)[: rng.choice((2, 3))])


def _day(rng: random.Random, separator: str) -> str:
    year, month, day = rng.randrange(30), 1 + rng.randrange(12), 1 + rng.randrange(28)
    return f"20{year:02d}{separator}{month:02d}{separator}{day:02d}"


def _parts(rng: random.Random, count: int, limit: int = 40, separator: str = ".") -> str:
    return separator.join(str(rng.randrange(limit)) for _ in range(count))


def _part_number(rng: random.Random) -> str:
    said = rng.choice(("part", "P/N", "Part No.", "model", "order no.", "cat. no.", "item"))
    return (
        f"{said} {rng.randrange(1, 1000):03d}-{rng.randrange(100):02d}-{rng.randrange(10000):04d}"
    )


_CAPITALS, _SMALL = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", "abcdefghijklmnopqrstuvwxyz"
LOOKALIKES: Mapping[str, Make] = {
    "version": lambda r: f"version {_parts(r, r.choice((3, 4)))}-{r.randrange(9)}",
    "file of a version": lambda r: f"lib{r.choice(('foo', 'ssl', 'x'))}_{_parts(r, 4)}-1_amd64.deb",
    "ISBN of 10": lambda r: f"ISBN {_isbn10(r)}",
    "ISBN of 13": lambda r: f"ISBN {_isbn13(r)}",
    "ISSN": lambda r: f"ISSN {_digits(r, 4)}-{_digits(r, 4)}",
    "DOI": lambda r: f"doi:10.{_digits(r, 4)}/{_digits(r, r.choice((7, 9, 11)))}",
    "CAS number": lambda r: (
        f"CAS {_digits(r, r.choice((3, 4, 5)))}-{r.randrange(100):02d}-{r.randrange(10)}"
    ),
    "bar code": lambda r: f"EAN {_digits(r, r.choice((12, 13)))}",
    "IMEI": lambda r: f"IMEI {_imei(r)}",
    "UUID": _uuid,
    "git commit": lambda r: f"commit {_hex(r, r.choice((7, 12, 40, 40)))}",
    "digest of a file": lambda r: (
        f"{_hex(r, r.choice((32, 40, 64)))}  file-{r.randrange(10)}.tar.gz"
    ),
    "digest in capitals": lambda r: _hex(r, r.choice((32, 40, 64))).upper(),
    "digest after 0x": lambda r: f"0x{_hex(r, r.choice((32, 40, 40, 64)))}",
    "base64": lambda r: base64.b64encode(r.randbytes(60)).decode(),
    "base64 of JSON": (
        lambda r: base64.b64encode(
            json.dumps({"alg": _hex(r, 20), "n": r.random()}).encode()
        ).decode()
    ),
    "ticket": lambda r: (
        f"{r.choice(('JIRA-', 'bug ', '#', 'CVE-2023-', 'INC', 'RT #', 'PR'))}{_digits(r, r.randrange(4, 9))}"  # noqa: E501
    ),
    "colour": lambda r: f"color: #{_either_case(r, _hex(r, r.choice((3, 6, 6, 8))))};",
    "time stamp, ISO": lambda r: f"{_day(r, '-')}T{_clock(r, ':', 3)}.{_digits(r, 3)}Z",
    "time stamp, digits": lambda r: (
        f"{_day(r, '')}{_clock(r, '', 3)}{r.choice(('', _digits(r, 3)))}"
    ),
    "time stamp, epoch": lambda r: f"1{_digits(r, r.choice((9, 12, 15, 18)))}",
    "clock": lambda r: _clock(r, ":", r.choice((2, 3, 4))),
    "six pairs of digits": lambda r: ":".join(f"{r.randrange(100):02d}" for _ in range(6)),
    "eight pairs": _joined(":", 8, 2),
    "fingerprint of pairs": lambda r: _joined(":", r.choice((16, 20)), 2)(r),
    "hex dump, bytes": lambda r: f"{_hex(r, 8)}  {' '.join(_hex(r, 2) for _ in range(8))}",
    "hex dump, words": lambda r: f"{_hex(r, 8)}: {' '.join(_hex(r, 4) for _ in range(8))}",
    "eight numbers": lambda r: _parts(r, 8, r.choice((10, 100)), ":"),
    "C++ name": _name_of_code,
    "literal with L or F": lambda r: f"= {_digits(r, 8)}{r.choice('LLF')};",
    "literal with H": lambda r: f"{_digits(r, 8)}H",
    "part number 3-2-4": _part_number,
    **{f"number of {size}": _number(size) for size in (9, 11, 12, 15, 16, 18, 19)},
    "decimal of 16 places": lambda r: f"{r.random():.16f}",
    "four groups of four": lambda r: " ".join(_digits(r, 4) for _ in range(4)),
    "six digits and seven": lambda r: f"no. {_digits(r, 6)}-{_digits(r, 7)}",
    "capitals and digits": lambda r: "".join(r.choices(_CAPITALS, k=r.randrange(16, 31))),
    "letters and digits": lambda r: "".join(r.choices(_CAPITALS + _SMALL, k=r.randrange(26, 52))),
    "slug": lambda r: "-".join(
        r.choices(("sk", "hf", "task", "learn", "live", "proj", "npm", "key", "ant", "of"), k=8)
    ),
}
"""What is not personal data, by kind: a value with the words that it often has before it."""


def count_touched(count: int, seed: int = SEED) -> dict[str, Counter[str]]:
    """{kind: {type: values touched by a span of it}} of `count` values a kind."""
    rng = random.Random(seed)
    pages = [
        record["text"]
        for record in records(SAMPLE / "sample.jsonl")
        if len(record["text"]) > 4 * MARGIN_CHARS
    ]
    config = PiiConfig(types=FORM_TYPES)
    touched: dict[str, Counter[str]] = {}
    for kind, make in LOOKALIKES.items():
        texts, places, plain = [], [], []
        for _ in range(count):
            page = rng.choice(pages)
            blank = page.find(" ", rng.randrange(MARGIN_CHARS, len(page) - MARGIN_CHARS))
            blank = blank if blank > 0 else MARGIN_CHARS
            before = page[blank - MARGIN_CHARS : blank] + " "
            after = " " + page[blank : blank + MARGIN_CHARS].lstrip()
            value = make(rng)
            texts.append((before + value + after).encode())
            plain.append((before + after.lstrip()).encode())
            places.append((len(before.encode()), len((before + value).encode())))
        hits = _touches(texts, places, config)
        # What reaches the value from before or behind is the text's own.
        own = _touches(plain, [(start - 1, start + 1) for start, _ in places], config)
        touched[kind] = Counter(
            name for names, others in zip(hits, own, strict=True) for name in names - others
        )
    return touched


def _touches(
    texts: list[bytes], places: list[tuple[int, int]], config: PiiConfig
) -> list[set[str]]:
    """Types of the spans that overlap the given place of each text."""
    begins = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    spans = find_all_spans(np.frombuffer(b"".join(texts), np.uint8), begins, config)
    found: list[set[str]] = [set() for _ in texts]
    columns = (spans.documents, spans.starts, spans.ends, spans.types)
    for document, start, end, number in zip(*(c.tolist() for c in columns), strict=True):
        first, last = places[document]
        if start - begins[document] < last and end - begins[document] > first:
            found[document].add(TYPE_NAMES[number])
    return found


def main(arguments: list[str]) -> int:
    count = int(arguments[0]) if arguments else 1000
    rows = [
        {"kind": kind, "type": name, "touched": num, "interval": wilson_interval(num, count)}
        for kind, types in count_touched(count).items()
        for name, num in sorted(types.items())
    ]
    known = {"benchmark": "pii_lookalikes", "count": count, "kinds": len(LOOKALIKES)}
    show(json.dumps(known | {"touched": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Is a candidate what it looks like? Number plans, check digits and checksums, asked once for each different value.

The kernel finds shapes; these are the judges outside it. Telephone numbers go to `phonenumbers`: international ones by number
plan, national ones only where their digits are grouped as a configured region groups them (STRICT_GROUPING), so that dates,
ISBNs, ids and rows of numbers stay. National ids go to `python-stdnum`. Cost: microseconds for each different candidate, a
tenth of a millisecond for telephone numbers; equal ones are asked once.
"""

from __future__ import annotations

import functools
import ipaddress
import itertools
import re
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from tasks.kernels import pii_kinds as kinds
from tasks.pii_crypto import is_base58_address, is_bech32_address, is_ether_address

GROUP_BITS = 5
"""Bits per group in the code of a row of digit groups, as in `tasks.kernels.pii_numbers`."""


class Checks:
    """Judges of candidates for one configuration; remembers what it has judged."""

    def __init__(self, regions: Sequence[str]) -> None:
        self._regions = tuple(regions)
        self.phone_shapes = phone_shapes(self._regions)
        """Sorted codes of the digit groups of national numbers."""
        self._texts: dict[tuple[int, bytes, int], bool] = {}

    def passed(self, values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Which rows (document, start, end, kind, value) are what they look like, as booleans."""
        passed = np.ones(len(rows), bool)
        for kind in np.flatnonzero(np.bincount(rows[:, 3])).tolist():
            if kind in kinds.BY_VALUE:
                mine = np.flatnonzero(rows[:, 3] == kind)
                distinct = pa.array(rows[mine, 4]).dictionary_encode()
                verdicts = np.array([self._is_value(kind, value) for value in distinct.dictionary.to_pylist()], bool)
                passed[mine] = verdicts[distinct.indices.to_numpy()]
            elif kind in kinds.BY_TEXT:
                for row in np.flatnonzero(rows[:, 3] == kind).tolist():
                    _, start, end, _, value = rows[row].tolist()
                    key = (kind, values[start:end].tobytes(), value)
                    if key not in self._texts:
                        self._texts[key] = _TEXT_CHECKS[kind](key[1], value)
                    passed[row] = self._texts[key]
        return passed

    def _is_value(self, kind: int, value: int) -> bool:
        if kind == kinds.PHONE:
            return _is_international(str(value))
        if kind == kinds.LOCAL_PHONE:
            number, shape = divmod(value, kinds.MAX_PHONE_SHAPES)
            groups = _digit_groups(number, int(self.phone_shapes[shape]))
            return any(_is_national(groups, region) for region in self._regions)
        return _is_national_id(kind, value)


def phone_shapes(regions: Sequence[str]) -> np.ndarray:
    """How these regions group the digits of telephone numbers, nationally and with the country code, as sorted codes."""
    from phonenumbers import PhoneMetadata

    shapes = set()
    for region in regions:
        metadata = PhoneMetadata.metadata_for_region(region, None)
        assert metadata is not None, region
        for form in metadata.number_format:
            written = (form.format or "").replace(r"\1", form.national_prefix_formatting_rule or r"\1", 1)
            shapes.update(_shapes(form.pattern or "", written))
        for form in [*metadata.number_format, *metadata.intl_number_format]:
            shapes.update(_shapes(form.pattern or "", f"{metadata.country_code} {form.format}"))
    codes = np.array(sorted(shapes), np.int64)
    assert len(codes) <= kinds.MAX_PHONE_SHAPES
    codes.flags.writeable = False
    return codes


def _shapes(pattern: str, written: str) -> set[int]:
    r"""Codes of the digit groups that a format like `(\d{2})(\d{3,4})` written as `0\1 \2` can make."""
    widths = [
        range(int(fewest or 1), int(most or fewest or 1) + 1)
        for fewest, most in re.findall(r"\(\\d(?:\{(\d+)(?:,(\d+))?\})?\)", pattern)
    ]
    codes = set()
    for sizes in itertools.product(*widths):
        form = re.sub(r"\\(\d)", lambda found, sizes=sizes: "9" * sizes[int(found[1]) - 1], written)  # type: ignore[misc]
        code = 0
        for group in re.findall("[0-9]+", form):
            code = code << GROUP_BITS | len(group)
        codes.add(code)
    return codes


def _digit_groups(number: int, shape: int) -> tuple[str, ...]:
    sizes = []
    while shape:
        sizes.append(shape & (1 << GROUP_BITS) - 1)
        shape >>= GROUP_BITS
    digits, groups = str(number).zfill(sum(sizes)), []
    for size in reversed(sizes):
        groups.append(digits[:size])
        digits = digits[size:]
    return tuple(groups)


@functools.lru_cache(maxsize=1 << 16)
def _is_international(digits: str) -> bool:
    import phonenumbers

    try:
        return bool(phonenumbers.is_valid_number(phonenumbers.parse("+" + digits)))
    except phonenumbers.NumberParseException:
        return False


@functools.lru_cache(maxsize=1 << 16)
def _is_national(groups: tuple[str, ...], region: str) -> bool:
    """A valid number of the region, with its digits grouped as the region writes them."""
    import phonenumbers
    from phonenumbers import PhoneNumberFormat, format_number

    try:
        number = phonenumbers.parse("".join(groups), region)
    except phonenumbers.NumberParseException:
        return False
    if not phonenumbers.is_valid_number_for_region(number, region):
        return False
    written = (format_number(number, style) for style in (PhoneNumberFormat.NATIONAL, PhoneNumberFormat.INTERNATIONAL))
    return any(groups == tuple(re.findall("[0-9]+", form)) for form in written)


@functools.lru_cache(maxsize=1 << 16)
def _is_national_id(kind: int, value: int) -> bool:
    if kind == kinds.CN_RIC:
        from stdnum.cn import ric

        return bool(ric.is_valid(f"{value >> 4:017d}{'0123456789X'[value & 15]}"))
    if kind == kinds.US_SSN:
        from stdnum.us import ssn

        return bool(ssn.is_valid(f"{value:09d}"))
    if kind == kinds.DE_IDNR:
        from stdnum.de import idnr

        return bool(idnr.is_valid(f"{value:011d}"))
    if kind == kinds.FR_NIR:
        from stdnum.fr import nir

        number = f"{value:015d}"
        # Months above 12 stand for births of unknown month (INSEE).
        month = int(number[3:5])
        return number[0] in "123478" and (1 <= month <= 12 or 20 <= month <= 42 or month >= 50) and bool(nir.is_valid(number))
    if kind in (kinds.ES_DNI, kinds.ES_NIE):
        from stdnum.es import dni, nie

        digits, letter = f"{value >> 5:08d}", chr(64 + (value & 31))
        if kind == kinds.ES_DNI:
            return bool(dni.is_valid(digits + letter))
        return bool(nie.is_valid("XYZ"[int(digits[0])] + digits[1:] + letter))
    if kind == kinds.IN_AADHAAR:
        from stdnum.in_ import aadhaar

        return bool(aadhaar.is_valid(f"{value:012d}"))
    if kind == kinds.BR_CPF:
        from stdnum.br import cpf

        return bool(cpf.is_valid(f"{value:011d}"))
    if kind == kinds.KR_RRN:
        from stdnum.kr import rrn

        return bool(rrn.is_valid(f"{value:013d}"))
    if kind == kinds.PL_PESEL:
        from stdnum.pl import pesel

        return bool(pesel.is_valid(f"{value:011d}"))
    assert kind == kinds.NL_BSN, kind
    from stdnum.nl import bsn

    return bool(bsn.is_valid(f"{value:09d}"))


def _is_codice_fiscale(text: bytes) -> bool:
    from stdnum.it import codicefiscale

    return bool(codicefiscale.is_valid(text.decode("ascii")))


def _is_ip6(text: bytes) -> bool:
    try:
        address = ipaddress.IPv6Address(text.decode("ascii"))
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified or address.is_multicast)


_TEXT_CHECKS: dict[int, Callable[[bytes, int], bool]] = {
    kinds.IP6: lambda text, value: _is_ip6(text),
    kinds.BASE58_ADDRESS: lambda text, value: is_base58_address(text),
    kinds.BECH32_ADDRESS: lambda text, value: is_bech32_address(text),
    kinds.ETHER_ADDRESS: lambda text, value: is_ether_address(text, value > 0),
    kinds.IT_CF: lambda text, value: _is_codice_fiscale(text),
}

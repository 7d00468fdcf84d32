"""Recognises structured values in plain Python: the other opinion in tests of detection."""

from __future__ import annotations

import ipaddress
import re

import phonenumbers
from phonenumbers import PhoneNumberFormat, format_number
from phonenumbers.phonenumberutil import _choose_formatting_pattern_for_number
from stdnum import iban as stdnum_iban
from stdnum import luhn
from stdnum.br import cpf
from stdnum.cn import ric
from stdnum.de import idnr
from stdnum.es import dni, nie
from stdnum.fr import nir
from stdnum.in_ import aadhaar
from stdnum.kr import rrn
from stdnum.nl import bsn
from stdnum.pl import pesel
from stdnum.us import ssn

from tasks.definitions import pii_kinds as kinds


def is_card(text: str) -> bool:
    digits = re.sub("[ -]", "", text)
    prefixes = "4[0-9]{15}|4[0-9]{18}|5[1-5][0-9]{14}|3[47][0-9]{13}|30[0-5][0-9]{11}|3[68][0-9]{12}|6011[0-9]{12,15}"  # noqa: E501
    later = "64[4-9][0-9]{13,16}|65[0-9]{14,17}|62[0-9]{14,17}"
    ranged = len(digits) >= 16 and digits.isdigit() and 3528 <= int(digits[:4]) <= 3589
    ranged |= len(digits) == 16 and digits.isdigit() and 2221 <= int(digits[:4]) <= 2720
    issued = ranged or re.fullmatch(f"{prefixes}|{later}", digits) is not None
    mir = "220[0-4][0-9]{12,15}"
    maestro = "(?:50|5[678]|6304|6759|676[123])[0-9]+"
    issued |= len(digits) >= 13 and re.fullmatch(f"{mir}|{maestro}", digits) is not None
    return issued and len(digits) <= 19 and bool(luhn.is_valid(digits))


def is_iban(text: str) -> bool:
    compact = text.replace(" ", "")
    if len(compact) < 15 or not re.fullmatch("[A-Z]{2}[0-9]{2}[A-Z0-9]+", compact):
        return False
    turned = compact[4:] + compact[:4]
    return (
        stdnum_iban_length(compact[:2]) == len(compact)
        and int("".join(str(int(c, 36)) for c in turned)) % 97 == 1
    )


def stdnum_iban_length(country: str) -> int | None:
    """The length that python-stdnum's copy of the registry gives."""
    info = stdnum_iban._ibandb.info(country + "00")[0][1]
    if "bban" not in info:
        return None
    return 4 + sum(int(n) for n in re.findall(r"(\d+)!", info["bban"]))


def is_ip4(text: str) -> bool:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        return False
    first = int(text.split(".")[0])
    arcs = text.startswith(("1.3.", "2.5.", "2.16"))
    return not address.is_loopback and 0 < first < 224 and not arcs


def is_ip6(text: str) -> bool:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return False
    first, second = int(address) >> 112, int(address) >> 96 & 0xFFFF
    assigned = (
        0x2000 <= first < 0x4000
        or 0xFC00 <= first < 0xFF00
        or (first, second) in ((0, 0), (0x64, 0xFF9B))
    )
    assigned |= text.startswith("::")
    enough = len(re.findall("[0-9a-fA-F]", text)) >= 5 and any(c.isdigit() for c in text)
    return (
        enough
        and assigned
        and not (address.is_loopback or address.is_unspecified or address.is_multicast)
    )


def is_mac(text: str) -> bool:
    if not re.fullmatch(
        "(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}|(?:[0-9A-Fa-f]{2}-){5}[0-9A-Fa-f]{2}", text
    ):
        return False
    numbers = [int(pair, 16) for pair in re.split("[:-]", text)]
    return numbers[0] % 2 == 0 and re.search("[A-Fa-f]", text) is not None


def is_international(digits: str) -> bool:
    try:
        return bool(phonenumbers.is_valid_number(phonenumbers.parse("+" + digits)))
    except phonenumbers.NumberParseException:
        return False


def is_national(groups: tuple[str, ...], region: str) -> bool:
    """A valid number of the region, with its digits grouped as the region writes them; where the
    plan has no format for it, only behind its country code."""
    try:
        number = phonenumbers.parse("".join(groups), region)
    except phonenumbers.NumberParseException:
        return False
    if number.country_code != phonenumbers.country_code_for_region(region):
        return False
    if not phonenumbers.is_valid_number(number):
        return False
    if len(groups) == 1 and not _has_format(number):
        return False
    written = (
        format_number(number, style)
        for style in (PhoneNumberFormat.NATIONAL, PhoneNumberFormat.INTERNATIONAL)
    )
    return any(groups == tuple(re.findall("[0-9]+", form)) for form in written)


def _has_format(number: phonenumbers.PhoneNumber) -> bool:
    region = phonenumbers.region_code_for_country_code(number.country_code)
    formats = phonenumbers.PhoneMetadata.metadata_for_region(region).number_format
    national = phonenumbers.national_significant_number(number)
    return _choose_formatting_pattern_for_number(formats, national) is not None


def is_national_id(kind: int, value: int) -> bool:
    """What stdnum says of a value of the kernel. It fails on Chinese ids with a province and no
    county, which are none."""
    if kind == kinds.CN_RIC:
        try:
            return value & 15 < 11 and bool(
                ric.is_valid(f"{value >> 4:017d}{'0123456789X'[value & 15]}")
            )
        except KeyError:
            return False
    if kind == kinds.US_SSN:
        return bool(ssn.is_valid(f"{value:09d}"))
    if kind == kinds.DE_IDNR:
        return bool(idnr.is_valid(f"{value:011d}"))
    if kind == kinds.FR_NIR:
        number = f"{value:015d}"
        # Months above 12 stand for births of unknown month (INSEE).
        month = int(number[3:5])
        return (
            number[0] in "123478"
            and (1 <= month <= 12 or 20 <= month <= 42 or month >= 50)
            and bool(nir.is_valid(number))
        )
    if kind in (kinds.ES_DNI, kinds.ES_NIE):
        digits, letter = f"{value >> 5:08d}", chr(64 + (value & 31))
        if kind == kinds.ES_DNI:
            return bool(dni.is_valid(digits + letter))
        return bool(nie.is_valid("XYZ"[int(digits[0])] + digits[1:] + letter))
    if kind == kinds.IN_AADHAAR:
        return bool(aadhaar.is_valid(f"{value:012d}"))
    if kind == kinds.BR_CPF:
        return bool(cpf.is_valid(f"{value:011d}"))
    if kind == kinds.KR_RRN:
        return bool(rrn.is_valid(f"{value:013d}"))
    if kind == kinds.PL_PESEL:
        return bool(pesel.is_valid(f"{value:011d}"))
    assert kind == kinds.NL_BSN, kind
    return bool(bsn.is_valid(f"{value:09d}"))

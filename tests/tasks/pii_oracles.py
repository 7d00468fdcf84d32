"""What a structured value is, written again in plain Python: the other opinion in tests of detection."""

from __future__ import annotations

import ipaddress
import re

from stdnum import iban as stdnum_iban
from stdnum import luhn


def is_card(text: str) -> bool:
    digits = re.sub("[ -]", "", text)
    prefixes = "4[0-9]{15}|4[0-9]{18}|5[1-5][0-9]{14}|3[47][0-9]{13}|30[0-5][0-9]{11}|3[68][0-9]{12}|6011[0-9]{12,15}"
    later = "64[4-9][0-9]{13,16}|65[0-9]{14,17}|62[0-9]{14,17}"
    ranged = len(digits) >= 16 and digits.isdigit() and 3528 <= int(digits[:4]) <= 3589
    ranged |= len(digits) == 16 and digits.isdigit() and 2221 <= int(digits[:4]) <= 2720
    issued = ranged or re.fullmatch(f"{prefixes}|{later}", digits) is not None
    return issued and len(digits) <= 19 and bool(luhn.is_valid(digits))


def is_iban(text: str) -> bool:
    compact = text.replace(" ", "")
    if len(compact) < 15 or not re.fullmatch("[A-Z]{2}[0-9]{2}[A-Z0-9]+", compact):
        return False
    turned = compact[4:] + compact[:4]
    return stdnum_iban_length(compact[:2]) == len(compact) and int("".join(str(int(c, 36)) for c in turned)) % 97 == 1


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
    enough = len(re.findall("[0-9a-fA-F]", text)) >= 5 and any(c.isdigit() for c in text)
    return enough and not (address.is_loopback or address.is_unspecified or address.is_multicast)


def is_mac(text: str) -> bool:
    if not re.fullmatch("(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}|(?:[0-9A-Fa-f]{2}-){5}[0-9A-Fa-f]{2}", text):
        return False
    numbers = [int(pair, 16) for pair in re.split("[:-]", text)]
    return numbers[0] % 2 == 0 and any(numbers) and (":" in text or re.search("[A-Fa-f]", text) is not None)

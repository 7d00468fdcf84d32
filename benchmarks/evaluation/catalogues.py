"""Reads English and Chinese texts out of the message catalogues of Django's wheel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from zipfile import ZipFile

import polib

CATALOGUE = re.compile(r"django/.*/locale/zh_Hans/LC_MESSAGES/django(js)?\.po")
NOT_TEXT = re.compile(r"%\(\w+\)?[a-z]|%[sd%]|\{[^}]*\}|<[^>]+>|&\w+;|\\|\n")
"""Placeholders, markup and line breaks."""
CHINESE = re.compile(r"[\u3400-\u9fff]")


def messages(wheel: ZipFile) -> Iterator[dict[str, Any]]:
    """English messages with their Chinese translation, each once.

    Those with placeholders or markup are dropped, as without these they are often no sentence; and
    those without a Chinese letter in the translation, such as `URL`, as they are the same in both.
    """
    known: dict[str, str] = {}
    for name in sorted(filter(CATALOGUE.match, wheel.namelist())):
        for entry in polib.pofile(wheel.read(name).decode("utf-8")):
            if entry.msgstr and not entry.obsolete and "fuzzy" not in entry.flags:
                known.setdefault(entry.msgid.strip(), entry.msgstr.strip())
    texts = (
        (english, chinese)
        for english, chinese in known.items()
        if CHINESE.search(chinese) and not NOT_TEXT.search(english + chinese)
    )
    for number, (english, chinese) in enumerate(texts):
        yield {"id": str(number), "question": english, "answer": chinese}

"""Extracts the spoken text of subtitles (SubRip, WebVTT): lines without numbers, times, marks and
notes. A line that stays on the screen through several times counts once."""

from __future__ import annotations

import html
import re

from tasks.ingest.decoding import decode
from tasks.readers.pages import BrokenPage, PageText

TIME = r"(?:\d+:)?\d{1,2}:\d{2}[.,]\d{1,3}"
TIMES = re.compile(rf"^[ \t]*{TIME}[ \t]*-->[ \t]*{TIME}.*$", re.MULTILINE)
NUMBER = re.compile(r"(?:\A|\n)[ \t]*\d+[ \t]*\n\Z")
"""Of the cue that follows, in SubRip; the blank line before it may be missing."""
BLANK_LINE = re.compile(r"(?:\A|\n)[ \t]*\n")
MARKS = re.compile(r"</?[a-zA-Z0-9.]+(?:[ \t][^<>]*)?>|\{\\[^}]*\}|<\d[\d:.]*>")


def read(data: bytes, charset: str | None, max_bytes: int) -> PageText:
    """One line for each line of speech."""
    source, encoding = decode(data, charset, False)
    source = source.replace("\r\n", "\n")
    _, *cues = TIMES.split(source)
    if not cues:
        raise BrokenPage("unreadable subtitles: no times")
    spoken: list[str] = []
    is_webvtt = source.lstrip().startswith("WEBVTT")
    for i, cue in enumerate(cues, 1):
        speech = cue.removeprefix("\n")
        if is_webvtt:
            # A blank line ends the cue; behind it is the name of the next one, or a note.
            speech = BLANK_LINE.split(speech, maxsplit=1)[0]
        if i < len(cues):
            speech = NUMBER.sub("", speech)
        for line in speech.split("\n"):
            text = html.unescape(MARKS.sub("", line)).strip()
            if text and (not spoken or spoken[-1] != text):
                spoken.append(text)
    return PageText("\n".join(spoken), None, encoding.name, encoding.repaired)

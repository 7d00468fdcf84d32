"""Lists the scripts of each language: names, ranges of code points, and the labels of lid.176 by
script.

Ranges are Unicode blocks, coarsely: letters of living scripts. Languages written in several scripts
list them all; what is not listed is Latin. `HAN` alone is Chinese; Japanese mixes it with `KANA`,
Korean with `HANGUL`.
"""

from __future__ import annotations

import functools

_SCRIPTS = (
    "OTHER LATIN GREEK CYRILLIC ARMENIAN HEBREW ARABIC THAANA DEVANAGARI BENGALI GURMUKHI GUJARATI"
    " ORIYA TAMIL TELUGU KANNADA MALAYALAM SINHALA THAI LAO TIBETAN MYANMAR GEORGIAN HANGUL"
    " ETHIOPIC KHMER MONGOLIAN KANA HAN"
)
SCRIPTS = _SCRIPTS.split()
"""OTHER stands for characters that are letters of none of them."""

RANGES: tuple[tuple[int, int, str], ...] = (
    (0x41, 0x5A, "LATIN"),
    (0x61, 0x7A, "LATIN"),
    (0xC0, 0x24F, "LATIN"),
    (0x1E00, 0x1EFF, "LATIN"),
    (0x370, 0x3FF, "GREEK"),
    (0x1F00, 0x1FFF, "GREEK"),
    (0x400, 0x52F, "CYRILLIC"),
    (0x531, 0x587, "ARMENIAN"),
    (0x5D0, 0x5F2, "HEBREW"),
    (0x620, 0x64A, "ARABIC"),
    (0x66E, 0x6D5, "ARABIC"),
    (0x6EE, 0x6FF, "ARABIC"),
    (0x750, 0x77F, "ARABIC"),
    (0xFB50, 0xFDFF, "ARABIC"),
    (0xFE70, 0xFEFC, "ARABIC"),
    (0x780, 0x7BF, "THAANA"),
    (0x900, 0x97F, "DEVANAGARI"),
    (0x980, 0x9FF, "BENGALI"),
    (0xA00, 0xA7F, "GURMUKHI"),
    (0xA80, 0xAFF, "GUJARATI"),
    (0xB00, 0xB7F, "ORIYA"),
    (0xB80, 0xBFF, "TAMIL"),
    (0xC00, 0xC7F, "TELUGU"),
    (0xC80, 0xCFF, "KANNADA"),
    (0xD00, 0xD7F, "MALAYALAM"),
    (0xD80, 0xDFF, "SINHALA"),
    (0xE01, 0xE4E, "THAI"),
    (0xE80, 0xEFF, "LAO"),
    (0xF40, 0xFBC, "TIBETAN"),
    (0x1000, 0x109F, "MYANMAR"),
    (0x10A0, 0x10FF, "GEORGIAN"),
    (0x1100, 0x11FF, "HANGUL"),
    (0x3130, 0x318F, "HANGUL"),
    (0xAC00, 0xD7A3, "HANGUL"),
    (0x1200, 0x137F, "ETHIOPIC"),
    (0x1780, 0x17D3, "KHMER"),
    (0x1820, 0x18AA, "MONGOLIAN"),
    (0x3041, 0x30FF, "KANA"),
    (0x31F0, 0x31FF, "KANA"),
    (0xFF66, 0xFF9D, "KANA"),
    (0x3400, 0x4DBF, "HAN"),
    (0x4E00, 0x9FFF, "HAN"),
    (0xF900, 0xFAFF, "HAN"),
    (0x20000, 0x323AF, "HAN"),
)
"""(first, last, script); signs between the letters of a block count with them, and code points
outside are letters of none."""

_LANGUAGES = {
    "GREEK": "el",
    "CYRILLIC": (
        "av az ba be bg bxr ce cv kk krc kv ky lez mhr mk mn mrj myv os ro ru rue sah sh sr tg tk"
        " tt tyv uk uz xal"
    ),
    "ARMENIAN": "hy",
    "HEBREW": "he yi",
    "ARABIC": "ar arz az azb ckb fa kk ku ky lrc ms mzn pnb ps sd tg tk ug ur uz",
    "THAANA": "dv",
    "DEVANAGARI": "bh dty gom hi mai mr ne new sa sd",
    "BENGALI": "as bn bpy",
    "GURMUKHI": "pa",
    "GUJARATI": "gu",
    "ORIYA": "or",
    "TAMIL": "ta",
    "TELUGU": "te",
    "KANNADA": "kn",
    "MALAYALAM": "ml",
    "SINHALA": "si",
    "THAI": "th",
    "LAO": "lo",
    "TIBETAN": "bo",
    "MYANMAR": "my",
    "GEORGIAN": "ka xmf",
    "HANGUL": "ko",
    "ETHIOPIC": "am",
    "KHMER": "km",
    "MONGOLIAN": "mn",
    "KANA": "ja",
    "HAN": "wuu yue zh",
}
_ALSO_LATIN = ("az", "gom", "kk", "ku", "mn", "ms", "ro", "sh", "sr", "tg", "tk", "tt", "ug", "uz")


@functools.cache
def scripts_of(label: str) -> frozenset[str]:
    """The scripts a language is written in; Latin where nothing else is known."""
    found = {script for script, labels in _LANGUAGES.items() if label in labels.split()}
    return frozenset(found | ({"LATIN"} if label in _ALSO_LATIN or not found else set()))


def only_language_of(script: str) -> str | None:
    """The only language of lid.176 in a script; Chinese for Han, Japanese for Kana; else None."""
    if script == "HAN":
        return "zh"
    labels = _LANGUAGES.get(script, "").split()
    return labels[0] if len(labels) == 1 else None

"""Measures the search for telephone numbers on invented numbers in sentences.

`python -m benchmarks.data.phone_sentences [COUNT]`: for each of ten languages COUNT (240) sentences
with a number and as many with a look-alike, half of them with sentences of the holdout
(`benchmarks.data.phone_templates`, `benchmarks.data.phone_holdout`). Numbers follow the forms
below, made at random by a fixed seed: national ones, grouped, unbroken and behind brackets, and one
in eight international. A number is found where one span covers it; a span that touches no number is
wrong. Told by set and language, with Wilson's interval of 95 %. The last line is one JSON object.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator

from benchmarks.data import phone_holdout, phone_templates
from benchmarks.data.shares import share
from llm_core.printing import show
from tasks.pii.config import PiiConfig
from tasks.pii.spans import find_spans

SEED = 20261130
SETS = {
    "development": (phone_templates.PHONES, phone_templates.LOOKALIKES),
    "holdout": (phone_holdout.PHONES, phone_holdout.LOOKALIKES),
}

# X is any digit, N one of 2 to 9. After the bar the international forms.
_FORMS = {
    "zh": "13XXXXXXXXX 15NXXXXXXXX 18XXXXXXXXX 138_XXXX_XXXX 186-XXXX-XXXX 010-6NXXXXXX"
    " 021-5NXXXXXX 0755-8NXXXXXX (010)8NXXXXXX 0571-87XXXXXX 400-8NX-XXXX |"
    " +86_13X_XXXX_XXXX +8618NXXXXXXXX",
    "en": "212NXXXXXX 415NXX1XXX (212)_NXX-XXXX (617)NXXXXXX 312-NXX-XXXX 202.NXX.XXXX"
    " 1-800-NXX-XXXX 646_NXX_XXXX 020_7946_0XXX 07700_900XXX 07911XXXXXX |"
    " +1_212_NXX_XXXX +44_20_7946_0XXX",
    "de": "030_2NXXXXXX 089/3NXXXXX 0171_2NXXXXX 01512NXXXXXX 0160-9NXXXXXX 040_3NXXXX_0"
    " 0221-2NXXXXX (030)_2NXXXXXX 0711_22XXXXX | +49_30_2NXXXXXX +49_171_2NXXXXX",
    "fr": "01_4N_XX_XX_XX 06_1N_XX_XX_XX 061NXXXXXX 07.6N.XX.XX.XX 04-7N-XX-XX-XX"
    " 0800_9XX_XXX 05_56_XX_XX_XX | +33_1_4N_XX_XX_XX +336NXXXXXXX",
    "es": "91N_XXX_XXX 6NX_XX_XX_XX 6NXXXXXXX 93_4NX_XX_XX 95NXXXXXX 900_1XX_XXX 6NX_XXX_XXX"
    " 55_5NXX_XXXX 6NX-XXX-XXX | +34_6NX_XXX_XXX +34_91_4NX_XXXX",
    "ja": "03-3NXX-XXXX 090-NXXX-XXXX 080NXXXXXXX 06-6NXX-XXXX 0120-NXX-XXX 045-2NX-XXXX"
    " 03(3NXX)XXXX 070-3NXX-XXXX | +81_3-3NXX-XXXX +81_90-NXXX-XXXX",
    "ru": "8_(495)_NXX-XX-XX 8_91N_XXX-XX-XX 8912NXXXXXX 8-905-NXX-XX-XX (812)_NXX-XX-XX"
    " 8(499)NXXXXXX 8_800_NXX-XX-XX 903_NXX_XX_XX | +7_(495)_NXX-XX-XX +7912NXXXXXX",
    "pt": "(11)_9NXXX-XXXX 11_9NXXX-XXXX 119NXXXXXXX (21)_3NXX-XXXX 21N_XXX_XXX 91N_XXX_XXX"
    " 96NXXXXXX 0800_7NX_XXXX (48)9NXXX-XXXX | +55_11_9NXXX-XXXX +351_91N_XXX_XXX",
    "hi": "98XXXXXXXX 9NXXX_XXXXX 8NXXX-XXXXX 099NXXXXXXX 011-2NXXXXXX 022_2NXX_XXXX"
    " 7NXXXXXXXX 1800_1NX_XXXX 080-4NXXXXXX | +91_98XXX_XXXXX +919NXXXXXXXX",
    "ar": "01NXXXXXXXX 010_NXXX_XXXX 05NXXXXXXX 050_NXX_XXXX 055-NXX-XXXX 02_2NXX_XXXX"
    " 0112NXXXXXX 011_4NX_XXXX | +966_5N_XXX_XXXX +20_10_NXXX_XXXX",
}


def _number(rng: random.Random, language: str) -> str:
    national, international = (part.split() for part in _FORMS[language].split("|"))
    form = rng.choice(international if rng.random() < 0.125 else national)
    return re.sub("[NX_]", lambda m: _sign(rng, m[0]), form)


def _sign(rng: random.Random, sign: str) -> str:
    return {"N": rng.choice("23456789"), "X": rng.choice("0123456789"), "_": " "}[sign]


def _lookalike(rng: random.Random, template: str) -> str:
    def value(found: re.Match[str]) -> str:
        kind, size = found[1], found[2]
        if kind == "d":
            return str(rng.randrange(10 ** (int(size) - 1), 10 ** int(size)))
        second = rng.randrange(1_500_000_000, 1_800_000_000)
        year, month, day = rng.randrange(1990, 2030), rng.randrange(1, 13), rng.randrange(1, 29)
        return {
            "t": str(second),
            "m": f"{second}{rng.randrange(1000):03d}",
            "v": ".".join(str(rng.randrange(30)) for _ in range(rng.choice((3, 4)))),
            "w": rng.choice((f"{year}-{month:02d}-{day:02d}", f"{day:02d}.{month:02d}.{year}")),
        }[kind]

    return re.sub(r"\{([dtmvw])(\d*)\}", value, template)


def sentences(count: int, name: str, seed: int = SEED) -> Iterator[tuple[str, str, int, int]]:
    """(language, text, first and last byte of its number) of one set; -1, -1 for a look-alike."""
    rng = random.Random(f"{seed} {name}")
    phones, lookalikes = SETS[name]
    for language in _FORMS:
        for _ in range(count):
            before, after = rng.choice(phones[language].splitlines()).split("{n}")
            number = _number(rng, language)
            start = len(before.encode())
            yield language, before + number + after, start, start + len(number.encode())
        for _ in range(count):
            template = rng.choice(lookalikes[language].splitlines())
            yield language, _lookalike(rng, template), -1, -1


def measure(count: int, name: str) -> tuple[dict[str, object], list[str]]:
    """Recall and precision of one set and of each language, and the sentences that went wrong."""
    config, counts, wrong = PiiConfig(types=("PHONE",)), Counter[tuple[str, str]](), []
    for language, text, start, end in sentences(count, name):
        data = text.encode()
        spans = find_spans(data, config)
        found = [s <= start and end <= e for s, e, _ in spans]
        spurious = sum(not (s < end and start < e) for s, e, _ in spans)
        if (start >= 0 and not any(found)) or spurious:
            written = [data[s:e].decode() for s, e, _ in spans]
            wrong.append(f"{language}: {text} {written}")
        for key in (language, ""):
            counts[key, "numbers"] += start >= 0
            counts[key, "found"] += any(found)
            counts[key, "spans"] += len(spans)
            counts[key, "right"] += len(spans) - spurious
    result: dict[str, object] = {}
    for key in ("", *_FORMS):
        label = f"{name}_{key}" if key else name
        result |= share(f"{label}_recall", counts[key, "found"], counts[key, "numbers"], "")
        result |= share(f"{label}_precision", counts[key, "right"], counts[key, "spans"], "")
    return result, wrong


def main(arguments: list[str]) -> int:
    count = int(arguments[0]) if arguments else 240
    known: dict[str, object] = {"benchmark": "phone_sentences", "sentences": 2 * 10 * count}
    for name in SETS:
        result, wrong = measure(count // 2, name)
        known |= result
        for line in wrong:
            show(f"{name} {line}")
    show(json.dumps(known))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

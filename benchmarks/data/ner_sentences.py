"""Invents sentences with names, postal addresses and dates of birth, and look-alikes without them.

Five languages; names and streets are made of syllables by a seed, so none is anybody's, and those
of another seed are other ones. Templates of the holdout are not those of the training set.
Look-alikes: other dates, towns and companies.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

LANGUAGES = ("en", "de", "fr", "es", "zh")
TYPE_OF_SLOT = {"n": "NAME", "a": "POSTAL_ADDRESS", "b": "DATE_OF_BIRTH"}
TRAINING = {
    "en": """{n} lives at {a}.
Please send the parcel to {n}, {a}, before Friday.
{n} was born on {b} and works for {o}.
Patient: {n}. Date of birth: {b}. Admitted on {d}.
The meeting with {n} in {c} is on {d}.
{o} opened an office in {c} on {d}.
On {d} the river rose again near {c}.
Our teacher, {n}, retired to {c}.""",
    "de": """{n} wohnt in der {a}.
Bitte schicken Sie das Paket an {n}, {a}, vor Freitag.
{n}, geboren am {b}, arbeitet bei {o}.
Patient: {n}. Geburtsdatum: {b}. Aufnahme am {d}.
Das Treffen mit {n} in {c} ist am {d}.
{o} hat am {d} ein Büro in {c} eröffnet.
Am {d} stieg der Fluss bei {c} wieder.""",
    "fr": """{n} habite au {a}.
Envoyez le colis à {n}, {a}, avant vendredi.
{n}, né le {b}, travaille chez {o}.
Patient : {n}. Date de naissance : {b}. Admis le {d}.
Le rendez-vous avec {n} à {c} est le {d}.
{o} a ouvert un bureau à {c} le {d}.""",
    "es": """{n} vive en {a}.
Envíe el paquete a {n}, {a}, antes del viernes.
{n}, nacida el {b}, trabaja para {o}.
Paciente: {n}. Fecha de nacimiento: {b}. Ingreso el {d}.
La reunión con {n} en {c} es el {d}.
{o} abrió una oficina en {c} el {d}.""",
    "zh": """{n}住在{a}。
请把包裹寄给{n}，{a}。
{n}出生于{b}，在{o}工作。
患者：{n}。出生日期：{b}。入院日期：{d}。
与{n}的会议在{c}，日期是{d}。
{o}于{d}在{c}开设了办事处。""",
}
HOLDOUT = {
    "en": """The parcel for {n} went to {a}.
Date of birth: {b}, name: {n}.
We met {n} at {o} in {c}.
On {d} {o} moved to {c}.""",
    "de": """Das Paket für {n} ging an die {a}.
Geburtsdatum: {b}, Name: {n}.
Wir trafen {n} bei {o} in {c}.
Am {d} zog {o} nach {c}.""",
    "fr": """Le colis pour {n} est arrivé au {a}.
Date de naissance : {b}, nom : {n}.
Nous avons vu {n} chez {o} à {c}.
Le {d}, {o} est venu à {c}.""",
    "es": """El paquete para {n} llegó a {a}.
Fecha de nacimiento: {b}, nombre: {n}.
Vimos a {n} en {o} de {c}.
El {d} {o} pasó a {c}.""",
    "zh": """给{n}的包裹寄到了{a}。
出生日期：{b}，姓名：{n}。
我们在{c}的{o}见到了{n}。
{d}，{o}迁到了{c}。""",
}
_STREETS = {
    "en": ("{w} Street", "{w} Road", "{w} Lane"),
    "de": ("{w}straße", "{w}weg", "{w}gasse"),
    "fr": ("rue de {w}", "avenue {w}", "place {w}"),
    "es": ("calle {w}", "avenida {w}", "plaza {w}"),
    "zh": ("{w}路", "{w}街", "{w}大道"),
}
_COMPANIES = {"en": "Ltd", "de": "GmbH", "fr": "SARL", "es": "S.L.", "zh": "公司"}
_SIGNS = "安白彩东丰光海和红华江金兰林明南平青荣山天文西新雅阳云正志中"
_SURNAMES = "王李张刘陈杨黄赵吴周徐孙马朱胡郭何高罗郑"


def sentences(
    count: int, templates: dict[str, str], seed: int
) -> Iterator[tuple[str, str, list[tuple[int, int, str]]]]:
    """(language, text, spans) for `count` sentences a language; spans are (first and last code
    point, type)."""
    rng = random.Random(f"{seed} names and places")
    for language in LANGUAGES:
        lines = templates[language].splitlines()
        for number in range(count):
            text, spans = "", []
            for piece in re.split(r"(\{\w\})", lines[number % len(lines)]):
                slot = piece[1:-1] if piece.startswith("{") else ""
                value = _value(rng, language, slot) if slot else piece
                if slot in TYPE_OF_SLOT:
                    spans.append((len(text), len(text) + len(value), TYPE_OF_SLOT[slot]))
                text += value
            yield language, text, spans


def _value(rng: random.Random, language: str, slot: str) -> str:
    if slot == "n":
        return _person(rng, language)
    if slot in "bd":
        return _date(rng, language, 1930 if slot == "b" else 2000)
    if slot == "c":
        return _word(rng, language) + "市" * (language == "zh")
    if slot == "o":
        gap = "" if language == "zh" else " "
        return _word(rng, language) + gap + _COMPANIES[language]
    return _address(rng, language)


def _word(rng: random.Random, language: str) -> str:
    if language == "zh":
        return "".join(rng.choice(_SIGNS) for _ in range(2))
    heads = [*"bdfghklmnprstv", "br", "gr", "st", "tr"]
    tails = [*"aeiou", "ai", "au"]
    ends = ["", "n", "r", "l", "s", "nd", "ck"]
    syllables = [rng.choice(heads) + rng.choice(tails) for _ in range(rng.choice((2, 2, 3)))]
    return ("".join(syllables) + rng.choice(ends)).capitalize()


def _person(rng: random.Random, language: str) -> str:
    if language == "zh":
        return rng.choice(_SURNAMES) + _word(rng, language)[: rng.choice((1, 2))]
    return f"{_word(rng, language)} {_word(rng, language)}"


def _date(rng: random.Random, language: str, first_year: int) -> str:
    year, month, day = first_year + rng.randrange(25), rng.randrange(1, 13), rng.randrange(1, 29)
    if language == "zh":
        return f"{year}年{month}月{day}日"
    return rng.choice((f"{day:02d}/{month:02d}/{year}", f"{day}.{month}.{year}"))


def _address(rng: random.Random, language: str) -> str:
    street = rng.choice(_STREETS[language]).format(w=_word(rng, language))
    town, number = _word(rng, language), rng.randrange(1, 200)
    if language == "zh":
        return f"{town}市{street}{number}号"
    code = f"{rng.randrange(10_000, 99_999)}"
    return f"{street} {number}, {code} {town}" if language in "de es" else (
        f"{number} {street}, {code} {town}"
    )  # fmt: skip
